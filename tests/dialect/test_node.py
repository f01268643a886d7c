"""What ``fsc.node`` and its tiles refuse, on modules that the passes have made."""

from __future__ import annotations

import re
from functools import cache

import pytest

from fuscoc.driver import check_source
from fuscoc.pipeline import compile_to_ir
from fuscoc.source import SourceFile
from tests.casts.specs import routed
from tests.cuda.dense_cases import BOXES
from tests.dialect.support import edited, error_of, round_trips
from tests.specs import checked_example, moe, moe_fp8

NODE, CUDA, TRITON = "'fsc.node' op ", "'fsc.cuda_tile' op ", "'fsc.triton_tile' op "
TILE = """"fsc.triton_tile"() {moved = [{align_bytes = 16 : i64,
    field = "x", part_elems = 8 : i64, pieces = [8 : i64]}], plan_block = 256 : i64,
    plan_keys = 8 : i64, plan_points = 128 : i64, plan_tiles = 1 : i64, plan_warps = 4 : i64,
    row_parts = 1 : i64, row_warps = 4 : i64, sorted_rows = 1 : i64, tile_rows = 1 : i64} : () -> ()
"""
ASSIGNED = '"fsc.node_assign"(%0, %2) {align = 128 : i64, compact = 0 : i64, padding = "fewest"}'
EMPTY = '"fsc.node"() ({\n^bb0:\n}) {printers = ["cuda"]} : () -> ()\n'
FIELD = '{buffer_at = 0 : i64, field = "x", part_bytes = 14336 : i64, word_bytes = 16 : i64}'
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
TILED = [
    ('"sm_80"', '"sm_90"', NODE + "must not have two tiles for the same kernels"),
    ('"sm_80"', '"sm_70"', CUDA + "attribute 'arch' must be one of sm_90, sm_80, not 'sm_70'"),
    ("plan_points = 128", "plan_points = 96", TRITON + "needs a power of two for 'plan_points'"),
    ("dispatch_warps = 16", "dispatch_warps = 33", CUDA + "must not put more than 32 warps into"),
    ("teams = ", "teams = 3", CUDA + "must not put more than 32 warps into a CTA"),
    ("dispatch_warps = 16", "dispatch_warps = 17", CUDA + "needs 243712 bytes of shared memory,"),
    ("dispatch_rows = 1", "dispatch_rows = 32", CUDA + "must not move a row a lane"),
    ("sorted_rows = 1", "sorted_rows = 512", CUDA + "must not sort rows but of one slot each"),
    ("combine_rows = 1", "combine_rows = 2", CUDA + "must not copy several rows a warp where"),
    ("buffer_at = 0", "buffer_at = 64", CUDA + "needs a multiple of 128 where 'x' begins"),
    ("buffer_at = 0", "buffer_at = 128", CUDA + "has no room in its buffer for the fields of"),
    ("buffer_bytes = 14336", "buffer_bytes = 14335", CUDA + "has no room in its buffer for the"),
    ("part_bytes = 14336", "part_bytes = 7168", CUDA + "does not move all of 'x'"),
    ("part_bytes = 14336", "part_bytes = 14352", CUDA + "moves more than 'x'"),
    ("team_warps = 7 : i64, teams = 4", "team_warps = 1 : i64, teams = 16", CUDA + "must have 15"),
    ("team_vectors = 2", "team_vectors = 3", CUDA + "must have 15 teams at most, and two vectors"),
    ("plan_points = 128", "plan_points = 4", TRITON + "needs programs of the planner that hold"),
    ("plan_keys = 8", "plan_keys = 512", TRITON + "must not take more counts at once than"),
    (
        "plan_warps = 4",
        "plan_warps = 64",
        TRITON + "must not put more than 32 warps into a program",
    ),
    ("tile_rows = 1", "tile_rows = 2", TRITON + "must not move several whole rows at once but to"),
    (
        "sorted_rows = 1 : i64, summed",
        "sorted_rows = 256 : i64, summed",
        TRITON + "must not sort rows that it moves one by one",
    ),
    ("part_bytes = 14336", "part_bytes = 14328", CUDA + "must not cut 'x' into words of 16 bytes"),
    ('field = "x", part_bytes', 'field = "y", part_bytes', CUDA + "needs the fields of a row in"),
    ("arriving = [", f"leaving = [{FIELD}], arriving = [", CUDA + "needs 'leaving' exactly where"),
    (
        'field = "x", part_elems = 17',
        'field = "y", part_elems = 17',
        TRITON + "needs the fields of",
    ),
    ("part_elems = 1792", "part_elems = 1791", TRITON + "does not move all of 'x'"),
    ("part_elems = 1792", "part_elems = 2049", TRITON + "needs pieces that make up a part of 'x'"),
    ("pieces = [2048]", "pieces = [2048, 2048]", TRITON + "needs pieces that make up a part of"),
    ("pieces = [2048]", "pieces = [1024]", TRITON + "needs pieces that make up a part of 'x'"),
    ("pieces = [2048]", "pieces = [2000]", TRITON + "needs a power of two for 'pieces' of 'x'"),
    (", summed = [{", ", moved_too = [{", TRITON + "has an unknown attribute 'moved_too'"),
]


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


@pytest.mark.parametrize(("old", "new", "reason"), TILED)
def test_tiles(old: str, new: str, reason: str) -> None:
    assert reason in error_of(edited(module("choose-tiles"), (old, new)))


@pytest.mark.parametrize(
    ("lanes", "reason"),
    [
        (16, "must move a row by a warp, or by each of 32 or 8 lanes of it"),
        (8, "must plan whole warps of rows"),
    ],
)
def test_so_many_lanes_move_rows(lanes: int, reason: str) -> None:
    """Those that also plan are whole warps."""
    text = compile_to_ir(checked_example("hash_buckets"), after="choose-tiles").text
    edit = "dispatch_rows = 32", f"dispatch_rows = {lanes}"
    assert CUDA + reason in error_of(edited(text, edit))


def test_sums_are_cut_only_where_there_are_some() -> None:
    text = module("choose-tiles")
    begin = text.index(", summed = [")
    end = text.index("]}]", begin) + len("]}]")
    assert TRITON + "needs 'summed' exactly where rows are" in error_of(text[:begin] + text[end:])


ENDS = [
    ("buffer_at = 0", "buffer_at = 1024", "stores 'x' from elsewhere than it is loaded to"),
    ("part_bytes = 288", "part_bytes = 292", "moves more than 'x'"),
]


def scattered() -> str:
    """Boxes in runs of 48 bytes and of 4, that go to places of their own."""
    (checked,) = check_source(SourceFile("boxes.fsc", BOXES), {}).shuffles
    return compile_to_ir(checked, after="choose-tiles").text


@pytest.mark.parametrize(("old", "new", "reason"), ENDS)
def test_both_ends_of_a_row_are_cut_alike(old: str, new: str, reason: str) -> None:
    text = scattered()
    leaving = text[text.index("leaving = [") : text.index("num_passes")]
    roomy = text.replace("buffer_bytes = 512", "buffer_bytes = 2048", 1)
    assert CUDA + reason in error_of(edited(roomy, (leaving, edited(leaving, (old, new)))))


def test_a_row_is_cast_whole() -> None:
    text = compile_to_ir(moe_fp8(), after="choose-tiles").text
    halves = edited(text, ("num_passes = 1", "num_passes = 2"))
    assert CUDA + "must not cast 'x' in parts" in error_of(halves)


APART = [
    ("buffer_at = 256", "buffer_at = 0", "must not cast 'x' in place"),
    ("buffer_at = 256", "buffer_at = 128", "has no room in its buffer for the fields of both ends"),
]


@pytest.mark.parametrize(("old", "new", "reason"), APART)
def test_what_gets_longer_has_a_place_of_its_own(old: str, new: str, reason: str) -> None:
    longer = routed("x : bf16[hidden]", "x : f32[hidden]", "x", combine="")
    (checked,) = check_source(SourceFile("longer.fsc", longer), {}).shuffles
    text = compile_to_ir(checked, after="choose-tiles").text
    assert CUDA + reason in error_of(edited(text, (old, new)))


def test_rows_are_read_in_words_of_their_runs() -> None:
    text = scattered()
    reason = "must not read 'mark' in words of 8 bytes"
    leaving = text[text.index("leaving = [") : text.index("num_passes")]
    head, mark = leaving.split('field = "mark"')
    wider = head + 'field = "mark"' + re.sub("word_bytes = [124]", "word_bytes = 8", mark)
    assert CUDA + reason in error_of(edited(text, (leaving, wider)))


@pytest.mark.parametrize(
    ("old", "tile"),
    [
        ('field = "pixels", word_bytes = 2', "'fsc.cuda_piece_tile' op "),
        ("lines = 256 : i64, word_bytes = 2", "'fsc.triton_piece_tile' op "),
    ],
)
def test_pieces_are_read_in_words_of_their_runs(old: str, tile: str) -> None:
    """Patches lie in runs of 42 bytes."""
    text = compile_to_ir(checked_example("vit_patches"), after="choose-tiles").text
    reason = "must not read 'pixels' in words of 4 bytes"
    assert tile + reason in error_of(edited(text, (old, old.replace("= 2", "= 4"))))


PIECE_TILES = [
    ("combine_warps = 28", "combine_warps = 33", "must not put more than 32 warps into a CTA"),
    ("combine_warps = 28", "combine_warps = 5", "needs warps that turn tiles, beside {"),
    ("dispatch_warps = 28", "dispatch_warps = 8", "needs warps that turn tiles, beside {"),
    (
        "tile_bytes = 43648",
        "tile_bytes = 43776",
        "needs 233088 bytes of shared memory, and has 232448",
    ),
    ("tile_bytes = 43648", "tile_bytes = 43600", "needs tiles of a multiple of 128 bytes"),
    (
        "tile_bytes = 43648 : i64, ",
        "",
        "needs 'tile_bytes' exactly where words of boxes are narrow",
    ),
    (
        "tile_bytes = 43648",
        "carried_bytes = 124800 : i64, tile_bytes = 43648",
        "must not carry runs beside 'tile_bytes' or an 'entry_group'",
    ),
    (
        "tile_bytes = 43648",
        "few_bytes = 124800 : i64, tile_bytes = 43648",
        "must not carry runs beside 'tile_bytes' or an 'entry_group'",
    ),
    ('field = "pixels", word_bytes', 'field = "other", word_bytes', "needs the fields of a row"),
    ('field = "pixels", lines', 'field = "other", lines', "needs the fields of a row in 'fields'"),
    ("copy_warps = 4", "copy_warps = 3", "needs a power of two for 'copy_warps', not 3"),
    ("copy_warps = 4", "copy_warps = 64", "must not put more than 32 warps into a program"),
    ("plan_warps = 1", "plan_warps = 3", "needs a power of two for 'plan_warps', not 3"),
    ("plan_warps = 1", "plan_warps = 64", "must not put more than 32 warps into a program"),
    ("lines = 256", "lines = 255", "needs a power of two for 'lines' of 'pixels', not 255"),
    ("item_lines = 1024", "item_lines = 1000", "needs items of as many lines as 'pixels'"),
]


@pytest.mark.parametrize(("old", "new", "reason"), PIECE_TILES)
def test_tiles_of_pieces(old: str, new: str, reason: str) -> None:
    text = compile_to_ir(checked_example("vit_patches"), after="choose-tiles").text
    assert reason in error_of(edited(text, (old, new)))


@pytest.mark.parametrize(("leg", "warps"), [("dispatch_warps", 28), ("combine_warps", 24)])
def test_warps_beside_those_that_carry(leg: str, warps: int) -> None:
    """One marks slots there, and one sets flags back."""
    text = compile_to_ir(checked_example("redistribute"), after="choose-tiles").text
    edit = f"{leg} = {warps}", f"{leg} = 5"
    assert "needs a warp beside the 5 that carry" in error_of(edited(text, edit))


@pytest.mark.parametrize("name", ["triton_tile", "triton_piece_tile"])
def test_pieces_and_rows_have_tiles(name: str) -> None:
    """The ones inside a node, the others between nodes."""
    text = compile_to_ir(checked_example("vit_patches"), after="choose-tiles").text
    (tile,) = (line for line in text.splitlines() if f'"fsc.{name}"' in line)
    reason = "needs tiles of pieces where slots follow from these"
    assert NODE + reason in error_of(edited(text, (f"{tile}\n", "")))


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
