"""Descriptor lists and the steps over them: what their verifiers accept and refuse."""

from __future__ import annotations

import pytest

from tests.dialect.support import PRELUDE, error_of, printed, round_trips

LISTS = """
"fsc.descriptors"() {columns = ["src_offset", "dst_row"], per = "node",
  sym_name = "out"} : () -> ()
"fsc.descriptors"() {columns = ["dst_row", "term_begin", "term_end"],
  per = "rank", sym_name = "back", terms = ["term_slot"]} : () -> ()
"fsc.descriptors"() {columns = ["dst_row", "term_begin", "term_end"],
  per = "rank", sym_name = "weighed", terms = ["term_slot", "term_point"]} : () -> ()
"fsc.descriptors"() {columns = ["src_offset", "dst_peer", "term_begin",
  "term_end"], per = "node", sym_name = "nowhere"} : () -> ()
"""


def path(body: str) -> str:
    return (
        f'{PRELUDE}"fsc.path"() ({{ {LISTS} {body} }}) {{direction = "dispatch", shuffle = @s, '
        'sym_name = "s_dispatch"} : () -> ()'
    )


def step(name: str, attributes: str) -> str:
    return path(f'"fsc.{name}"() {{{attributes}}} : () -> ()')


def back(held: str) -> str:
    """What left comes back, by the list ``held``."""
    exchange = EXCHANGE.replace('"forward"', '"back"').replace("@out", held)
    return (
        f'"fsc.path"() ({{ "fsc.exchange"() {{{exchange}}} : () -> () }}) '
        '{direction = "combine", shuffle = @s, sym_name = "s_combine"} : () -> ()'
    )


COPY = 'dst = "target", list = @out, scope = "rank", signal = 0 : i64, src = "source"'
EXCHANGE = (
    'direction = "forward", forwarder = "same_local_rank", list = @out, schedule = "pairwise", '
    "slice_bytes = 1024 : i64"
)
SCATTER = 'dst = "target", list = @out, src = "target", wait = [0, 1]'
SUM = (
    'dst = "staging", kind = "sum", list = @back, rows = [{acc = f32, dst = bf16, name = "x", '
    'src = bf16}], scope = "rank", signal = 2 : i64, src = "target"'
)
COPY_BACK = SUM.replace('"sum"', '"copy"').replace("acc = f32, ", "")

VALID = [
    step("gather_send", COPY),
    step("gather_send", 'dst = "slice", list = @out, scope = "node", src = "source"'),
    step("exchange", EXCHANGE),
    step("scatter_recv", SCATTER),
    step("reduce", SUM),
    step("reduce", f"{SUM.replace('@back', '@weighed')}, wait = [2], weight = @spec.factors"),
    step("reduce", SUM.replace("dst = bf16", "dst = f32")),
    step("reduce", COPY_BACK),
    step("exchange", EXCHANGE) + back("@s_dispatch::@out"),
]

INVALID = [
    (
        step("exchange", EXCHANGE.replace('"forward"', '"back"')),
        "'fsc.exchange' op must come back exactly in a path for combine",
    ),
    (
        step("exchange", EXCHANGE) + back("@s_dispatch::@back"),
        "'fsc.exchange' op comes back by @s_dispatch::@back, with which nothing left",
    ),
    (
        step("gather_send", COPY.replace('"source"', '"landing"').replace("target", "staging")),
        "'fsc.gather_send' op must not go from landing to staging",
    ),
    (step("reduce", SUM.replace('"rank"', '"local"')), "'fsc.reduce' op must have the scope rank"),
    (step("reduce", SUM.replace('"x"', '"y"')), "'fsc.reduce' op needs rows of the fields x"),
    (
        path(LISTS),
        "'fsc.descriptors' op redefines @out",
    ),
    (
        step("descriptors", 'columns = [], per = "node", sym_name = "n"'),
        "'fsc.descriptors' op attribute 'columns' must not be empty",
    ),
    (
        step("descriptors", 'columns = ["a", "a"], per = "node", sym_name = "n"'),
        "attribute 'columns' must not repeat an element",
    ),
    (
        step(
            "descriptors",
            'columns = ["term_begin"], per = "node", sym_name = "n"',
        ),
        "'fsc.descriptors' op needs both of the columns term_begin and term_end, or neither",
    ),
    (
        step(
            "descriptors",
            'columns = ["a"], per = "node", sym_name = "n", terms = ["b"]',
        ),
        "'fsc.descriptors' op has terms but no columns term_begin and term_end",
    ),
    (
        step("gather_send", COPY.replace("@out", "@spec.lost")),
        "names @spec.lost, which is not defined",
    ),
    (
        step("gather_send", COPY.replace("@out", "@spec.row")),
        "a fsc.def_segment where fsc.descriptors",
    ),
    (
        step("gather_send", COPY.replace('"target"', '"slice"')),
        "'fsc.gather_send' op must have the scope node",
    ),
    (
        step("gather_send", COPY.replace("target", "slice").replace("rank", "node")),
        "'fsc.gather_send' op must not signal: slices stay on this rank",
    ),
    (
        step("gather_send", COPY.replace("= 0", "= -1")),
        "attribute 'signal' must be at least 0, not -1",
    ),
    *(
        (step(name, attributes), f"'fsc.{name}' op needs a list that places the dst of its rows")
        for name, attributes in (
            ("gather_send", COPY.replace("@out", "@nowhere")),
            ("scatter_recv", SCATTER.replace("@out", "@nowhere")),
            ("reduce", SUM.replace("@back", "@nowhere")),
        )
    ),
    (
        step("gather_send", COPY.replace("@out", "@back")),
        "'fsc.gather_send' op needs a list that places the src of its rows",
    ),
    (
        step("exchange", EXCHANGE.replace('forward"', 'up"')),
        "'fsc.exchange' op attribute 'direction' must be one of forward, back, not 'up'",
    ),
    (step("exchange", EXCHANGE.replace("1024", "0")), "'slice_bytes' must be at least 1, not 0"),
    (
        step("scatter_recv", SCATTER.replace("[0, 1]", "[]")),
        "'fsc.scatter_recv' op attribute 'wait' must not be empty",
    ),
    (
        step("scatter_recv", SCATTER.replace("[0, 1]", "[0, 0]")),
        "'fsc.scatter_recv' op attribute 'wait' must not repeat an element",
    ),
    (
        step("reduce", SUM.replace('"sum"', '"copy"')),
        "'fsc.reduce' op needs an accumulator for field 'x' exactly when it reduces",
    ),
    (
        step("reduce", SUM.replace("acc = f32, ", "")),
        "'fsc.reduce' op needs an accumulator for field 'x' exactly when it reduces",
    ),
    (step("reduce", SUM.replace("acc = f32", "acc = bf16")), "key 'acc' must be one of f32, f64"),
    (
        step("reduce", COPY_BACK.replace("dst = bf16", "dst = f32")),
        "'fsc.reduce' op must not convert field 'x' that it copies",
    ),
    (
        step("reduce", f"{COPY_BACK}, weight = @spec.factors"),
        "'fsc.reduce' op must weigh nothing but the terms of a sum",
    ),
    (
        step("reduce", SUM.replace("@back", "@out")),
        "'fsc.reduce' op needs a list with terms, and @out has none",
    ),
    (
        step("reduce", f"{SUM}, weight = @spec.factors"),
        "'fsc.reduce' op needs the points of the terms that it weighs",
    ),
    (
        step("reduce", f"{SUM}, weight = @spec.rows"),
        "attribute 'weight' names @spec.rows, a fsc.def_extent",
    ),
]


@pytest.mark.parametrize("case", VALID)
def test_valid(case: str) -> None:
    assert round_trips(printed(case))


@pytest.mark.parametrize(("case", "reason"), INVALID, ids=[reason for _, reason in INVALID])
def test_invalid(case: str, reason: str) -> None:
    assert reason in error_of(case)
