"""What ``fsc.node`` refuses, on modules that the passes have made."""

from __future__ import annotations

from functools import cache

import pytest

from fuscoc.driver import check_source
from fuscoc.pipeline import compile_to_ir
from fuscoc.source import SourceFile
from tests.casts.specs import routed
from tests.dialect.support import edited, error_of, round_trips
from tests.specs import checked_example, moe, moe_fp8

NODE, TRITON = "'fsc.node' op ", "'fsc.triton_tile' op "
TILE = """"fsc.triton_tile"() {moved = [{align_bytes = 16 : i64,
    field = "x", part_elems = 8 : i64, pieces = [8 : i64]}], plan_block = 256 : i64,
    plan_keys = 8 : i64, plan_points = 128 : i64, plan_tiles = 1 : i64, plan_warps = 4 : i64,
    row_parts = 1 : i64, row_warps = 4 : i64, sorted_rows = 1 : i64, tile_rows = 1 : i64} : () -> ()
"""
ASSIGNED = '"fsc.node_assign"(%0, %2) {align = 128 : i64, compact = 0 : i64, padding = "fewest"}'
EMPTY = '"fsc.node"() ({\n^bb0:\n}) {printers = ["cuda"]} : () -> ()\n'
OTHER = '"fsc.def_placement"() {kind = "cyclic", num_keys = 256 : i64, sym_name = "spec.other"}'


@cache
def module(after: str) -> str:
    return compile_to_ir(moe(), after=after).text


def at_the_end(text: str, more: str) -> str:
    """A module with further operations."""
    body, closing, _ = text.rpartition("}")
    return f"{body}{more}{closing}\n"


# (an edit of moe's module behind fuse-node, what the verifier says)
FUSED = [
    ([(' {printers = ["cuda", "triton"]}', "")], "needs the attribute 'printers' exactly until"),
    ([('"cuda", "triton"]', '"cuda", "cuda"]')], "'printers' must not repeat an element"),
    (
        [("ragged = 0 : i64} : () -> !fsc.points", "ragged = 1 : i64} : () -> !fsc.points")],
        "'fsc.node_points' op has another 'ragged' than its shuffle",
    ),
    (
        [("arith.addi %12, %arg1 : i64", "arith.addi %12, %arg0 : i64")],
        "'fsc.node_points' op evaluates another relation than its shuffle",
    ),
    (
        [
            ('"fsc.def_packed"', f'{OTHER} : () -> ()\n"fsc.def_packed"'),
            ("(%0) {placement = @spec.by_expert.place}", "(%0) {placement = @spec.other}"),
        ],
        "'fsc.node_count' op must count the keys of its shuffle's target",
    ),
    (
        [('"fsc.node_assign"(%0, %2) {align = 128', '"fsc.node_assign"(%0, %2) {align = 64')],
        "'fsc.node_assign' op must number slots as its shuffle's target says",
    ),
    (
        [("%2) {align = 128 : i64, compact = 0", "%2) {align = 128 : i64, compact = 1")],
        "'fsc.node_assign' op must number slots as its shuffle's target says",
    ),
    (
        [('"fsc.node_signal"(%4) {per = "group"}', '"fsc.node_signal"(%4) {per = "rank"}')],
        "'fsc.node_wait' op must wait for as much as a fsc.node_signal before it tells",
    ),
    *(
        ([(step + before, step + other)], f"'{step[1:-2]}' op must stand right behind what it")
        for step, before, other in (
            ('"fsc.node_expand"(', "%6)", "%5)"),  # before rows have come
            ('"fsc.node_signal"(', "%8)", "%4)"),
            ('"fsc.node_join"(', "%10)", "%6)"),  # when those of dispatch have
        )
    ),
    (
        [
            (
                '"fsc.node_exchange"(%1) {operandSegmentSizes = array<i32: 1>} : (!fsc.counts)',
                '"fsc.node_exchange"() {operandSegmentSizes = array<i32: 0>} : ()',
            ),
        ],
        "'fsc.node_exchange' op must tell what was counted, if anything was",
    ),
    (
        [('"fsc.node_assign"(%0, %2)', '"fsc.node_assign"(%0, %1)')],
        "'fsc.node_assign' op needs the counts of all ranks",
    ),
    (
        [(ASSIGNED, '"fsc.node_given"(%0, %2)')],
        "'fsc.node_given' op must not take keys of a packed target for slots",
    ),
    (
        [
            ('"fsc.node_signal"(%4) {per = "group"}', '"fsc.node_signal"(%4) {per = "rank"}'),
            ('"fsc.node_wait"(%5) {per = "group"}', '"fsc.node_wait"(%5) {per = "rank"}'),
        ],
        NODE + "must tell of groups, but once for a rank where rows are compact",
    ),
    (
        [('%7 = "fsc.node_expand"(%6) : (!fsc.token) -> !fsc.token', "")],
        NODE + "needs fsc.node_expand exactly where slots have rows of their own",
    ),
    (
        [('%11 = "fsc.node_join"(%10) : (!fsc.token) -> !fsc.token', "")],
        NODE + "does not know what to do with: fsc.node_points, fsc.node_count",
    ),
    (
        [
            (
                '"fsc.load_field"() {cell_elems = 7168',
                '"fsc.load_field"() {cell_elems = 14',
            )
        ],
        "'fsc.node_copy' op must read the fields of its shuffle's source",
    ),
    (
        [
            (
                "seg_elems = 7168 : i64, unit_bytes = 16 : i64} :",
                "seg_elems = 7 : i64, unit_bytes = 2 : i64} :",
            )
        ],
        "'fsc.load_field' op must give what its runs hold, not vector<7168xbf16>",
    ),
    ([('{field = "x"}', '{field = "y"}')], "'fsc.node_copy' op must store the fields of its"),
    (
        [('"fsc.made"(%14)', '"fsc.made"(%13)')],
        "'fsc.node_reduce' op must take rows of its shuffle's",
    ),
    *(
        ([(old, new)], "'fsc.node_reduce' op must merge its row, times the weight where it weighs")
        for old, new in (
            ("(%arg0, %13) {kind", "(%arg0, %12) {kind"),  # without the weight
            ("(%arg0, %13) {kind", "(%arg0, %arg0) {kind"),
            ('"fsc.scale"(%12, %arg2)', '"fsc.scale"(%arg0, %arg2)'),
        )
    ),
    (
        [
            (
                "^bb0(%arg0: vector<7168xf32>, %arg1: vector<7168xbf16>, %arg2: f32)",
                "^bb0(%arg0: vector<7168xf32>, %arg1: vector<7168xbf16>, %arg2: f32, %arg3: f32)",
            )
        ],
        "'fsc.node_reduce' op needs what is made so far, a row, and a weight where it weighs",
    ),
    (
        [("{weight = @spec.topk_weights} : (!fsc.slots)", ": (!fsc.slots)")],
        "'fsc.node_reduce' op needs what is made so far, a row, and a weight where it weighs",
    ),
    (
        [
            (
                "{weight = @spec.topk_weights} : (!fsc.slots)",
                "{weight = @spec.topk_idx} : (!fsc.slots)",
            )
        ],
        "'fsc.node_reduce' op must not take its weight from an input for route",
    ),
]
QUANTISED = [
    ("{block = 128 : i64, dtype", "{block = 64 : i64, dtype"),
    ("dtype = f8E4M3FN} : (vector", "dtype = f8E5M2} : (vector"),
]
PIECES = "'fsc.node_pieces' op "
POINT = (
    '"fsc.point"(%12, %12, %12) {operandSegmentSizes = array<i32: 1, 1, 1, 0>} : '
    "(i64, i64, i64) -> ()\n"
)
STRIDES = "array<i32: 1, 1, 1, 2, 2, 2, 2, 1>"
# (edits of vit_patches' module behind split-affine, what the verifier says)
PIECED = [
    ([(", outer = [0]", "")], PIECES + "needs an i64 argument an outer index, and a fsc.piece"),
    ([("outer = [0]", "outer = [0, 1]")], PIECES + "needs an i64 argument an outer index, and a"),
    ([("outer = [0]", "outer = [3]")], PIECES + "needs indices of its points in 'outer'"),
    ([("outer = [0]", "outer = [-1]")], PIECES + "attribute 'outer' element 0 must be at least 0"),
    ([("disjoint = 1 : i64, ", "")], PIECES + "needs the attribute 'disjoint'"),
    ([("disjoint = 1", "disjoint = 2")], PIECES + "attribute 'disjoint' must be 0 or 1, not 2"),
    (
        [(STRIDES, STRIDES.replace("2, 1>", "3, 0>"))],
        "'fsc.piece' op needs a step of source, rank and slot for each of its counts",
    ),
    (
        [("}) {disjoint", f"{POINT}}}) {{disjoint")],
        "'fsc.point' op must stand inside fsc.shuffle, fsc.into or fsc.node_points",
    ),
]
ELSEWHERE = [
    (
        '%0 = arith.constant 0 : i64\n"fsc.piece"(%0, %0, %0) {operandSegmentSizes = '
        "array<i32: 1, 1, 1, 0, 0, 0, 0, 0>} : (i64, i64, i64) -> ()",
        "fsc.node_pieces",
    ),
    ('%0 = "fsc.node_exchange"() : () -> !fsc.counts', "fsc.node"),
    (
        '%0 = arith.constant dense<0.0> : vector<8xf32>\n"fsc.store_field"(%0) {field = "x"} : '
        "(vector<8xf32>) -> ()",
        "fsc.node_copy",
    ),
    (
        "%0 = arith.constant dense<0.0> : vector<8xf32>\n"
        '"fsc.made"(%0) {field = "x"} : (vector<8xf32>) -> ()',
        "fsc.node_reduce",
    ),
]


# (old text of moe's tiles, another one, what the verifier says)
def test_both_stages_verify() -> None:
    for after in ("fuse-node", "choose-tiles"):
        assert round_trips(module(after))
    assert round_trips(split())


@pytest.mark.parametrize(("edits", "reason"), FUSED)
def test_what_is_fused(edits: list[tuple[str, str]], reason: str) -> None:
    assert reason in error_of(edited(module("fuse-node"), *edits))


@cache
def split() -> str:
    return compile_to_ir(checked_example("vit_patches"), after="split-affine").text


@pytest.mark.parametrize(("edits", "reason"), PIECED)
def test_what_is_split(edits: list[tuple[str, str]], reason: str) -> None:
    assert reason in error_of(edited(split(), *edits))


def test_pieces_have_the_strides_of_their_points() -> None:
    text = split()
    begin = text.index('"fsc.piece"')
    piece = text[begin : text.index("\n", begin)]
    short = '"fsc.piece"(%12, %12, %12) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0, 0>}'
    without = text.replace(piece, f"{short} : (i64, i64, i64) -> ()")
    assert PIECES + "needs pieces with the 1 strides of its points" in error_of(without)
    assert PIECES + "needs an i64 argument an outer index, and" in error_of(text.replace(piece, ""))


@pytest.mark.parametrize(
    ("operands", "reason"),
    [
        ("%given, %1", "needs the points of a fsc.node_points"),
        ("%0, %told", "needs the counts of all ranks, which a fsc.node_exchange gives"),
    ],
)
def test_pieces_of_what_no_operation_gives(operands: str, reason: str) -> None:
    begin = '"fsc.node"() ({\n'
    text = edited(
        split(),
        (begin, begin + "^bb0(%given: !fsc.points, %told: !fsc.counts):\n"),
        ('"fsc.node_pieces"(%0, %1)', f'"fsc.node_pieces"({operands})'),
    )
    assert PIECES + reason in error_of(text)


def test_pieces_of_a_relation_that_is_unfit() -> None:
    """Verifiers read what is verified later, or has been found wrong."""
    point = '"fsc.point"(%25, %15, %21, %11) {operandSegmentSizes = array<i32: 1, 1, 1, 1>} : '
    text = edited(split(), (point + "(i64, i64, i64, i64) -> ()\n    }) {fanout", "}) {fanout"))
    assert "fsc.point at the end of region 1" in error_of(text)


def test_pieces_that_nothing_is_looked_up_for() -> None:
    """What is kept of them from call to call says nothing of segments that share a cell."""
    text = compile_to_ir(checked_example("ulysses"), after="split-affine").text
    point = '"fsc.point"('
    assert text.count(point) == 2
    text = text.replace(point, f'"fsc.apart"() : () -> ()\n{point}')
    assert PIECES + "must look up an input where runs check that segments are" in error_of(text)


def test_kernels_of_one_node_check_what_the_relation_does() -> None:
    text = compile_to_ir(checked_example("kv_pages")).text
    apart = '"fsc.apart"() : () -> ()'
    before, between, behind = text.split(apart)
    reason = "'fsc.node_points' op needs fsc.apart exactly where the kernel of its relation has it"
    assert reason in error_of(before + apart + between + behind)
    assert reason in error_of(before + between + apart + behind)


CAST = [
    ("shifts = [5.0", "shifts = [2.5"),
    ("factors = [2.0", "factors = [4.0"),
]


def test_rows_are_cast_as_the_shuffle_says() -> None:
    normalised = routed("x : f32[hidden]", "x : f32[hidden]", "(x - 0.5) / 0.5", combine="")
    (checked,) = check_source(SourceFile("normalised.fsc", normalised), {}).shuffles
    before, fused = compile_to_ir(checked, after="fuse-node").text.split('"fsc.node_copy"')
    reason = "'fsc.node_copy' op must cast the fields that its shuffle casts, and as it says"
    for edit in CAST:
        assert reason in error_of(f'{before}"fsc.node_copy"{edited(fused, edit)}')
        assert reason in error_of(f'{edited(before, edit)}"fsc.node_copy"{fused}')


def test_rows_come_back_as_those_of_the_path_do() -> None:
    summed = routed("x : f32[hidden]", "x : bf16[hidden]", "x", combine="reduce sum")
    (checked,) = check_source(SourceFile("summed.fsc", summed), {}).shuffles
    text = compile_to_ir(checked, after="fuse-node").text
    begin, end = text.rindex('  "fsc.path"('), text.index('  "fsc.node"(')
    dispatch, path, node = text[:begin], text[begin:end], text[end:]
    reason = NODE + "must make rows one as the fsc.path for combine does"
    sums, maxima = 'kind = "sum"', 'kind = "max"'
    assert reason in error_of(dispatch + path + edited(node, (sums, maxima)))
    assert reason in error_of(dispatch + edited(path, (sums, maxima)) + node)
    assert NODE + "needs a way back exactly where there is a fsc.path" in error_of(dispatch + node)


def test_pieces_of_a_packed_target() -> None:
    pieces = '"fsc.node_pieces"(%0, %2) ({\n}) {disjoint = 1 : i64}'
    text = edited(module("split-affine"), (ASSIGNED, pieces))
    assert PIECES + "must not take keys of a packed target for slots" in error_of(text)


@pytest.mark.parametrize("edit", QUANTISED)
def test_what_is_quantised(edit: tuple[str, str]) -> None:
    text = compile_to_ir(moe_fp8(), after="fuse-node").text
    assert "'fsc.quantise' op needs as many values, and one f32" in error_of(edited(text, edit))


@pytest.mark.parametrize(("text", "place"), ELSEWHERE)
def test_what_stands_elsewhere(text: str, place: str) -> None:
    assert f"must stand directly inside {place}" in error_of(
        at_the_end(module("form-slices"), text)
    )


def test_what_is_fused_twice() -> None:
    text = at_the_end(module("fuse-node"), EMPTY)
    assert NODE + "must be the only one of its module" in error_of(text)


def test_a_tile_of_nothing() -> None:
    text = at_the_end(module("form-slices"), TILE)
    assert TRITON + "must stand inside fsc.node" in error_of(text)


def test_other_kernels_once_it_has_its_own() -> None:
    text = module("specialise-kernels")
    edit = ("ragged = 0 : i64, relation", 'node = ["cuda"], ragged = 0 : i64, relation')
    assert "must not ask for other kernels once it has its own" in error_of(edited(text, edit))
