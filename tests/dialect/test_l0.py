"""Declarations: one valid form of each, and what their verifiers refuse."""

from __future__ import annotations

import pytest

from tests.dialect.support import DECLARATIONS, error_of, printed, round_trips

DOMAIN = """
^bb0(%r: i64):
  %one = arith.constant 1 : i64
  "fsc.domain"(%one, %one) {operandSegmentSizes = array<i32: 0, 2>} : (i64, i64) -> ()
"""
RELATE = """
^bb0(%r: i64, %c: i64):
  %rank = "fsc.owner"(%c) {placement = @spec.place} : (i64) -> i64
  "fsc.relate"(%rank, %c, %r) {lengths = [1], operandSegmentSizes = array<i32: 1, 1, 1, 0>} :
    (i64, i64, i64) -> ()
"""
POINT = """
^bb0(%r: i64, %c: i64):
  %rank = "fsc.owner"(%c) {placement = @spec.place} : (i64) -> i64
  "fsc.point"(%r, %rank, %c) {operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (i64, i64, i64) -> ()
"""
ATTRIBUTES = (
    'fanout = 1 : i64, indices = ["r", "c"], num_source_dims = 1 : i64, ragged = 0 : i64, '
    'segment = @spec.row, source = @spec.by_row, sym_name = "other", target = @spec.by_key'
)
RUNS = (
    '{cell_elems = 4 : i64, copy_dtype = i64, dtype = f32, name = "x", run_elems = 4 : i64, '
    "seg_elems = 4 : i64, unit_bytes = 16 : i64}"
)
# Two runs of two elements, as far apart as the run says.
STRIDED = (
    POINT.replace("(%r, %rank, %c)", "(%r, %rank, %c, %c)")
    .replace("1, 0>", "1, 1>")
    .replace("(i64, i64, i64)", "(i64, i64, i64, i64)")
)
STRIDED_RUNS = (
    RUNS.replace("run_elems = 4", "run_elems = 2").replace("unit_bytes = 16", "unit_bytes = 8")[:-1]
    + ', run_dims = [{count = 2 : i64, dst_stride = 2 : i64, src_stride = "src_stride0"}]}'
)
# Two runs of two cells of f32, so many cells apart.
WIDE_RUNS = STRIDED_RUNS.replace("cell_elems = 4", "cell_elems = 1").replace(
    '"src_stride0"', "{} : i64"
)
DISPATCH = 'balance = "none", schedule = "pairwise", slice_bytes = 1 : i64'
PACKED = (
    "align = 8 : i64, capacity = 64 : i64, compact = 1 : i64, "
    'padding = "fewest", placement = @spec.place, segment = @spec.row, sym_name = "spec.n"'
)
ONCE = ATTRIBUTES.replace("@spec.by_key", "@spec.n")
IS_DISTINCT = f'"fsc.def_packed"() {{{PACKED}, distinct = 1 : i64}} : () -> ()\n'
# None of a segment's keys has been there before: it has but one.
LOOKS = RELATE.replace(
    '  %rank = "fsc.owner"(%c)',
    """
  %none = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %before = "fsc.inside"(%none, %one) : (i64, i64) -> i64
  %key = arith.addi %c, %before : i64
  %rank = "fsc.owner"(%key)""",
).replace("(%rank, %c,", "(%rank, %key,")
WIDE = """
"fsc.def_layout"() {cells = [{name = "x", type = tensor<f32>}],
  sym_name = "spec.wide"} : () -> ()
"fsc.def_layout"() {cells = [{name = "x", type = tensor<4xf64>}],
  sym_name = "spec.double"} : () -> ()
"fsc.def_layout"() {cells = [{name = "y", type = tensor<4xf32>}],
  sym_name = "spec.renamed"} : () -> ()
"fsc.def_segment"() {fields = [{name = "x", type = tensor<4xf8E4M3FN>},
  {name = "s", type = tensor<2xf32>}], sym_name = "spec.scaled"} : () -> ()
"""
# Rows of f64 arrive as f32; rows of f32 as 8-bit floats with a scale for every two.
DOUBLE = ATTRIBUTES.replace("@spec.by_row", "@spec.double")
SCALED = (
    ATTRIBUTES.replace("@spec.row", "@spec.scaled").replace("@spec.by_key", "@spec.double")
    + ', casts = [{block = 2 : i64, field = "x", scales = "s"}]'
)


def shuffle(domain: str = DOMAIN, relation: str = RELATE, attributes: str = ATTRIBUTES) -> str:
    return f'"fsc.shuffle"() ({{{domain}}}, {{{relation}}}) {{{attributes}}} : () -> ()'


def op(name: str, attributes: str) -> str:
    return f'"fsc.{name}"() {{{attributes}}} : () -> ()'


def in_units(stride: int) -> str:
    """Runs that are copied 8 bytes at a time."""
    attributes = ATTRIBUTES.replace("@spec.by_row", "@spec.wide")
    runs = WIDE_RUNS.replace("{} : i64", f"{stride} : i64")
    return shuffle(relation=POINT, attributes=f"{attributes}, runs = [{runs}]")


VALID = [
    IS_DISTINCT + shuffle(relation=LOOKS, attributes=ONCE),
    op("def_extent", 'sym_name = "spec.n"'),
    op("def_input", 'role = "route", sym_name = "spec.n", type = tensor<2x?xi32>'),
    op(
        "def_segment",
        'fields = [{name = "x", type = tensor<4xf32>}, {name = "s", type = tensor<bf16>}], '
        'sym_name = "spec.n"',
    ),
    op(
        "def_placement",
        'kind = "table", num_keys = 16 : i64, sym_name = "spec.n", table = @spec.table',
    ),
    op(
        "def_placement",
        'kind = "block", num_keys = 16 : i64, sym_name = "spec.n"',
    ),
    op("def_layout", 'cells = [{name = "x", type = tensor<i8>}], sym_name = "spec.n"'),
    op("def_packed", PACKED),
    op("dispatch", DISPATCH),
    op("dispatch", f'{DISPATCH}, dedup = ["node"]'),
    op("combine", 'kind = "sum", weight = @spec.factors'),
    op("combine", 'kind = "copy"'),
    shuffle(),
    shuffle(relation=POINT, attributes=f"{ATTRIBUTES}, runs = [{RUNS}]"),
    shuffle(relation=STRIDED, attributes=f"{ATTRIBUTES}, runs = [{STRIDED_RUNS}]"),
    WIDE + in_units(4),
    WIDE + shuffle(attributes=f'{DOUBLE}, casts = [{{field = "x"}}]'),
    WIDE + shuffle(relation=RELATE.replace("(%rank,", "(%r,"), attributes=SCALED),
]

INVALID = [
    (
        op("combine", 'kind = "sum", weight = @spec.keys'),
        "'fsc.combine' op must not take its weight from an input for route",
    ),
    (
        shuffle(attributes=ATTRIBUTES.replace("fanout = 1", "fanout = 2")),
        "'fsc.shuffle' op has fan-out extents whose product is not 2",
    ),
    (
        shuffle(attributes=f"{ATTRIBUTES}, every_rank = 1 : i64"),
        "'fsc.shuffle' op has no fan-out extent that is the number of ranks",
    ),
    (
        shuffle(attributes=DOUBLE + ', casts = [{field = "x"}, {field = "x"}]'),
        "'fsc.shuffle' op must not cast a field twice",
    ),
    (
        shuffle(attributes=SCALED.replace("target = @spec.double", "target = @spec.by_key")),
        "'fsc.shuffle' op has a target for other segments",
    ),
    (
        shuffle(relation=RELATE.replace("(%rank, %c,", "(%c, %c,")),
        "'fsc.shuffle' op must send a key to its owner by @spec.place",
    ),
    (
        shuffle(attributes=ATTRIBUTES.replace("@spec.by_key", "@spec.by_row")),
        "'fsc.shuffle' op must not send a slot to the owner of a key",
    ),
    (
        IS_DISTINCT + shuffle(attributes=ONCE),
        "'fsc.shuffle' op must look whether a segment has a key twice, as these are distinct",
    ),
    (
        IS_DISTINCT + shuffle(relation=LOOKS.replace("constant 1", "constant 2"), attributes=ONCE),
        "'fsc.shuffle' op must look whether a segment has a key twice, as these are distinct",
    ),
    (
        shuffle(relation=RELATE.replace("lengths = [1]", "lengths = [array<si64: 1>]")),
        "'fsc.relate' op has operands, results or attributes of other types than it is defined",
    ),
    *(
        (shuffle(relation=POINT, attributes=f"{ATTRIBUTES}, runs = [{RUNS.replace(*edit)}]"), why)
        for edit, why in (
            (("dtype = f32", "dtype = i32"), "has runs of other cells than those of 'x'"),
            (("copy_dtype = i64", "copy_dtype = i8"), "copies 'x' in other units than 16 bytes"),
            (("run_elems = 4", "run_elems = 2"), "cuts runs of 'x' into units that do not fit"),
            (("seg_elems = 4", "seg_elems = 8"), "moves 8 elements of 'x' in 4"),
        )
    ),
    (
        shuffle(relation=POINT, attributes=f"{ATTRIBUTES}, runs = [{STRIDED_RUNS}]"),
        "'fsc.shuffle' op needs the strides of its point in the runs of 'x'",
    ),
    (
        shuffle(relation=STRIDED, attributes=f"{ATTRIBUTES}, runs = [{RUNS}]"),
        "'fsc.shuffle' op needs the strides of its point in the runs of 'x'",
    ),
    (
        shuffle(
            relation=STRIDED,
            attributes=f"{ATTRIBUTES}, runs = [{STRIDED_RUNS}]".replace("e = 2", "e = 3"),
        ),
        "'fsc.shuffle' op must not leave gaps between runs of 'x'",
    ),
    (in_units(3), "'fsc.shuffle' op begins runs of 'x' amid a unit"),
    (op("def_extent", ""), "'fsc.def_extent' op needs the attribute 'sym_name'"),
    (
        op("def_extent", 'sym_name = ""'),
        "'fsc.def_extent' op attribute 'sym_name' must not be empty",
    ),
    (op("def_extent", 'sym_name = "n"'), "attribute 'sym_name' must begin with 'spec.', not \"n\""),
    (op("def_extent", "sym_name = 1"), "attribute 'sym_name' must be a string, not 1"),
    (
        op("def_extent", 'sym_name = "spec.n", size = 1'),
        "'fsc.def_extent' op has an unknown attribute 'size'",
    ),
    (op("def_extent", 'sym_name = "spec.rows"'), "'fsc.def_extent' op redefines @spec.rows"),
    (
        op("def_input", 'role = "guess", sym_name = "spec.n", type = tensor<2xi64>'),
        "attribute 'role' must be one of route, weight, extent, placement, into, cast, not 'guess'",
    ),
    (
        op("def_input", 'role = "route", sym_name = "spec.n", type = i64'),
        "'fsc.def_input' op attribute 'type' must be a ranked tensor type, not i64",
    ),
    (
        op("def_input", 'role = "route", sym_name = "spec.n", type = tensor<2xi7>'),
        "attribute 'type' is not an element type: i7",
    ),
    (
        op("def_input", 'role = "route", sym_name = "spec.n", type = tensor<2x0xi64>'),
        "attribute 'type' must have positive extents",
    ),
    (
        op("def_segment", 'fields = [], sym_name = "spec.n"'),
        "'fsc.def_segment' op attribute 'fields' must not be empty",
    ),
    (
        op("def_segment", 'fields = [{name = "x"}], sym_name = "spec.n"'),
        "attribute 'fields' element 0 needs the key 'type'",
    ),
    (
        op(
            "def_segment", 'fields = [{name = "x", type = tensor<i8>, up = 1}], sym_name = "spec.n"'
        ),
        "attribute 'fields' element 0 has an unknown key 'up'",
    ),
    (
        op("def_segment", 'fields = ["x"], sym_name = "spec.n"'),
        "attribute 'fields' element 0 must be a dictionary",
    ),
    (
        op("def_placement", 'kind = "table", num_keys = 16 : i64, sym_name = "spec.n"'),
        "'fsc.def_placement' op needs the attribute 'table' exactly when its kind is table",
    ),
    (
        op(
            "def_placement",
            'group = 3 : i64, kind = "block", num_keys = 16 : i64, sym_name = "spec.n"',
        ),
        "'fsc.def_placement' op needs whole groups of keys, which no table places",
    ),
    (
        op("def_placement", 'kind = "block", num_keys = 0 : i64, sym_name = "spec.n"'),
        "attribute 'num_keys' must be at least 1, not 0",
    ),
    (
        op("def_placement", 'kind = "block", num_keys = 4 : i32, sym_name = "spec.n"'),
        "attribute 'num_keys' must be an i64, not 4 : i32",
    ),
    (
        op(
            "def_layout",
            'cells = [{name = "x", type = tensor<i8>}], num_dims = 1 : i64, sym_name = "spec.n"',
        ),
        "'fsc.def_layout' op has an unknown attribute 'num_dims'",
    ),
    (
        op("def_packed", PACKED.replace("compact = 1 : i64, ", "")),
        "'fsc.def_packed' op needs the attribute 'compact'",
    ),
    (
        op("def_packed", PACKED.replace("fewest", "twice")),
        "'fsc.def_packed' op knows no padding 'twice'",
    ),
    (
        op("def_packed", PACKED.replace("compact = 1", "compact = 2")),
        "'fsc.def_packed' op attribute 'compact' must be 0 or 1, not 2",
    ),
    (
        op(
            "def_placement",
            'kind = "table", num_keys = 16 : i64, sym_name = "spec.n", table = @spec.keys',
        ),
        "'fsc.def_placement' op must not take its table from an input for route",
    ),
    (
        op(
            "def_packed",
            'align = 1 : i64, compact = 0 : i64, padding = "fewest", placement = @spec.nowhere, '
            'segment = @spec.row, sym_name = "spec.n"',
        ),
        "'fsc.def_packed' op attribute 'placement' names @spec.nowhere, which is not defined",
    ),
    (
        op(
            "def_packed",
            'align = 1 : i64, compact = 0 : i64, padding = "fewest", placement = @spec.row, '
            'segment = @spec.row, sym_name = "spec.n"',
        ),
        "attribute 'placement' names @spec.row, a fsc.def_segment where fsc.def_placement is",
    ),
    (
        op(
            "dispatch",
            'balance = "none", dedup = ["node", "node"], schedule = "pairwise", '
            "slice_bytes = 1 : i64",
        ),
        "'fsc.dispatch' op attribute 'dedup' must not repeat an element",
    ),
    (
        op(
            "dispatch",
            'balance = "none", dedup = ["rack"], schedule = "pairwise", slice_bytes = 1 : i64',
        ),
        "attribute 'dedup' element 0 must be one of node, rank, not 'rack'",
    ),
    (
        op("combine", 'kind = "copy", weight = @spec.factors'),
        "'fsc.combine' op must weigh nothing but the terms of a sum",
    ),
    (op("combine", 'kind = "mean"'), "'kind' must be one of copy, sum, max"),
    (op("combine", 'kind = "sum", weight = 3'), "attribute 'weight' must be a symbol reference"),
    (op("combine", 'kind = "sum", shuffle = @s'), "op has an unknown attribute 'shuffle'"),
    (
        shuffle() + shuffle(),
        "'fsc.shuffle' op must be the only one of its module",
    ),
    *(
        (op("dispatch", DISPATCH.replace(*edit)), f"attribute {why}")
        for edit, why in (
            (('"none"', '"luck"'), "'balance' must be one of none, auto, static, "),
            (('"pairwise"', '"luck"'), "'schedule' must be one of "),
            (("= 1", "= 0"), "'slice_bytes' must be at least 1, not 0"),
        )
    ),
    (
        shuffle(attributes=ATTRIBUTES.replace("@spec.by_row", "@spec.renamed")),
        "'fsc.shuffle' op moves fields ['x'], which its source does not hold in this order",
    ),
    (
        shuffle(attributes=ATTRIBUTES.replace("num_source_dims = 1", "num_source_dims = 3")),
        "'fsc.shuffle' op has more source dimensions than indices",
    ),
    (
        shuffle(attributes=ATTRIBUTES.replace("ragged = 0", "ragged = 2")),
        "attribute 'ragged' must be 0 or 1, not 2",
    ),
    (
        shuffle(relation=POINT),
        "'fsc.shuffle' op needs the attribute 'runs' exactly when it yields fsc.point",
    ),
    (
        shuffle(attributes=f"{ATTRIBUTES}, runs = [{RUNS}]"),
        "needs the attribute 'runs' exactly when it yields fsc.point",
    ),
    (
        shuffle(relation=POINT, attributes=f"{ATTRIBUTES}, runs = [{RUNS.replace('= 16', '= 3')}]"),
        "attribute 'runs' element 0 key 'unit_bytes' must be 16, 8, 4, 2 or 1, not 3",
    ),
    (
        shuffle(
            relation=POINT, attributes=f"{ATTRIBUTES}, runs = [{RUNS.replace('= i64,', '= f32,')}]"
        ),
        "key 'copy_dtype' must be one of i16, i32, i64, i8, not f32",
    ),
    (
        shuffle(
            relation=POINT,
            attributes=f"{ATTRIBUTES}, runs = [{RUNS[:-1]}, run_dims = [{{count = 2 : i64, "
            'dst_stride = 4 : i64, src_stride = "width"}]}]',
        ),
        "element 0 key 'src_stride' must be a number of cells or a src_stride column, not ",
    ),
    (
        shuffle(relation=POINT, attributes=f"{ATTRIBUTES}, runs = [{RUNS.replace('x', 'z')}]"),
        "'fsc.shuffle' op moves other fields than those of its runs",
    ),
    (
        shuffle(domain=DOMAIN.replace("%r: i64", "%r: i64, %c: i64")),
        "needs one i64 argument, the outermost index, in its domain region",
    ),
    (
        shuffle(
            domain=DOMAIN.replace("%one, %one)", "%one)")
            .replace("0, 2>", "0, 1>")
            .replace("(i64, i64)", "(i64)")
        ),
        "'fsc.shuffle' op has 2 indices but 1 extents",
    ),
    (
        shuffle(attributes=ATTRIBUTES.replace("ragged = 0", "ragged = 1")),
        "'fsc.shuffle' op needs the cells of an outer entry exactly where it is ragged",
    ),
    (
        shuffle(relation=RELATE.replace("%c: i64)", "%c: i64, %d: i64)")),
        "needs one i64 argument an index in its relation region",
    ),
    (
        shuffle(relation=DOMAIN.replace("%r: i64", "%r: i64, %c: i64")),
        "needs fsc.relate or fsc.point",
    ),
    (
        shuffle(attributes=ATTRIBUTES.replace("@spec.by_row", "@spec.wide")),
        "'fsc.shuffle' op moves 4 elements of 'x' in blocks of 1",
    ),
    (
        shuffle(attributes=ATTRIBUTES.replace("@spec.by_row", "@spec.double")),
        "'fsc.shuffle' op moves 'x' as f32 but its cells are f64",
    ),
    (
        shuffle(attributes=f'{DOUBLE}, casts = [{{field = "y"}}]'),
        "'fsc.shuffle' op casts 'y', which is not a field of both ends",
    ),
    (
        shuffle(attributes=SCALED.replace('"s"', '"t"')),
        "'fsc.shuffle' op moves fields ['x', 's'], which its source does not hold in this order",
    ),
    (
        shuffle(attributes=f'{DOUBLE}, casts = [{{block = 2 : i64, field = "x", scales = "t"}}]'),
        "'fsc.shuffle' op scales by 't', which must be a field of one end",
    ),
    (
        shuffle(attributes=f'{DOUBLE}, casts = [{{channels = 3 : i64, field = "x"}}]'),
        "'fsc.shuffle' op normalises 'x', which has scales or other channels",
    ),
    (
        shuffle(
            attributes=f"{DOUBLE}, casts = [{{channels = 2 : i64, factors = [2.0 : f32], "
            'field = "x", shifts = [0.0 : f32]}]'
        ),
        "'fsc.shuffle' op normalises 'x' by numbers of its own and of a call",
    ),
    (
        shuffle(attributes=SCALED.replace("block = 2 : i64, ", "")),
        "'fsc.shuffle' op needs a block for the scales of 'x'",
    ),
    (
        shuffle(attributes=SCALED.replace("block = 2", "block = 4")),
        "'fsc.shuffle' op makes 2 scales for 4 elements in blocks of 4",
    ),
]


@pytest.mark.parametrize("case", VALID)
def test_valid(case: str) -> None:
    assert round_trips(printed(DECLARATIONS + case))


@pytest.mark.parametrize(("case", "reason"), INVALID, ids=[reason for _, reason in INVALID])
def test_invalid(case: str, reason: str) -> None:
    assert reason in error_of(DECLARATIONS + WIDE + case)
