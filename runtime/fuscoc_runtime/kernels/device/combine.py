"""Combine: the transpose of dispatch, with a weighted sum in f32.

Where rows lie, a program sums the rows of a remote segment and pushes one partial row to the
segment's source; after a group of segments it sets the group's flag there. At the source the
partials are added to the rank's own rows as they are flagged. A program that would have to wait for
a flag reduces meanwhile, and the first programs do so anyway; reducing never waits, so every flag
comes. Terms are added in the order of the points and then of the ranks: results do not depend on
timing.

``zero()``, ``add_row(part, row, weight, sums)`` and ``store_sum(part, row, sums)`` are the
shuffle's own: they add up one part of a row, whose address they get.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync, points = load("words"), load("vectors"), load("sync"), load("points")


@triton.jit
def add_terms(
    part, rows, row_bytes: tl.constexpr, slots, bits, sums, add_row: tl.constexpr,
    fanout: tl.constexpr, lanes: tl.constexpr, weighted: tl.constexpr,
):  # fmt: skip
    """The rows in ``slots`` of this rank, times their weights."""
    for k in range(fanout):
        slot = vectors.pick(slots, k, lanes)
        if slot >= 0:
            weight = 1.0
            if weighted:
                weight = vectors.pick(bits, k, lanes).to(tl.float32, bitcast=True)
            sums = add_row(part, rows + slot.to(tl.int64) * row_bytes, weight, sums)
    return sums


@triton.jit
def staging(call, window, source_rank, source, row_bytes: tl.constexpr):
    """Where a window keeps what ``source_rank`` sends back for a segment of the window's rank."""
    index = source_rank * sync.word(call, words.MAX_SOURCES) + source
    return sync.word(call, window) + sync.word(call, words.STAGING_AT) + index * row_bytes


@triton.jit
def reduce(
    call, source_rank, source, rows, zero: tl.constexpr, add_row: tl.constexpr,
    store_sum: tl.constexpr, row_bytes: tl.constexpr, fanout: tl.constexpr,
    lanes: tl.constexpr, parts: tl.constexpr, weighted: tl.constexpr,
):  # fmt: skip
    """One partial row for a segment of another rank, if it has rows here."""
    codes, bits = points.sent_points(call, source_rank, source, fanout, lanes)
    slots = points.slots_here(call, codes)
    if vectors.largest(slots, 0) >= 0:
        to = staging(call, source_rank, sync.word(call, words.RANK), source, row_bytes)
        for part in range(parts):
            sums = add_terms(
                part, rows, row_bytes, slots, bits, zero(), add_row, fanout, lanes, weighted
            )
            store_sum(part, to, sums)


@triton.jit
def finalise(
    call, source, weights, rows, result, zero: tl.constexpr, add_row: tl.constexpr,
    store_sum: tl.constexpr, row_bytes: tl.constexpr, fanout: tl.constexpr,
    lanes: tl.constexpr, parts: tl.constexpr, weighted: tl.constexpr,
):  # fmt: skip
    """The result of a segment of this rank: its own rows, and a partial row of each other rank."""
    rank = sync.word(call, words.RANK)
    codes, bits = points.own_points(call, source, weights, fanout, lanes, weighted)
    slots = points.slots_here(call, codes)
    peers = tl.arange(0, words.MAX_RANKS)
    first = sync.array(call, words.FIRST_SLOTS, tl.int32) + source * words.MAX_RANKS
    num_ranks = sync.word(call, words.NUM_RANKS)
    there = tl.load(first + peers, mask=(peers < num_ranks) & (peers != rank), other=-1)
    for part in range(parts):
        sums = add_terms(
            part, rows, row_bytes, slots, bits, zero(), add_row, fanout, lanes, weighted
        )
        for peer in range(num_ranks):
            if vectors.pick(there, peer, words.MAX_RANKS) >= 0:
                row = staging(call, rank, peer, source, row_bytes)
                sums = add_row(part, row, 1.0, sums)
        store_sum(part, result + source * row_bytes, sums)


@triton.jit
def enter(call, epoch):
    """Wait until every peer has finished its last combine, so that its staging may be written."""
    rank = sync.word(call, words.RANK)
    if tl.program_id(0) == 0:
        sync.signal(call, words.BARRIER_AT, rank, epoch)
    sync.wait_for_all(call, words.BARRIER_AT, 1, 0, epoch, words.COMBINE_ENTER)


@triton.jit
def combine(
    call, num_sources, weights, rows, result, zero: tl.constexpr, add_row: tl.constexpr,
    store_sum: tl.constexpr, row_bytes: tl.constexpr, fanout: tl.constexpr,
    lanes: tl.constexpr, parts: tl.constexpr, weighted: tl.constexpr,
):  # fmt: skip
    state = sync.array(call, words.STATE, tl.int32)
    epoch = tl.load(state + words.COMBINE_EPOCH) + 1
    plans = tl.load(state + words.PLAN_EPOCH)
    # A plan since the last combine has already said that the peers are done.
    if plans == tl.load(state + words.COMBINE_SAW_PLAN):
        enter(call, epoch)
    rank = sync.word(call, words.RANK)
    max_sources = sync.word(call, words.MAX_SOURCES)
    size = sync.group_size(call, sync.word(call, words.COMBINE_GROUP))
    num_items = points.num_remote_items(call, size)
    num_groups = (num_sources + size - 1) // size
    reduces_first = tl.program_id(0) < sync.word(call, words.NUM_REDUCERS)
    group = num_groups
    if reduces_first == 0:
        group = sync.take(state, words.NEXT_GROUP)
    left = 1  # whether there may be something to reduce
    while (left == 1) | (group < num_groups):
        there = False
        if group < num_groups:
            if left == 1:
                there = sync.flagged_by_all(call, words.COMBINE_FLAGS_AT, max_sources, group, epoch)
            else:
                stage: tl.constexpr = words.COMBINE_GROUP_ROWS
                there = sync.wait_for_all(
                    call, words.COMBINE_FLAGS_AT, max_sources, group, epoch, stage
                )
                if there == 0:
                    group = num_groups
        if there:
            for source in range(group * size, tl.minimum(group * size + size, num_sources)):
                finalise(
                    call, source, weights, rows, result, zero, add_row, store_sum, row_bytes,
                    fanout, lanes, parts, weighted,
                )  # fmt: skip
            group = sync.take(state, words.NEXT_GROUP)
        elif left == 1:
            item = sync.take(state, words.NEXT_ITEM)
            if item < num_items:
                source_rank, index = points.remote_item(call, item)
                limit = tl.load(points.array_of_sources(call) + source_rank).to(tl.int64)
                for source in range(index * size, tl.minimum(index * size + size, limit)):
                    reduce(
                        call, source_rank, source, rows, zero, add_row, store_sum, row_bytes,
                        fanout, lanes, parts, weighted,
                    )  # fmt: skip
                if index * size < limit:
                    at = rank * max_sources + index
                    sync.signal_one(call, source_rank, words.COMBINE_FLAGS_AT, at, epoch)
            else:
                left = 0
                if reduces_first:
                    group = sync.take(state, words.NEXT_GROUP)
    if sync.leave(state, words.COMBINE_EPOCH, epoch):
        tl.store(state + words.COMBINE_SAW_PLAN, plans)
