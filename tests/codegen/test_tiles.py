"""Cutting a row: every element in exactly one tile, and never much more than a row."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fuscoc.codegen.tiles import (
    ACCESS_BYTES,
    BYTES_PER_LANE,
    LANES,
    MAX_TILES,
    MAX_WARPS,
    cut_row,
    warps_for,
)

ELEM_BYTES = st.sampled_from([1, 2, 4, 8])


@given(num_elems=st.integers(1, 300_000), elem_bytes=ELEM_BYTES)
def test_every_element_is_in_one_tile(num_elems: int, elem_bytes: int) -> None:
    cut = cut_row(num_elems, elem_bytes)
    place = cut.chunk * cut.num_chunks
    for tile in cut.tiles:
        assert tile.start == place
        assert tile.size & (tile.size - 1) == 0
        assert tile.limit == num_elems
        place += tile.size
    assert place >= num_elems
    assert all(not tile.masked for tile in cut.tiles[:-1])
    assert all(tile.start < num_elems for tile in cut.tiles)


@given(num_elems=st.integers(1, 300_000), elem_bytes=ELEM_BYTES)
def test_a_lane_holds_no_more_than_fits(num_elems: int, elem_bytes: int) -> None:
    cut = cut_row(num_elems, elem_bytes)
    most = MAX_WARPS * LANES * BYTES_PER_LANE
    assert cut.chunk * elem_bytes <= most
    held = sum(tile.size for tile in cut.tiles) * elem_bytes
    assert held <= most + most // 2
    assert len(cut.tiles) <= MAX_TILES
    wasted = held - (num_elems - cut.chunk * cut.num_chunks) * elem_bytes
    assert wasted <= max(held // 4, warps_for(num_elems * elem_bytes) * LANES * ACCESS_BYTES)


@given(row_bytes=st.integers(1, 1 << 20))
def test_warps(row_bytes: int) -> None:
    warps = warps_for(row_bytes)
    assert warps in (1, 2, 4, 8)
    assert warps == MAX_WARPS or warps * LANES * BYTES_PER_LANE >= row_bytes
    assert warps == 1 or warps // 2 * LANES * BYTES_PER_LANE < row_bytes


def test_a_row_of_four_vectors_a_lane_is_one_tile() -> None:
    (tile,) = cut_row(7168, 2).tiles
    assert (tile.size, tile.limit, tile.masked) == (8192, 7168, True)
    assert warps_for(7168 * 2) == 4
