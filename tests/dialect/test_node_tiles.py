"""What tiles of the kernels of one node refuse, on modules that the passes have made."""

from __future__ import annotations

import re
from functools import cache

import pytest

from fuscoc.driver import check_source
from fuscoc.pipeline import compile_to_ir
from fuscoc.source import SourceFile
from tests.casts.specs import routed
from tests.cuda.dense_cases import BOXES
from tests.dialect.support import edited, error_of
from tests.specs import checked_example, moe, moe_fp8

NODE, CUDA, TRITON = "'fsc.node' op ", "'fsc.cuda_tile' op ", "'fsc.triton_tile' op "
FIELD = '{buffer_at = 0 : i64, field = "x", part_bytes = 14336 : i64, word_bytes = 16 : i64}'


@cache
def module() -> str:
    return compile_to_ir(moe(), after="choose-tiles").text


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
    ("plan_tiles = 1", "plan_tiles = 256", TRITON + "must not plan more than 32767 points"),
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


@pytest.mark.parametrize(("old", "new", "reason"), TILED)
def test_tiles(old: str, new: str, reason: str) -> None:
    assert reason in error_of(edited(module(), (old, new)))


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
    text = module()
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
    ("few_lines = 512", "few_lines = 768", "a power of two for 'few_lines' of 'pixels', not 768"),
    ("few_lines = 512", "few_lines = 2048", "of as many lines as 'few_lines' of 'pixels'"),
    (" lines = 256", " lines = 255", "needs a power of two for 'lines' of 'pixels', not 255"),
    ("item_lines = 1024", "item_lines = 1000", "items of as many lines as 'lines' of 'pixels'"),
]


@pytest.mark.parametrize(("old", "new", "reason"), PIECE_TILES)
def test_tiles_of_pieces(old: str, new: str, reason: str) -> None:
    text = compile_to_ir(checked_example("vit_patches"), after="choose-tiles").text
    assert reason in error_of(edited(text, (old, new)))


HOLDING = "must not hold looked-up items, or words that are no lines"


@pytest.mark.parametrize(
    ("example", "old", "new", "reason"),
    [
        ("redistribute", "holding_warps = 8", "holding_warps = 3", "a power of two for 'holding"),
        ("redistribute", "holding_warps = 8", "holding_warps = 64", "must not put more than 32"),
        ("redistribute", "item_lines = 1024", "item_lines = 3072", "power of two for 'item_lines'"),
        ("kv_pages", "copy_warps = 4", "copy_warps = 4 : i64, holding_warps = 8", HOLDING),
        (
            "ulysses",
            " lines = 1024 : i64, word_bytes = 16",
            " lines = 512 : i64, word_bytes = 4",
            HOLDING,
        ),
    ],
)
def test_programs_that_hold_items(example: str, old: str, new: str, reason: str) -> None:
    text = compile_to_ir(checked_example(example), after="choose-tiles").text
    at = text.index('"fsc.triton_piece_tile"')
    assert reason in error_of(text[:at] + edited(text[at:], (old, new)))


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
