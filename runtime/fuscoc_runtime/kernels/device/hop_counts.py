"""What a rank counts of its points before they leave: for every tile and node, in the slab that
goes there, the rows of each of the node's keys, and of a point those before it. Who gets a slab has
only sums to make of it, and no point to look at, before ranks tell each other how many rows they
have.

A compact target has one row for a segment and a rank; columns are those of `plan`, but that the
ranks' are behind as many keys as any node has.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync = load("words"), load("vectors"), load("sync")
slabs, of_tiles, plan = load("slabs"), load("tiles"), load("plan")

CLEARED = tl.constexpr(128)  # counts at once


@triton.jit
def destination(call, point, exists, num_points, given, relation: tl.constexpr):
    """The rank and key of points of this rank, -1 of what goes nowhere."""
    if relation is None:
        rank = tl.load(sync.array(call, words.OWN_RANKS, tl.int64) + point, mask=exists, other=-1)
        key = tl.load(sync.array(call, words.OWN_KEYS, tl.int64) + point, mask=exists, other=-1)
    else:
        rank, key, _ = relation(tl.minimum(point, num_points - 1), given)
    rank = tl.where(exists, rank, -1)
    return rank, tl.where(rank >= 0, key, -1)


@triton.jit
def count(
    call, index, num_sources, given, relation: tl.constexpr, fanout: tl.constexpr,
    tile: tl.constexpr, tiles: tl.constexpr, compact: tl.constexpr,
):  # fmt: skip
    """All that is counted of the tiles that the planner's program with this ``index`` has of the
    segments of a node."""
    columns = sync.word(call, words.SLAB_COLUMNS)
    for node in range(sync.word(call, words.NUM_NODES)):
        counts = slabs.counts_of(call, slabs.leaving(call, node), index)
        for first in range(0, columns, CLEARED):
            column = first + tl.arange(0, CLEARED)
            tl.store(counts + column, tl.full((CLEARED,), 0, tl.int16), mask=column < columns)
    for number in range(tiles):
        tl.debug_barrier()  # what was counted before is there
        count_tile(
            call, index, number, index * tiles + number, num_sources, given, relation, fanout, tile,
            tiles, compact,
        )  # fmt: skip


@triton.jit
def count_tile(
    call, index, number, tile_index, num_sources, given, relation: tl.constexpr,
    fanout: tl.constexpr, tile: tl.constexpr, tiles: tl.constexpr, compact: tl.constexpr,
):  # fmt: skip
    """Of one tile, the ``number``-th of its program."""
    size: tl.constexpr = tile[0] * tile[1]
    num_points = num_sources * fanout
    point, exists = of_tiles.tile_points(tile_index, num_sources, fanout, tile)
    rank, key = destination(call, point, exists, num_points, given, relation)
    goes = rank >= 0
    num_ranks = sync.word(call, words.NUM_RANKS)
    slab = slabs.leaving(call, tl.where(goes, rank // num_ranks, 0))
    numbers = sync.array(call, words.NODE_KEYS, tl.int64)
    counts = slabs.counts_of(call, slab, index)
    of_key = counts + tl.load(numbers + key, mask=goes, other=0)
    of_rank = counts + sync.word(call, words.SLAB_KEYS) + rank % num_ranks
    within = tl.full((size,), 0, tl.int32)
    rows = within
    if tiles > 1:
        within += tl.load(of_key, mask=goes & (number > 0), other=0).to(tl.int32)
        if compact:
            rows += tl.load(of_rank, mask=goes & (number > 0), other=0).to(tl.int32)
    place = tl.arange(0, size)
    is_first = goes
    if compact:
        is_first = first_there(
            call, tile_index, place, rank, num_sources, given, relation, fanout, tile
        )
    chunk: tl.constexpr = min(size, plan.PAIRS // size)
    for first in range(0, size, chunk):
        other = first + tl.arange(0, chunk)
        to, their, opens = rank, key, is_first
        if chunk < size:  # once more, since a vector cannot be cut
            at, live = of_tiles.points_at(other.to(tl.int64), tile_index, num_sources, fanout, tile)
            to, their = destination(call, at, live, num_points, given, relation)
            if compact:
                opens = first_there(
                    call, tile_index, other, to, num_sources, given, relation, fanout, tile
                )
        before = (their[None, :] == key[:, None]) & (other[None, :] < place[:, None])
        within += vectors.total(before.to(tl.int32), 1)
        if compact:
            before = (other // tile[1])[None, :] < (place // tile[1])[:, None]
            before = before & opens[None, :] & (to[None, :] == rank[:, None])
            rows += vectors.total(before.to(tl.int32), 1)
    tl.store(slabs.within_of(call, slab, words.SLAB_WITHIN) + point, within.to(tl.int16), mask=goes)
    if compact:
        before = rows.to(tl.int16)
        tl.store(slabs.within_of(call, slab, words.SLAB_WITHIN_ROWS) + point, before, mask=goes)
    tl.debug_barrier()  # all have read what was counted before
    slabs.count_one(of_key, goes)
    if compact:
        slabs.count_one(of_rank, is_first)


@triton.jit
def first_there(
    call, tile_index, place, rank, num_sources, given, relation: tl.constexpr,
    fanout: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Which points at places of a tile are the first of their segments on their ranks."""
    lane = tl.arange(0, tile[1])
    source = tile_index * tile[0] + place.to(tl.int64) // tile[1]
    exists = (source < num_sources)[:, None] & (lane < fanout)[None, :]
    point = source[:, None] * fanout + lane[None, :]
    their, _ = destination(call, point, exists, num_sources * fanout, given, relation)
    same = (their == rank[:, None]) & (lane[None, :] < (place % tile[1])[:, None])
    return (rank >= 0) & (vectors.largest(same.to(tl.int32), 1) == 0)
