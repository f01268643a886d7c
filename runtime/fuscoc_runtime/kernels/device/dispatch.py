"""Dispatch: each row is read once and stored once to every remote rank that needs it, straight into
the lowest of its final slots there; the receiver fills the further slots from it.

The first programs send: a group of segments, then its flag at every peer. The others expand: this
rank's own rows, then remote rows as they are flagged, one group at a time so that the work ends
evenly. Senders never wait, and join the others when they have finished.

``load_source(part, source, cell)``, ``load_row(part, base, at, slot)`` and ``store_row(part, base,
at, slot, tiles)`` are the shuffle's own: they move one part of all fields. With ``tile_rows`` above
1 a segment has one destination, nothing has further slots, and the functions are those of ``many``.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync, points = load("words"), load("vectors"), load("sync"), load("points")
many, slabs = load("many"), load("slabs")


@triton.jit
def send(
    call, begin, size, num_sources, weights, source_fields, rows_at, load_source: tl.constexpr,
    store_row: tl.constexpr, fanout: tl.constexpr, lanes: tl.constexpr, parts: tl.constexpr,
    weighted: tl.constexpr, everywhere: tl.constexpr, strided: tl.constexpr,
    cell_of: tl.constexpr,
):  # fmt: skip
    """Rows of segments from ``begin`` on, up to ``size`` of them, and their points to the other
    ranks; ``everywhere``: rows to this one, too."""
    rank = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    for source in range(begin, tl.minimum(begin + size, num_sources)):
        cell = cell_of(call, source, fanout, strided)
        codes, bits = points.own_points(call, source, weights, fanout, lanes, weighted)
        first = sync.array(call, words.FIRST_SLOTS, tl.int32) + source * words.MAX_RANKS
        peers = tl.arange(0, words.MAX_RANKS)
        slots = tl.load(first + peers, mask=peers < num_ranks, other=-1)
        goes = vectors.largest(tl.where((peers == rank) & (not everywhere), -1, slots), 0) >= 0
        points.send_points(call, source, codes, bits, fanout, lanes)
        if goes:
            for part in range(parts):
                tiles = load_source(part, source_fields, cell)
                for step in range(0 if everywhere else 1, num_ranks):
                    peer = (rank + step) % num_ranks
                    slot = vectors.pick(slots, peer, words.MAX_RANKS)
                    if slot >= 0:
                        store_row(part, sync.window(call, peer), rows_at, slot.to(tl.int64), tiles)


@triton.jit
def expand_own(
    call, source, source_fields, rows_at, load_source: tl.constexpr, store_row: tl.constexpr,
    fanout: tl.constexpr, lanes: tl.constexpr, parts: tl.constexpr, strided: tl.constexpr,
    cell_of: tl.constexpr,
):  # fmt: skip
    """A row of this rank into all its slots here."""
    cell = cell_of(call, source, fanout, strided)
    codes, _ = points.own_points(call, source, 0, fanout, lanes, False)
    slots = points.slots_here(call, codes)
    if vectors.largest(slots, 0) >= 0:
        for part in range(parts):
            tiles = load_source(part, source_fields, cell)
            store_all(call, part, slots, tiles, rows_at, store_row, fanout, lanes)


@triton.jit
def expand_sent(
    call, source_rank, source, rows_at, load_row: tl.constexpr, store_row: tl.constexpr,
    fanout: tl.constexpr, lanes: tl.constexpr, parts: tl.constexpr,
):  # fmt: skip
    """A row that has come from another rank into its further slots here."""
    codes, _ = points.sent_points(call, source_rank, source, fanout, lanes)
    slots = points.slots_here(call, codes)
    first = vectors.smallest(tl.where(slots >= 0, slots, 2**31 - 1), 0)
    slots = tl.where(slots == first, -1, slots)
    if vectors.largest(slots, 0) >= 0:
        window = sync.window(call, sync.word(call, words.RANK))
        for part in range(parts):
            tiles = load_row(part, window, rows_at, first.to(tl.int64))
            store_all(call, part, slots, tiles, rows_at, store_row, fanout, lanes)


@triton.jit
def store_all(
    call, part, slots, tiles, rows_at, store_row: tl.constexpr, fanout: tl.constexpr,
    lanes: tl.constexpr,
):  # fmt: skip
    window = sync.window(call, sync.word(call, words.RANK))
    for k in range(fanout):
        slot = vectors.pick(slots, k, lanes)
        if slot >= 0:
            store_row(part, window, rows_at, slot.to(tl.int64), tiles)


@triton.jit
def dispatch(
    call, num_sources, ticket, weights, source_fields, rows_at, load_source: tl.constexpr,
    store_row: tl.constexpr, fanout: tl.constexpr, lanes: tl.constexpr, parts: tl.constexpr,
    weighted: tl.constexpr, load_row: tl.constexpr = None, strided: tl.constexpr = False,
    tile_rows: tl.constexpr = 1, cells: tl.constexpr = 0,
    cell_of: tl.constexpr = points.cell_of, across: tl.constexpr = False, first=0, end=0,
):  # fmt: skip
    """``cell_of`` says where a segment is read; ``cells``, of a tile of them: see ``many.copy``.
    ``across`` nodes the segments are those that move when places from ``first`` to ``end`` have
    come, of every rank of the node: see `slabs.taken_on`. With the last ones the call ends."""
    sync.follow()
    state = sync.array(call, words.STATE, tl.int32)
    epoch = tl.load(state + words.PLAN_EPOCH) + 1
    num_sources = points.own_sources(call, num_sources)
    count = num_sources
    most = points.most_sources(call)
    ends = True
    if across:
        ends = slabs.is_last(call, end)
        if ends & (sync.word(call, words.RECEIPTS_TRAVEL) == 0):  # else what is behind them tells
            slabs.tell_exchange(call, 1)
        count = tl.where(count > 0, slabs.num_taken_on(call, first, end), 0)
        most = tl.where(most > 0, slabs.num_taken_on(call, first, end), 0)
    rank = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    max_sources = sync.word(call, words.MAX_SOURCES)
    size = sync.group_size(call, sync.word(call, words.DISPATCH_GROUP))
    if tile_rows > 1:
        size = tile_rows
    num_groups = (count + size - 1) // size
    senders = sync.word(call, words.NUM_SENDERS)
    sends = (tl.program_id(0) < senders) & (num_ranks > 1)
    if sends & (sync.aborted(call) == 0):
        for group in range(tl.program_id(0), num_groups, senders):
            begin = source_of(call, group * size, across, first, end)
            if tile_rows > 1:
                many.move(
                    call, begin, tl.minimum(begin + size, num_sources), source_fields, rows_at,
                    load_source, store_row, True, tile_rows, cells,
                )  # fmt: skip
            else:
                send(
                    call, begin, size, num_sources, weights, source_fields, rows_at, load_source,
                    store_row, fanout, lanes, parts, weighted, False, strided, cell_of,
                )  # fmt: skip
            sync.signal(call, words.DISPATCH_FLAGS_AT, rank * max_sources + begin // size, epoch)

    num_items = num_groups + points.num_remote_items(call, most, size)
    flags = sync.section(call, rank, words.DISPATCH_FLAGS_AT, tl.int32)
    takes = (num_ranks > 1) | (num_items > tl.num_programs(0))
    item = sync.first_item(state, words.NEXT_ITEM, takes)
    while item < num_items:
        if item < num_groups:
            begin = source_of(call, item * size, across, first, end)
            limit = tl.minimum(begin + size, num_sources)
            if tile_rows > 1:
                many.move(
                    call, begin, limit, source_fields, rows_at, load_source, store_row, False,
                    tile_rows, cells,
                )  # fmt: skip
            else:
                for source in range(begin, limit):
                    expand_own(
                        call, source, source_fields, rows_at, load_source, store_row, fanout,
                        lanes, parts, strided, cell_of,
                    )  # fmt: skip
        else:
            source_rank, group = points.remote_item(call, item - num_groups)
            begin = source_of(call, group * size, across, first, end)
            limit = points.sources_of(call, source_rank)
            if begin < limit:
                flag = flags + source_rank * max_sources + begin // size
                stage: tl.constexpr = words.DISPATCH_GROUP_ROWS
                there = sync.wait(call, flag, epoch, stage, source_rank, begin // size)
                if (tile_rows == 1) & (fanout > 1):  # others have no further slots
                    limit = tl.where(there, tl.minimum(begin + size, limit), 0)
                    for source in range(begin, limit):
                        expand_sent(
                            call, source_rank, source, rows_at, load_row, store_row, fanout,
                            lanes, parts,
                        )  # fmt: skip
        item = sync.next_item(state, words.NEXT_ITEM, num_items, takes)
    if sync.leave(state, "gpu") & ends:
        sync.end_dispatch(call, epoch, ticket)


@triton.jit
def source_of(call, index, across: tl.constexpr, first, end):
    """The segment at an index of those that a kernel moves."""
    if across:
        index = slabs.taken_on(call, first, end, index)
    return index
