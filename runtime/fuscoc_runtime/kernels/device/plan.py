"""Planning: from every point's key and rank to one slot code a point, the same on every run.

A slot is  start of its key at the destination
         + rows of that key sent by lower ranks
         + rows of that key in tiles of lower programs of this rank
         + rows of that key at lower points of its program's tiles,
all prefix sums, so the order in which programs run cannot matter. Counts are double-buffered by the
parity of the epoch. Having a peer's counts also means that the peer has finished everything before
this call, so its window may be written.

A compact target has one row for a segment and a rank. Its rows are counted like those of further
keys, one for each rank: the columns of a table of counts are the keys, then the ranks.

Of several nodes a rank plans its own segments and those that have landed here, those of each node
by programs of their own, as who sent them has counted them (`hop_counts`). It tells the counts of
each, in the name of the rank that they are of: so slots are dealt out by the order of all ranks.
What has landed has keys of this node alone, numbered there: so ranks tell each other no more than
these.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync, slabs = load("words"), load("vectors"), load("sync"), load("slabs")
of_tiles, reports, tables, ranks = load("tiles"), load("reports"), load("tables"), load("ranks")

RANKS = tl.constexpr(8)  # of all nodes, whose counts are looked at together
COUNTS = tl.constexpr(2048)  # that a program of `exchange` adds up at once
PAIRS = tl.constexpr(128 * 128)  # of points that a program of `count` compares at once


@triton.jit
def count(
    call,
    num_sources,
    fanout: tl.constexpr,
    keys: tl.constexpr,
    block: tl.constexpr,
    tile: tl.constexpr,
    tiles: tl.constexpr,
    compact: tl.constexpr,
):
    """Rows of every key in this program's tiles, and of a point's key before it there."""
    row: tl.constexpr = 2 * max(keys, words.MAX_RANKS) if words.IS_WIDE and compact else keys
    counts = counts_of_program(call, row)
    num_keys = sync.word(call, words.NUM_KEYS)
    for first in range(0, num_columns(call, compact), block):
        tl.store(counts + first + tl.arange(0, block), tl.full((block,), 0, tl.int32))
    for number in range(tiles):
        tl.debug_barrier()  # what was counted before is there
        count_tile(
            call,
            counts,
            of_tiles.tile_of(number, tiles),
            num_sources,
            fanout,
            num_keys,
            tile,
            compact,
        )


@triton.jit
def count_tile(
    call, counts, tile_index, num_sources, fanout: tl.constexpr, num_keys, tile: tl.constexpr,
    compact: tl.constexpr,
):  # fmt: skip
    size: tl.constexpr = tile[0] * tile[1]
    point, live = of_tiles.tile_points(tile_index, num_sources, fanout, tile)
    key, rank, absent = of_tiles.load_keys(call, point, live)
    of_tiles.note_absent(call, absent)
    within = tl.load(counts + key, mask=key >= 0, other=0)
    place = tl.arange(0, size)
    chunk: tl.constexpr = PAIRS // size
    if chunk >= size:
        before = (key[None, :] == key[:, None]) & (place[None, :] < place[:, None])
        within += vectors.total(before.to(tl.int32), 1)
    else:  # through memory, since a vector cannot be cut
        for first in range(0, size, chunk):
            other = first + tl.arange(0, chunk)
            at, exists = of_tiles.points_at(
                other.to(tl.int64), tile_index, num_sources, fanout, tile
            )
            their, _, _ = of_tiles.load_keys(call, at, exists)
            before = (their[None, :] == key[:, None]) & (other[None, :] < place[:, None])
            within += vectors.total(before.to(tl.int32), 1)
    tl.store(sync.array(call, words.WITHIN, tl.int32) + point, within, mask=live)
    if compact:
        rows = count_rows(call, counts + num_keys, tl.reshape(rank, tile), tile)
        at = sync.array(call, words.WITHIN_ROWS, tl.int32) + point
        tl.store(at, tl.reshape(rows, (size,)), mask=live)
    tl.debug_barrier()  # all have read what was counted before
    tl.atomic_add(counts + key, 1, mask=key >= 0, sem="relaxed")


@triton.jit
def count_rows(call, counts, rank, tile: tl.constexpr):
    """Rows before those of every point [segments, fan-out] on its rank; a segment has one."""
    within = tl.full(tile, 0, tl.int32)
    for peer in range(sync.word(call, words.NUM_RANKS)):
        goes = rank == peer
        has = vectors.largest(goes.to(tl.int32), 1)
        before = tl.atomic_add(counts + peer, vectors.total(has, 0), sem="relaxed")
        before += vectors.running(has, 0) - has
        within = tl.where(goes, before[:, None], within)
    return within


@triton.jit
def num_columns(call, compact: tl.constexpr):
    """What rows are counted of."""
    return sync.word(call, words.NUM_KEYS) + (words.MAX_RANKS if compact else 0)


@triton.jit
def counts_of_program(call, keys: tl.constexpr):
    """This program's row of the counts of all programs."""
    return sync.array(call, words.TILE_COUNTS, tl.int32) + tl.program_id(0).to(tl.int64) * keys


@triton.jit
def exchange(
    call,
    num_sources,
    keys: tl.constexpr,
    tile: tl.constexpr,
    tiles: tl.constexpr,
    block: tl.constexpr,
    compact: tl.constexpr,
    table=None,
):
    """Prefix sums over what programs have counted, and the counts of all ranks. A program has
    blocks of columns of what is of a node, and waits when all of its have been told: so there may
    be fewer programs than blocks, and as few as run at once where ranks share a GPU. Of the
    ``table`` that places keys, if one does, ranks tell each other, too."""
    sync.follow()
    sync.lead()
    row: tl.constexpr = 2 * max(keys, words.MAX_RANKS) if words.IS_WIDE and compact else keys
    blocks = sync.word(call, words.PLAN_BLOCKS)
    for number in range(tl.program_id(0), blocks, tl.num_programs(0)):
        exchange_block(call, number, blocks, num_sources, row, tile, tiles, block, compact, table)
    for number in range(tl.program_id(0), blocks, tl.num_programs(0)):
        await_counts(call, number, blocks)


@triton.jit
def exchange_block(
    call, index, blocks, num_sources, keys: tl.constexpr, tile: tl.constexpr, tiles: tl.constexpr,
    block: tl.constexpr, compact: tl.constexpr, table,
):  # fmt: skip
    """A block of columns of what is of a node: its prefix sums, and its counts told to all."""
    num_nodes = sync.word(call, words.NUM_NODES)
    num_blocks = blocks // num_nodes
    node = index // num_blocks
    number = index % num_blocks
    key = number * block + tl.arange(0, block)
    columns = num_columns(call, compact)
    counted = sync.array(call, words.TILE_COUNTS, tl.int32)
    size: tl.constexpr = tile[0] * tiles
    num_programs = (num_sources // num_nodes + size - 1) // size
    counted += node * num_programs * keys
    sources = reports.told_sources(call, node, num_sources)
    if num_nodes > 1:
        # Of segments that there are; further places have none.
        counting = (tl.maximum(sources, 0) + size - 1) // size
        told = slabs.counts_of(call, slabs.landed(call, node), 0)
        num_keys = sync.word(call, words.NUM_KEYS)
        column = tl.where(key < num_keys, key, key - num_keys + sync.word(call, words.SLAB_KEYS))
        stride = sync.word(call, words.SLAB_COLUMNS)
        sums = add_up(
            told + column, stride, counting, counted + key, num_programs, key < columns, keys, block
        )
    else:
        at = counted + key
        sums = add_up(at, keys, num_programs, at, num_programs, key < columns, keys, block)
    store_counts(call, node, sources, key, sums, columns, number == 0, table)
    flag_counts(call, index, blocks)


@triton.jit
def add_up(
    told, stride, counting, counted, num_programs, exists, keys: tl.constexpr, block: tl.constexpr
):
    """Sums over programs of a block of columns of what so many programs before, ``counting``, have
    ``told``, ``stride`` apart. What is ``counted`` before every program, ``keys`` apart, may lie
    in the same place."""
    sums = tl.full((block,), 0, tl.int32)
    chunk: tl.constexpr = COUNTS // block
    for start in range(0, num_programs, chunk):
        index = start + tl.arange(0, chunk).to(tl.int64)
        mask = (index[:, None] < num_programs) & exists[None, :]
        counts = tl.load(told[None, :] + index[:, None] * stride, mask=mask, other=0).to(tl.int32)
        counts = tl.where(index[:, None] < counting, counts, 0)
        before = sums[None, :] + vectors.running(counts, 0) - counts
        tl.store(counted[None, :] + index[:, None] * keys, before, mask=mask)
        sums += vectors.total(counts, 0)
    return sums


@triton.jit
def tell_counts(call, num_sources, column, counts, columns, table=None):
    """Exchange the counts of this program's columns with all peers, and wait for theirs."""
    sources = reports.told_sources(call, 0, num_sources)
    store_counts(call, 0, sources, column, counts, columns, tl.program_id(0) == 0, table)
    flag_counts(call, tl.program_id(0), tl.num_programs(0))
    await_counts(call, tl.program_id(0), tl.num_programs(0))


@triton.jit
def store_counts(call, node, sources, column, counts, columns, is_first, table=None):
    """Store the counts of this program's columns to all ranks, as those of the rank of a node that
    has this one's place there; if it ``is_first``, also how many source segments that has, and what
    the ``table`` that places keys is told by."""
    if table is not None:
        if is_first:
            sources = tables.tell(call, node, sources, table)
    epoch = tl.load(sync.array(call, words.STATE, tl.int32) + words.PLAN_EPOCH) + 1
    num_ranks = sync.word(call, words.NUM_RANKS)
    source_rank = node * num_ranks + sync.word(call, words.RANK)
    num_sources = num_ranks * sync.word(call, words.NUM_NODES)
    mine = ((epoch & 1) * num_sources + source_rank) * (columns + 1)
    # What is sent when nobody waits any more could be taken for an earlier call's.
    if sync.aborted(call) == 0:
        for peer in range(num_ranks):
            to = sync.section(call, peer, words.COUNTS_AT, tl.int32) + mine
            tl.store(to + column, counts, mask=column < columns)
            if is_first:
                tl.store(to + columns, sources)


@triton.jit
def flag_counts(call, block, blocks):
    """Tell all peers that the counts of a block of columns are there."""
    epoch = tl.load(sync.array(call, words.STATE, tl.int32) + words.PLAN_EPOCH) + 1
    if sync.aborted(call) == 0:
        at = sync.word(call, words.RANK) * blocks + block
        sync.signal(call, words.PLAN_FLAGS_AT, at, epoch)


@triton.jit
def await_counts(call, block, blocks):
    """Wait for the counts of a block of columns of all peers."""
    epoch = tl.load(sync.array(call, words.STATE, tl.int32) + words.PLAN_EPOCH) + 1
    sync.wait_for_all(call, words.PLAN_FLAGS_AT, blocks, block, epoch, words.PLAN_PEERS)


@triton.jit
def assign(
    call, num_sources, key_to_rank, fanout: tl.constexpr, keys: tl.constexpr, block: tl.constexpr,
    align: tl.constexpr, padding: tl.constexpr, tile: tl.constexpr, tiles: tl.constexpr,
    compact: tl.constexpr, placed: tl.constexpr = False,
):  # fmt: skip
    """Slot codes of this program's tiles; the first one also says what this rank receives. Where
    keys are ``placed`` by a table, ``key_to_rank`` is this rank's."""
    sync.follow()
    sync.lead()
    if placed:
        key_to_rank = tables.in_use(call, key_to_rank)
    row: tl.constexpr = 2 * max(keys, words.MAX_RANKS) if words.IS_WIDE and compact else keys
    counted = counts_of_program(call, row)
    num_keys = sync.word(call, words.NUM_KEYS)
    columns = num_columns(call, compact)
    node = tl.program_id(0) // (tl.num_programs(0) // sync.word(call, words.NUM_NODES))
    # On their way while keys are placed.
    points = planned_points(call, of_tiles.tile_of(0, tiles), num_sources, fanout, tile, compact)
    _, drops = place_keys(
        call, node, counted, key_to_rank, num_keys, columns, block, align, padding, compact, placed
    )
    tl.debug_barrier()
    assign_tile(
        call, node, counted, of_tiles.tile_of(0, tiles), points, num_sources, drops, num_keys,
        fanout, tile, compact,
    )  # fmt: skip
    for number in range(1, tiles):
        index = of_tiles.tile_of(number, tiles)
        others = planned_points(call, index, num_sources, fanout, tile, compact)
        assign_tile(
            call, node, counted, index, others, num_sources, drops, num_keys, fanout, tile, compact
        )


@triton.jit
def place_keys(
    call, node, counted, key_to_rank, num_keys, columns, block: tl.constexpr, align: tl.constexpr,
    padding: tl.constexpr, compact: tl.constexpr, placed: tl.constexpr,
):  # fmt: skip
    """Make what this program has ``counted`` before its rows, of every key, their first slots. The
    first one says what this rank receives. Whether the call fails, and whether all points are
    dropped: then, and with a fixed capacity where tables of ranks differ."""
    failed = sync.aborted(call) != 0
    counts = counts_of_ranks(call, columns)
    drops, differs = failed, None
    if placed:
        differs = tables.differ(call, counts, columns)
        drops = failed | differs
        failed = failed | (differs & (sync.is_exact(call) != 0))
    begins = tl.full((words.MAX_RANKS,), 0, tl.int32)  # of the block's first key on every rank
    num_own = tl.full((), 0, tl.int32)
    for first in range(0, columns, block):
        key = first + tl.arange(0, block)
        base, begins, num_own = starts(
            call, node, key, begins, num_own, counts, key_to_rank, num_keys, columns, block, align,
            padding, drops,
        )  # fmt: skip
        # Through memory, since a vector cannot be indexed by another.
        tl.store(counted + key, tl.load(counted + key) + base)
    stops = reports.stops(call, counts, begins, columns)
    failed, drops = failed | stops, drops | stops
    if tl.program_id(0) == 0:
        rows = vectors.pick(begins, sync.word(call, words.RANK), words.MAX_RANKS)
        if compact:
            rows = rows_here(call, counts + num_keys, columns)
        reports.report(call, counts, begins, rows, columns, differs)
        if placed:
            tables.note(call, counts, columns, differs)
        store_sources(call, counts, columns, failed)
    return failed, drops


@triton.jit
def rows_here(call, counts, columns):
    """Rows of a compact target on this rank."""
    rows = tl.full((), 0, tl.int32)
    column = sync.word(call, words.RANK) + tl.arange(0, 1)
    for first in range(0, sync.num_source_ranks(call), RANKS):
        _, theirs = counted_by(call, counts, first, column, column >= 0, columns)
        rows += vectors.total(vectors.total(theirs, 1), 0)
    return rows


@triton.jit
def counted_by(call, counts, first, column, exists, columns):
    """Ranks of all nodes from ``first`` on, and what they have told of columns, 0 beyond them:
    [ranks, columns]."""
    peer = first + tl.arange(0, RANKS).to(tl.int64)
    mask = (peer < sync.num_source_ranks(call))[:, None] & exists[None, :]
    at = counts + peer[:, None] * (columns + 1) + column[None, :]
    return peer, tl.load(at, mask=mask, other=0)


@triton.jit
def starts(
    call, node, key, begins, num_own, counts, key_to_rank, num_keys, columns, block: tl.constexpr,
    align: tl.constexpr, padding: tl.constexpr, drops,
):  # fmt: skip
    """The first slot of the rows of a block of keys that are this rank's, or have landed from a
    node; then where the next block begins on every rank, and how many keys of this rank were before
    it. The first program also says how many rows of each this rank receives."""
    me = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    source_rank = node * num_ranks + me
    rows = tl.full((block,), 0, tl.int32)
    base = tl.full((block,), 0, tl.int32)
    for first in range(0, sync.num_source_ranks(call), RANKS):
        peer, theirs = counted_by(call, counts, first, key, key < columns, columns)
        rows += vectors.total(theirs, 0)
        base += vectors.total(tl.where((peer < source_rank)[:, None], theirs, 0), 0)
    owner = tl.load(key_to_rank + key, mask=key < num_keys, other=-1) - sync.first_rank(call)
    taken = padding(rows, align) * align
    start = tl.full((block,), 0, tl.int32)
    lane = tl.arange(0, words.MAX_RANKS)
    for rank in range(num_ranks):
        own = tl.where(owner == rank, taken, 0)
        begin = vectors.pick(begins, rank, words.MAX_RANKS)
        start += tl.where(owner == rank, begin + vectors.running(own, 0) - own, 0)
        begins = tl.where(lane == rank, begins + vectors.total(own, 0), begins)
    own = owner == me
    if tl.program_id(0) == 0:
        capacity = sync.word(call, words.CAPACITY).to(tl.int32)
        place = num_own + vectors.running(own.to(tl.int32), 0) - 1
        here = tl.where(drops, 0, tl.minimum(rows, tl.maximum(capacity - start, 0)))
        tl.store(sync.array(call, words.KEY_COUNTS, tl.int32) + place, here, mask=own)
        tl.store(sync.array(call, words.KEY_STARTS, tl.int32) + place, start, mask=own)
    return base + start, begins, num_own + vectors.total(own.to(tl.int32), 0)


@triton.jit
def assign_tile(
    call, node, counted, tile_index, points, num_sources, drops, num_keys, fanout: tl.constexpr,
    tile: tl.constexpr, compact: tl.constexpr,
):  # fmt: skip
    """Slot codes of what `planned_points` says of a tile."""
    num_ranks = sync.word(call, words.NUM_RANKS)
    capacity = sync.word(call, words.CAPACITY).to(tl.int32)
    point, exists, to, of, within, rows = points
    live = exists & (to >= 0)
    slot = tl.load(counted + of, mask=live, other=0) + within
    fits = live & (slot < capacity)
    row = slot
    if compact:
        row = tl.load(counted + num_keys + to, mask=live, other=0)
        row += rows
        fits = fits & (row < num_ranks * sync.word(call, words.MAX_SOURCES))
        fits = fits & (row < capacity)
    overflowed = vectors.total((live & (fits == 0)).to(tl.int32), 0)
    if (overflowed > 0) & (drops == 0):
        slabs.note_dropped(call, node, words.OVERFLOWED, overflowed)
    if drops & (node == sync.word(call, words.NODE)) & (sync.is_exact(call) == 0):
        tables.drop_own(call, node, point, exists, to, fanout)
    fits = fits & (drops == 0)
    to = tl.where(fits, to, -1)
    if compact:
        for peer in range(num_ranks):
            index = sync.section(call, peer, words.ROW_INDEX_AT, tl.int64) + slot
            tl.store(index, row.to(tl.int64), mask=to == peer)
    code = tl.where(fits, (to.to(tl.int32) << words.SLOT_BITS) + slot, -1)
    tl.store(sync.array(call, words.CODES, tl.int32) + point, code, mask=exists)
    first_slots(call, tile_index, num_sources, tl.reshape(to, tile), tl.reshape(row, tile))


@triton.jit
def planned_points(
    call, tile_index, num_sources, fanout: tl.constexpr, tile: tl.constexpr, compact: tl.constexpr
):
    """All points of a tile, which exist, their ranks and keys, and rows before them."""
    point, exists = of_tiles.tile_points(tile_index, num_sources, fanout, tile)
    if sync.word(call, words.NUM_NODES) > 1:
        to, of, within, rows = slabs.lay_out(
            call, tile_index * tile[0], point, exists, fanout, compact
        )
    else:
        to, of, within, rows = counted_points(call, point, exists, compact)
    return point, exists, to, of, within, rows


@triton.jit
def counted_points(call, point, exists, compact: tl.constexpr):
    """Ranks and keys of points, and rows before them, as `count` has them."""
    to = tl.load(sync.array(call, words.RANKS, tl.int64) + point, mask=exists, other=-1)
    goes = exists & (to >= 0)
    of = tl.load(sync.array(call, words.KEYS, tl.int64) + point, mask=goes, other=0)
    within = tl.load(sync.array(call, words.WITHIN, tl.int32) + point, mask=goes, other=0)
    rows = within
    if compact:
        rows = tl.load(sync.array(call, words.WITHIN_ROWS, tl.int32) + point, mask=goes, other=0)
    return to, of, within, rows


@triton.jit
def counts_of_ranks(call, columns):
    """What this rank's window has of the running call's counts, of the ranks of all nodes:
    [ranks][columns + 1]."""
    epoch = tl.load(sync.array(call, words.STATE, tl.int32) + words.PLAN_EPOCH) + 1
    counts = sync.section(call, sync.word(call, words.RANK), words.COUNTS_AT, tl.int32)
    return counts + (epoch & 1) * sync.num_source_ranks(call) * (columns + 1)


@triton.jit
def store_sources(call, counts, columns, failed):
    """Source segments of every rank, and which ranks have refused the call; by one program."""
    routing = sync.array(call, words.ROUTING, tl.int32)
    num_ranks = sync.word(call, words.NUM_RANKS)
    num_nodes = sync.word(call, words.NUM_NODES)
    me = sync.first_rank(call) + sync.word(call, words.RANK)
    own = tl.load(counts + me * (columns + 1) + columns)
    known = sync.word(call, words.IS_KNOWN) != 0
    # Whether this rank has joined the call itself, and no host is told otherwise who refuses it.
    tells = ((failed == 0) | known) & (own >= 0)
    most = tl.full((), 0, tl.int32)
    refusing = ranks.none()
    for first in range(0, num_ranks * num_nodes, RANKS):
        column = columns + tl.arange(0, 1)
        peer, told = counted_by(call, counts, first, column, column == columns, columns)
        sent = vectors.total(told, 1)
        exists = peer < num_ranks * num_nodes
        refuses = (sent < 0) & tells
        if vectors.largest(refuses.to(tl.int32), 0) == 1:
            for index in range(RANKS):
                if vectors.pick(refuses.to(tl.int32), index, RANKS) == 1:
                    sync.note(call, words.REFUSALS + first + index, 1)
        if num_nodes == 1:  # elsewhere it takes on the segments of others all the same
            refusing |= ranks.of(peer, refuses)
        sent = tl.maximum(sent, 0)
        if num_nodes > 1:  # every place of theirs: which have a segment, points say
            sent = tl.where(exists, (num_nodes * sync.word(call, words.STRIDE)).to(tl.int32), 0)
        sent = tl.where(failed, 0, sent)
        tl.store(routing + peer + words.SOURCES, sent, mask=peer < num_ranks)
        most = tl.maximum(most, vectors.largest(sent, 0))
    tl.store(routing + words.MOST_SOURCES, most)
    # Of a known routing there is a handle all the same, with which nothing is combined.
    refusing = tl.where(known & failed, ranks.everyone(), refusing)
    ranks.store_set(routing + words.REFUSING, refusing)


@triton.jit
def first_slots(call, tile_index, num_sources, rank, slot):
    """The lowest slot, or the row, of every segment on each rank: of a tile [segments, fan-out]."""
    size: tl.constexpr = rank.shape[0]
    source = tile_index * size + tl.arange(0, size)
    to = sync.array(call, words.FIRST_SLOTS, tl.int32) + source * words.MAX_RANKS
    for peer in range(sync.word(call, words.NUM_RANKS)):
        lowest = vectors.smallest(tl.where(rank == peer, slot, 2**31 - 1), 1)
        tl.store(to + peer, tl.where(lowest < 2**31 - 1, lowest, -1), mask=source < num_sources)
