"""Planning: from every point's key and rank to one slot code a point, the same on every run.

A slot is  start of its key at the destination
         + rows of that key sent by lower ranks
         + rows of that key in lower tiles of this rank
         + rows of that key at lower points of its tile,
all prefix sums, so the order in which programs run cannot matter. Counts are double-buffered by the
parity of the epoch. Having a peer's counts also means that the peer has finished everything before
this call, so its window may be written.

A compact target has one row for a segment and a rank. Its rows are counted like those of further
keys, one for each rank: the columns of a table of counts are the keys, then the ranks.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync = load("words"), load("vectors"), load("sync")

CHUNK = tl.constexpr(256)  # tiles that a program of `exchange` adds up at once


@triton.jit
def tile_points(num_sources, fanout: tl.constexpr, tile: tl.constexpr):
    """The points of this program's tile of [segments, padded fan-out]: indices, and which exist."""
    source = tl.program_id(0).to(tl.int64) * tile[0] + tl.arange(0, tile[0])
    k = tl.arange(0, tile[1])
    point = source[:, None] * fanout + k[None, :]
    live = (source[:, None] < num_sources) & (k[None, :] < fanout)
    size: tl.constexpr = tile[0] * tile[1]
    return tl.reshape(point, (size,)), tl.reshape(live, (size,))


@triton.jit
def count(
    call,
    num_sources,
    fanout: tl.constexpr,
    num_keys: tl.constexpr,
    keys: tl.constexpr,
    tile: tl.constexpr,
    compact: tl.constexpr,
):
    """Rows of every key in each tile, and of a point's key before it in its tile."""
    point, live = tile_points(num_sources, fanout, tile)
    key = tl.load(sync.array(call, words.KEYS, tl.int64) + point, mask=live, other=-1)
    rank = tl.load(sync.array(call, words.RANKS, tl.int64) + point, mask=live, other=-1)
    # What the key was looked up by may be missing while the key read instead is -1.
    absent = (rank < 0) & ((key != -1) | (rank == words.OUT_OF_RANGE))
    bad = vectors.total(absent.to(tl.int32), 0)
    if bad > 0:
        sync.note_dropped(call, words.BAD_KEYS, bad)
    key = tl.where(rank >= 0, key, -1).to(tl.int32)
    place = tl.arange(0, tile[0] * tile[1])
    before = (key[None, :] == key[:, None]) & (place[None, :] < place[:, None])
    within = vectors.total(before.to(tl.int32), 1)
    tl.store(sync.array(call, words.WITHIN, tl.int32) + point, within, mask=live)
    counts = tl.histogram(key, keys, mask=key >= 0)
    if compact:
        rank = tl.where(rank >= 0, rank, -1).to(tl.int32)
        segment = place // tile[1]
        same = rank[None, :] == rank[:, None]
        earlier = same & (segment[None, :] == segment[:, None]) & (place[None, :] < place[:, None])
        leads = (rank >= 0) & (vectors.total(earlier.to(tl.int32), 1) == 0)
        before = same & leads[None, :] & (segment[None, :] < segment[:, None])
        within = vectors.total(before.to(tl.int32), 1)
        tl.store(sync.array(call, words.WITHIN_ROWS, tl.int32) + point, within, mask=live)
        counts += tl.histogram(num_keys + rank, keys, mask=leads)
    tl.store(counts_of_tile(call, keys) + tl.arange(0, keys), counts)


@triton.jit
def counts_of_tile(call, keys: tl.constexpr):
    """This program's row of the counts of all tiles."""
    return sync.array(call, words.TILE_COUNTS, tl.int32) + tl.program_id(0).to(tl.int64) * keys


@triton.jit
def exchange(
    call,
    num_sources,
    columns: tl.constexpr,
    keys: tl.constexpr,
    tile: tl.constexpr,
    block: tl.constexpr,
):
    """Prefix sums over the tiles, and the counts of all ranks: a block of columns a program."""
    key = tl.program_id(0) * block + tl.arange(0, block)
    tile_counts = sync.array(call, words.TILE_COUNTS, tl.int32)
    num_tiles = (num_sources + tile[0] - 1) // tile[0]
    sums = tl.full((block,), 0, tl.int32)
    for start in range(0, num_tiles, CHUNK):
        index = start + tl.arange(0, CHUNK).to(tl.int64)
        at = tile_counts + index[:, None] * keys + key[None, :]
        mask = (index[:, None] < num_tiles) & (key[None, :] < columns)
        counts = tl.load(at, mask=mask, other=0)
        tl.store(at, sums[None, :] + vectors.running(counts, 0) - counts, mask=mask)
        sums += vectors.total(counts, 0)
    tell_counts(call, num_sources, key, sums, columns)


@triton.jit
def tell_counts(call, num_sources, column, counts, columns: tl.constexpr):
    """Exchange the counts of this program's columns with all peers, and wait for theirs."""
    epoch = tl.load(sync.array(call, words.STATE, tl.int32) + words.PLAN_EPOCH) + 1
    rank = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    mine = ((epoch & 1) * num_ranks + rank) * (columns + 1)
    blocks = tl.num_programs(0)
    # What is sent when nobody waits any more could be taken for an earlier call's.
    if sync.aborted(call) == 0:
        for peer in range(num_ranks):
            to = sync.section(call, peer, words.COUNTS_AT, tl.int32) + mine
            tl.store(to + column, counts, mask=column < columns)
            if tl.program_id(0) == 0:
                tl.store(to + columns, num_sources.to(tl.int32))
        sync.signal(call, words.PLAN_FLAGS_AT, rank * blocks + tl.program_id(0), epoch)
    sync.wait_for_all(call, words.PLAN_FLAGS_AT, blocks, tl.program_id(0), epoch, words.PLAN_PEERS)


@triton.jit
def assign(
    call,
    num_sources,
    key_to_rank,
    fanout: tl.constexpr,
    num_keys: tl.constexpr,
    columns: tl.constexpr,
    keys: tl.constexpr,
    align: tl.constexpr,
    tile: tl.constexpr,
    compact: tl.constexpr,
):
    """Slot codes of a tile; the first program also says what this rank receives."""
    me = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    capacity = sync.word(call, words.CAPACITY).to(tl.int32)
    failed = sync.aborted(call) != 0

    key = tl.arange(0, keys)
    counts = counts_of_ranks(call, columns)
    rows = tl.full((keys,), 0, tl.int32)
    base = tl.full((keys,), 0, tl.int32)
    for peer in range(num_ranks):
        theirs = tl.load(counts + peer * (columns + 1) + key, mask=key < columns, other=0)
        rows += theirs
        base += tl.where(peer < me, theirs, 0)
    owner = tl.load(key_to_rank + key, mask=key < num_keys, other=-1)
    aligned = (rows + align - 1) // align * align
    start = tl.full((keys,), 0, tl.int32)
    for rank in range(num_ranks):
        own = tl.where(owner == rank, aligned, 0)
        start += tl.where(owner == rank, vectors.running(own, 0) - own, 0)
    base += start

    if tl.program_id(0) == 0:
        own = owner == me
        place = vectors.running(own.to(tl.int32), 0) - 1
        room = tl.maximum(capacity - start, 0)
        here = tl.where(failed, 0, tl.minimum(rows, room))
        tl.store(sync.array(call, words.KEY_COUNTS, tl.int32) + place, here, mask=own)
        tl.store(sync.array(call, words.KEY_STARTS, tl.int32) + place, start, mask=own)
        store_sources(call, counts, columns, failed)

    # Through memory, since a vector cannot be indexed by another.
    tile_counts = counts_of_tile(call, keys)
    tl.store(tile_counts + key, tl.load(tile_counts + key) + base)
    tl.debug_barrier()
    point, live = tile_points(num_sources, fanout, tile)
    to = tl.load(sync.array(call, words.RANKS, tl.int64) + point, mask=live, other=-1)
    live = live & (to >= 0)
    of = tl.load(sync.array(call, words.KEYS, tl.int64) + point, mask=live, other=0)
    slot = tl.load(tile_counts + of, mask=live, other=0)
    slot += tl.load(sync.array(call, words.WITHIN, tl.int32) + point, mask=live, other=0)
    fits = live & (slot < capacity)
    row = slot
    if compact:
        row = tl.load(tile_counts + num_keys + to, mask=live, other=0)
        row += tl.load(sync.array(call, words.WITHIN_ROWS, tl.int32) + point, mask=live, other=0)
        fits = fits & (row < num_ranks * sync.word(call, words.MAX_SOURCES))
        fits = fits & (row < capacity)
    overflowed = vectors.total((live & (fits == 0)).to(tl.int32), 0)
    if (overflowed > 0) & (failed == 0):
        sync.note_dropped(call, words.OVERFLOWED, overflowed)
    fits = fits & (failed == 0)
    to = tl.where(fits, to, -1)
    if compact:
        for peer in range(num_ranks):
            index = sync.section(call, peer, words.ROW_INDEX_AT, tl.int64) + slot
            tl.store(index, row.to(tl.int64), mask=to == peer)
    code = tl.where(fits, (to.to(tl.int32) << words.SLOT_BITS) + slot, -1)
    point, live = tile_points(num_sources, fanout, tile)
    tl.store(sync.array(call, words.CODES, tl.int32) + point, code, mask=live)
    first_slots(call, num_sources, tl.reshape(to, tile), tl.reshape(row, tile))


@triton.jit
def counts_of_ranks(call, columns: tl.constexpr):
    """What this rank's window has of the running call's counts: [num_ranks][columns + 1]."""
    epoch = tl.load(sync.array(call, words.STATE, tl.int32) + words.PLAN_EPOCH) + 1
    counts = sync.section(call, sync.word(call, words.RANK), words.COUNTS_AT, tl.int32)
    return counts + (epoch & 1) * sync.word(call, words.NUM_RANKS) * (columns + 1)


@triton.jit
def store_sources(call, counts, columns: tl.constexpr, failed):
    """Source segments of every rank, and which ranks have refused the call; by one program."""
    routing = sync.array(call, words.ROUTING, tl.int32)
    most = 0
    refusing = 0
    for peer in range(sync.word(call, words.NUM_RANKS)):
        sent = tl.load(counts + peer * (columns + 1) + columns)
        if (sent < 0) & (failed == 0):  # it refused the call
            refusing |= (tl.full((), 1, tl.int32) << peer).to(tl.int32)
            sync.note(call, words.REFUSALS + peer, 1)
        sent = tl.where(failed, 0, tl.maximum(sent, 0))
        tl.store(routing + peer, sent)
        most = tl.maximum(most, sent)
    tl.store(routing + words.MOST_SOURCES, most)
    tl.store(routing + words.REFUSING, refusing)


@triton.jit
def first_slots(call, num_sources, rank, slot):
    """The lowest slot, or the row, of every segment on each rank: of a tile [segments, fan-out]."""
    size: tl.constexpr = rank.shape[0]
    source = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    to = sync.array(call, words.FIRST_SLOTS, tl.int32) + source * words.MAX_RANKS
    for peer in range(sync.word(call, words.NUM_RANKS)):
        lowest = vectors.smallest(tl.where(rank == peer, slot, 2**31 - 1), 1)
        tl.store(to + peer, tl.where(lowest < 2**31 - 1, lowest, -1), mask=source < num_sources)


@triton.jit(do_not_specialize=range(4))
def refuse(call: tl.int64, ticket: tl.int64, columns: tl.int64, blocks: tl.int64):
    """A kernel of one program that takes a dispatch's turn without joining it: the peers get the
    counts of a rank without segments, and know that it refused."""
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    epoch = tl.load(sync.array(call, words.STATE, tl.int32) + words.PLAN_EPOCH) + 1
    rank = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    mine = ((epoch & 1) * num_ranks + rank) * (columns + 1)
    if sync.aborted(call) == 0:
        for peer in range(num_ranks):
            to = sync.section(call, peer, words.COUNTS_AT, tl.int32) + mine
            for start in range(0, columns + 1, CHUNK):
                column = start + tl.arange(0, CHUNK)
                tl.store(to + column, tl.where(column < columns, 0, -1), mask=column <= columns)
        for block in range(blocks):
            sync.signal(call, words.PLAN_FLAGS_AT, rank * blocks + block, epoch)
    # Their counts say that the peers have finished everything before.
    sync.wait_for_all(call, words.PLAN_FLAGS_AT, blocks, 0, epoch, words.PLAN_PEERS)
    flags = rank * sync.word(call, words.MAX_SOURCES)
    sync.signal(call, words.DISPATCH_FLAGS_AT, flags, epoch)  # compact targets wait for it
    sync.end_dispatch(call, epoch, ticket)
