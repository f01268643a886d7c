"""Tiles of points, which programs plan one after the other: which points these are, where they go,
and which should go somewhere that does not exist.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync = load("words"), load("vectors"), load("sync")


@triton.jit
def points_at(place, tile_index, num_sources, fanout: tl.constexpr, tile: tl.constexpr):
    """The points at places of a tile of [segments, padded fan-out]: indices, and which exist."""
    source = tile_index * tile[0] + place // tile[1]
    k = place % tile[1]
    return source * fanout + k, (source < num_sources) & (k < fanout)


@triton.jit
def tile_points(tile_index, num_sources, fanout: tl.constexpr, tile: tl.constexpr):
    """All points of a tile."""
    place = tl.arange(0, tile[0] * tile[1]).to(tl.int64)
    return points_at(place, tile_index, num_sources, fanout, tile)


@triton.jit
def tile_of(number, tiles: tl.constexpr):
    """The index of a tile of this program, which has so many."""
    return tl.program_id(0).to(tl.int64) * tiles + number


@triton.jit
def load_keys(call, point, live):
    """Keys of points of a tile, -1 of those that go nowhere, their
    ranks, and which should go somewhere that does not exist."""
    key = tl.load(sync.array(call, words.KEYS, tl.int64) + point, mask=live, other=-1)
    rank = tl.load(sync.array(call, words.RANKS, tl.int64) + point, mask=live, other=-1)
    absent = is_absent(rank, key).to(tl.int32)
    return tl.where(rank >= 0, key, -1).to(tl.int32), rank, absent


@triton.jit
def is_absent(rank, key):
    """Whether points should go somewhere that does not exist. What the key was looked up by may be
    missing while the key read instead is -1."""
    return (rank < 0) & ((key != -1) | (rank == words.OUT_OF_RANGE))


@triton.jit
def note_absent(call, absent):
    """Count points whose key, or what it was looked up by, does not exist."""
    bad = vectors.total(absent, 0)
    if bad > 0:
        sync.note_dropped(call, words.BAD_KEYS, bad)
