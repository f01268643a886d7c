"""Operations inside a shuffle's regions: what their verifiers accept and refuse."""

from __future__ import annotations

import pytest

from tests.dialect.support import DECLARATIONS, edited, error_of, printed, round_trips

END = """
  %rank = "fsc.owner"(%b) {placement = @spec.place} : (i64) -> i64
  "fsc.point"(%a, %rank, %b) {operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (i64, i64, i64) -> ()
"""
APART = '"fsc.apart"() : () -> ()'
ELSEWHERE = "must stand in the region of a relation, not in that of its domain"
RELATE = (
    '%rank = "fsc.owner"(%b) {placement = @spec.place} : (i64) -> i64 '
    '"fsc.relate"(%rank, %b, %a) {lengths = [1], '
    "operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (i64, i64, i64) -> ()"
)
RUNS = (
    'runs = [{cell_elems = 4 : i64, copy_dtype = i64, dtype = f32, name = "x", '
    "run_elems = 4 : i64, seg_elems = 4 : i64, unit_bytes = 16 : i64}]"
)


def inside(line: str, end: str = END, runs: str = f", {RUNS}") -> str:
    """A shuffle whose relation computes ``line`` from the values %a and %b."""
    return f"""{DECLARATIONS}
"fsc.shuffle"() ({{
^bb0(%a: i64):
  "fsc.domain"(%a, %a) {{operandSegmentSizes = array<i32: 0, 2>}} : (i64, i64) -> ()
}}, {{
^bb0(%a: i64, %b: i64):
  {line}
  {end}
}}) {{fanout = 1 : i64, indices = ["a", "b"], num_source_dims = 2 : i64, ragged = 0 : i64{runs},
  segment = @spec.row, source = @spec.by_row, sym_name = "t", target = @spec.by_key}} : () -> ()
"""


def in_domain(line: str) -> str:
    """A shuffle with ``line`` in its domain region."""
    return edited(inside(""), ('"fsc.domain"', f'{line}\n  "fsc.domain"'))


VALID = [
    inside('%v = "fsc.extent"() {extent = @spec.rows} : () -> i64'),
    inside('%v = "fsc.lookup"(%a) {input = @spec.keys} : (i64) -> i64'),
    inside('%v = "fsc.owner"(%a) {placement = @spec.place} : (i64) -> i64'),
    inside('%v = "fsc.exact_div"(%a, %b) : (i64, i64) -> i64'),
    inside('%v = "fsc.cell_base"(%a) : (i64) -> i64'),
    inside('"fsc.drop"(%a) : (i64) -> ()'),
    inside(APART),
    inside("%v = arith.divsi %a, %b : i64"),
    inside("", end=RELATE, runs=""),
]

INVALID = [
    (
        inside('%v = "fsc.extent"() {extent = @spec.keys} : () -> i64'),
        "'fsc.extent' op attribute 'extent' names @spec.keys, a fsc.def_input where fsc.def_extent",
    ),
    (
        inside('%v = "fsc.lookup"(%a) {input = @spec.rows} : (i64) -> i64'),
        "'fsc.lookup' op attribute 'input' names @spec.rows, a fsc.def_extent where fsc.def_input",
    ),
    (
        inside('%v = "fsc.lookup"(%a) {input = @spec.factors} : (i64) -> i64'),
        "'fsc.lookup' op must read integers, not f32",
    ),
    (
        inside('%v = "fsc.lookup"(%a, %b) {input = @spec.keys} : (i64, i64) -> i64'),
        "op expects exactly 1 operands, but got 2",
    ),
    (
        inside('%v = "fsc.owner"(%a) {placement = @spec.by_key} : (i64) -> i64'),
        "'fsc.owner' op attribute 'placement' names @spec.by_key, a fsc.def_packed",
    ),
    (
        inside('%v = "fsc.exact_div"(%a, %b) {up = 1} : (i64, i64) -> i64'),
        "'fsc.exact_div' op has an unknown attribute 'up'",
    ),
    (inside('%v = "fsc.cell_base"(%a) : (i64) -> i32'), "expected 'i64' but got 'i32'"),
    (
        inside("", end=RELATE.replace("[1]", "[1, 2]"), runs=""),
        "'fsc.relate' op needs 2 starts, one for each of its lengths, and a dim less",
    ),
    (
        inside("", end=RELATE.replace("[1]", "[0]"), runs=""),
        "'fsc.relate' op attribute 'lengths' element 0 must be at least 1, not 0",
    ),
    (
        f"{DECLARATIONS}func.func @f(%a: i64, %b: i64) {{ {RELATE} }}",
        "'fsc.relate' op must stand inside fsc.shuffle",
    ),
    (
        'func.func @f(%a: i64) { "fsc.drop"(%a) : (i64) -> () }',
        "'fsc.drop' op must stand inside fsc.shuffle",
    ),
    (
        f"func.func @f() {{ {APART} }}",
        "'fsc.apart' op must stand inside fsc.shuffle, fsc.node_points or fsc.kernel",
    ),
    (in_domain(APART), "'fsc.apart' op " + ELSEWHERE),
    (in_domain('"fsc.drop"(%a) : (i64) -> ()'), "'fsc.drop' op " + ELSEWHERE),
    (
        f"{DECLARATIONS}func.func @f(%a: i64, %b: i64) {{ {END} }}",
        "'fsc.point' op must stand inside fsc.shuffle",
    ),
    (
        'func.func @f(%a: i64) { "fsc.domain"(%a, %a) {operandSegmentSizes = array<i32: 1, 1>} : '
        "(i64, i64) -> () }",
        "'fsc.domain' op must stand inside fsc.shuffle",
    ),
]


@pytest.mark.parametrize("case", VALID)
def test_valid(case: str) -> None:
    assert round_trips(printed(case))


@pytest.mark.parametrize(("case", "reason"), INVALID, ids=[reason for _, reason in INVALID])
def test_invalid(case: str, reason: str) -> None:
    assert reason in error_of(case)
