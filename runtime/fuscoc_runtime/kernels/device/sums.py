"""Sums of a segment's rows on this rank, by the shuffle's own functions (see ``combine``): a
partial row for the rank that it is of, or a part of its result.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync, points = load("words"), load("vectors"), load("sync"), load("points")


@triton.jit
def add_terms(
    part, rows, slots, bits, has, sums, add_row: tl.constexpr, fanout: tl.constexpr,
    lanes: tl.constexpr, weighted: tl.constexpr,
):  # fmt: skip
    """The rows in ``slots`` of this rank, times their weights; and whether there are any. Two at
    once: that nothing branches between them lets both be read before either is added."""
    exists = (slots >= 0).to(tl.int32)
    place = tl.where(exists == 1, vectors.running(exists, 0) - 1, -1)
    count = vectors.total(exists, 0)
    for first in range(0, count, 2):
        slot, weight = term(place, first, slots, bits, weighted)
        if first + 1 < count:
            second, other = term(place, first + 1, slots, bits, weighted)
            sums = add_row(part, rows, slot, weight, has, sums)
            has = has | 1
            sums = add_row(part, rows, second, other, has, sums)
        else:
            sums = add_row(part, rows, slot, weight, has, sums)
            has = has | 1
    return has, sums


@triton.jit
def term(place, number, slots, bits, weighted: tl.constexpr):
    """The slot of a point that is there, by its ``place`` among these, and its weight."""
    here = place == number
    weight = 1.0
    if weighted:
        weight = vectors.total(tl.where(here, bits, 0), 0).to(tl.float32, bitcast=True)
    return vectors.total(tl.where(here, slots, 0), 0).to(tl.int64), weight


@triton.jit
def staging(call, window, source_rank, source, partial_bytes: tl.constexpr):
    """Where a window keeps what ``source_rank`` sends back for a segment of the window's rank,
    which sends nothing to itself."""
    index = place_among_others(source_rank, window) * sync.word(call, words.STAGED)
    index += staged(call, source)
    return sync.window(call, window) + sync.word(call, words.STAGING_AT) + index * partial_bytes


@triton.jit
def staged(call, source):
    """Where staging has a segment: of this node one behind the other, then those of others, of
    which each has room for the places of a turn."""
    at = tl.cast(source, tl.int64)  # it may be the place that a constant says
    if sync.word(call, words.NUM_NODES) > 1:
        stride, room = sync.word(call, words.STRIDE), sync.word(call, words.STAGED_PLACES)
        own, node, place = sync.word(call, words.NODE), source // stride, source % stride
        others = stride + place_among_others(node, own) * room + place % room
        at = tl.where(node == own, place, others)
    return at


@triton.jit
def place_among_others(peers, rank):
    """How many of the ranks but ``rank`` are before each of these."""
    return peers - (peers > rank).to(tl.int64)


@triton.jit
def reduce(
    call, source_rank, source, rows, zero: tl.constexpr, add_row: tl.constexpr,
    store_partial: tl.constexpr, partial_bytes: tl.constexpr, fanout: tl.constexpr,
    lanes: tl.constexpr, parts: tl.constexpr, weighted: tl.constexpr,
):  # fmt: skip
    """One partial row for a segment of another rank, if it has rows here."""
    codes, bits = points.sent_points(call, source_rank, source, fanout, lanes)
    slots = points.slots_here(call, codes)
    if vectors.largest(slots, 0) >= 0:
        to = staging(call, source_rank, sync.word(call, words.RANK), source, partial_bytes)
        for part in range(parts):
            has = tl.full((), 0, tl.int32)
            has, sums = add_terms(
                part, rows, slots, bits, has, zero(), add_row, fanout, lanes, weighted
            )
            store_partial(part, to, sums)


@triton.jit
def sum_here(
    call, part, source, slots, bits, there, rows, zero: tl.constexpr, add_row: tl.constexpr,
    add_partial: tl.constexpr, partial_bytes: tl.constexpr, fanout: tl.constexpr,
    lanes: tl.constexpr, weighted: tl.constexpr,
):  # fmt: skip
    """A part of the sum of a segment's rows on this rank, and of a partial row of each other."""
    rank = sync.word(call, words.RANK)
    has = tl.full((), 0, tl.int32)
    has, sums = add_terms(part, rows, slots, bits, has, zero(), add_row, fanout, lanes, weighted)
    for peer in range(sync.word(call, words.NUM_RANKS)):
        if vectors.pick(there, peer, words.MAX_RANKS) >= 0:
            sums = add_partial(part, staging(call, rank, peer, source, partial_bytes), has, sums)
            has = has | 1
    return has, sums
