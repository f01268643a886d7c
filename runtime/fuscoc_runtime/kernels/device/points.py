"""The points of source segments: slot codes and weights, at home and in the windows of others."""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync = load("words"), load("vectors"), load("sync")


@triton.jit
def own_points(call, source, weights, fanout: tl.constexpr, lanes: tl.constexpr, weighted):
    """Slot codes [lanes] of a segment of this rank, and their weights' bits; -1 beyond fanout."""
    lane = tl.arange(0, lanes)
    at = source * fanout + lane
    codes = tl.load(sync.array(call, words.CODES, tl.int32) + at, mask=lane < fanout, other=-1)
    bits = tl.full((lanes,), 0, tl.int32)
    if weighted:
        weights = weights.to(tl.pointer_type(tl.int32))
        bits = tl.load(weights + at, mask=lane < fanout, other=0)
    return codes, bits


@triton.jit
def cell_of(call, source, fanout: tl.constexpr, strided: tl.constexpr):
    """Where a segment lies in the source: its first cell; if its runs are ``strided`` as the
    relation says, as a tuple with the place of the first stride, and how far the next ones are."""
    cell = tl.load(sync.array(call, words.SRC_OFFSETS, tl.int64) + source * fanout)
    if strided:
        strides = sync.array(call, words.SRC_STRIDES, tl.int64) + source * fanout
        cell = (cell, strides, sync.word(call, words.NUM_POINTS))
    return cell


@triton.jit
def points_at(call, window, source_rank, source, fanout: tl.constexpr):
    """Where a window keeps the points of a segment of ``source_rank``."""
    index = source_rank * sync.word(call, words.MAX_SOURCES) + source
    return sync.section(call, window, words.POINTS_AT, tl.int64) + index * fanout


@triton.jit
def codes_at(call, window, source_rank):
    """Where a window keeps the slot codes of ``source_rank`` if segments have one point each and no
    weight, and are moved many at once."""
    codes = sync.section(call, window, words.POINTS_AT, tl.int32)
    return codes + source_rank * sync.word(call, words.MAX_SOURCES)


@triton.jit
def send_points(call, source, codes, bits, fanout: tl.constexpr, lanes: tl.constexpr):
    """Tell every peer the points of a segment of this rank."""
    rank = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    lane = tl.arange(0, lanes)
    both = (bits.to(tl.int64) << 32) | (codes.to(tl.int64) & 0xFFFFFFFF)
    for step in range(1, num_ranks):
        to = points_at(call, (rank + step) % num_ranks, rank, source, fanout)
        tl.store(to + lane, both, mask=lane < fanout)


@triton.jit
def sent_points(call, source_rank, source, fanout: tl.constexpr, lanes: tl.constexpr):
    """Slot codes and weights' bits of a segment of another rank, as it has told this one."""
    lane = tl.arange(0, lanes)
    at = points_at(call, sync.word(call, words.RANK), source_rank, source, fanout)
    both = tl.load(at + lane, mask=lane < fanout, other=-1)
    return both.to(tl.int32), (both >> 32).to(tl.int32)


@triton.jit
def slots_here(call, codes):
    """Slots of the points that go to this rank; -1 for the others."""
    here = (codes >= 0) & ((codes >> words.SLOT_BITS) == sync.word(call, words.RANK))
    return tl.where(here, codes & words.SLOT_MASK, -1)


@triton.jit
def remote_item(call, item):
    """(source rank, index) of a remote item: round-robin over the other ranks, next one first."""
    others = sync.word(call, words.NUM_RANKS) - 1
    rank = (sync.word(call, words.RANK) + 1 + item % others) % (others + 1)
    return rank, item // others


@triton.jit
def most_sources(call):
    """The most source segments of any rank."""
    return tl.load(sync.array(call, words.ROUTING, tl.int32) + words.MOST_SOURCES).to(tl.int64)


@triton.jit
def num_remote_items(call, most, size):
    """Items of ``size`` segments, where a rank has at ``most`` so many; ranks with fewer have some
    that do not exist."""
    return (most + size - 1) // size * (sync.word(call, words.NUM_RANKS) - 1)


@triton.jit
def own_sources(call, num_sources):
    """The source segments of this rank; none if the call is not carried out."""
    return tl.minimum(num_sources, sources_of(call, sync.word(call, words.RANK)))


@triton.jit
def sources_of(call, rank):
    """Those of a rank, as planned."""
    return tl.load(sync.array(call, words.ROUTING, tl.int32) + rank + words.SOURCES).to(tl.int64)
