"""Dispatch of short rows that each have one destination, planned and moved a tile at once.

A program has a share of consecutive segments. ``count`` leaves the rows of every key in it, and
``exchange`` makes them slots, as in ``plan``. Then ``dispatch`` takes a tile of the share after the
other, and sorts it by key, stably: so a row's place in the sorted tile is its place among those of
its key, but for a number of the key's own. Rows of a key go to consecutive slots, and where they
are moved in this order neighbours store one behind the other.

Until a segment has a slot code its key stands there. ``cells`` are those of a segment where all lie
one behind the other; with 0 ``count`` stores what the relation says of each. Nothing is left to do
with what arrives, as for compact targets.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync, plan = load("words"), load("vectors"), load("sync"), load("plan")
many, compact, of_tiles = load("many"), load("compact"), load("tiles")

STEP = tl.constexpr(32)  # shares are whole lines of codes


@triton.jit
def share(num_sources):
    """The source segments of this program: from the first to before the second."""
    size = (num_sources + tl.num_programs(0) - 1) // tl.num_programs(0)
    size = (size + STEP - 1) // STEP * STEP
    begin = tl.minimum(tl.program_id(0) * size, num_sources)
    return begin, tl.minimum(begin + size, num_sources)


@triton.jit
def count(
    call, num_sources, given, relation: tl.constexpr, cells: tl.constexpr, keys: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    """Rows of every key in this program's share, ``tile`` segments at once. What the shuffle's own
    ``relation(point, given)`` says of a vector of points are ranks, keys and cells."""
    begin, end = share(num_sources)
    counts = tl.full((keys,), 0, tl.int32)
    absent = tl.full((tile,), 0, tl.int32)
    for first in range(begin, end, tile):
        lane = first + tl.arange(0, tile).to(tl.int64)
        live = lane < end
        point = tl.minimum(lane, end - 1)  # idle lanes repeat the last one
        rank, key, cell = relation(point, given)
        absent += (live & of_tiles.is_absent(rank, key)).to(tl.int32)
        key = tl.where(live & (rank >= 0), key, -1).to(tl.int32)
        counts += tl.histogram(key, keys, mask=key >= 0)
        tl.store(sync.array(call, words.CODES, tl.int32) + point, key, mask=live)
        if cells == 0:
            tl.store(sync.array(call, words.SRC_OFFSETS, tl.int64) + point, cell, mask=live)
    tl.store(plan.counts_of_program(call, keys) + tl.arange(0, keys), counts)
    of_tiles.note_absent(call, absent)


@triton.jit
def exchange(
    call, num_sources, programs, columns: tl.constexpr, keys: tl.constexpr, block: tl.constexpr,
    table=None,
):  # fmt: skip
    """``plan.exchange``, of what so many ``programs`` have counted."""
    key = tl.program_id(0) * block + tl.arange(0, block)
    counted = sync.array(call, words.TILE_COUNTS, tl.int32)
    at = counted + key
    sums = plan.add_up(at, keys, programs, at, programs, key < columns, keys, block)
    plan.tell_counts(call, num_sources, key, sums, columns, table)


@triton.jit
def dispatch(
    call, num_sources, key_to_rank, ticket, source_fields, rows_at, load_sources: tl.constexpr,
    store_rows: tl.constexpr, cells: tl.constexpr, num_keys: tl.constexpr, keys: tl.constexpr,
    align: tl.constexpr, padding: tl.constexpr, tile_bits: tl.constexpr,
    tile_rows: tl.constexpr, placed: tl.constexpr = False,
):  # fmt: skip
    """Slots and rows of this program's share: 2**``tile_bits`` segments are sorted at once, and
    ``tile_rows`` rows moved."""
    tile: tl.constexpr = 2**tile_bits
    epoch = tl.load(sync.array(call, words.STATE, tl.int32) + words.PLAN_EPOCH) + 1
    counted = plan.counts_of_program(call, keys)
    failed, drops = plan.place_keys(
        call, 0, counted, key_to_rank, num_keys, num_keys, keys, align, padding, False, placed
    )
    tl.debug_barrier()
    key = tl.arange(0, keys)
    slots = tl.load(counted + key)  # of the next row of every key
    tl.debug_barrier()  # all have them, and this memory is for other numbers
    begin, end = share(num_sources)
    for first in range(begin, end, tile):
        limit = tl.minimum(first + tile, end)
        slots, sources, codes = assign(
            call, first, limit, counted, slots, key_to_rank, drops, keys, tile_bits
        )
        if tile == tile_rows:
            many.copy(
                call, sources, codes, codes >= 0, source_fields, rows_at, load_sources, store_rows,
                cells,
            )  # fmt: skip
        tl.debug_barrier()  # all codes are there, and nobody needs where its keys' rows go
        limit = tl.where(failed, first, limit)  # peers may have no room for what they are told
        if tile > tile_rows:
            for part in range(first, limit, tile_rows):
                move(
                    call, part, limit, source_fields, rows_at, load_sources, store_rows, cells,
                    tile_rows,
                )  # fmt: skip
        elif sync.word(call, words.NUM_RANKS) > 1:
            tell(call, first, limit, tile)
    compact.arrive(call, epoch, ticket)


@triton.jit
def move(
    call, first, limit, source_fields, rows_at, load_sources: tl.constexpr,
    store_rows: tl.constexpr, cells: tl.constexpr, tile_rows: tl.constexpr,
):  # fmt: skip
    """Rows of segments whose codes are known, in their own order, and the codes."""
    sources, inside, codes = many.own_codes(call, first, limit, tile_rows)
    many.tell(call, sources, inside, codes)
    many.copy(
        call, sources, codes, codes >= 0, source_fields, rows_at, load_sources, store_rows, cells
    )


@triton.jit
def tell(call, first, limit, tile: tl.constexpr):
    """The same of codes alone."""
    sources, inside, codes = many.own_codes(call, first, limit, tile)
    many.tell(call, sources, inside, codes)


@triton.jit
def assign(
    call, first, limit, counted, slots, key_to_rank, drops, keys: tl.constexpr,
    tile_bits: tl.constexpr,
):  # fmt: skip
    """The next ``slots`` of all keys behind the tile from ``first`` on; then its segments, sorted
    by key, and their slot codes, which are also stored."""
    tile: tl.constexpr = 2**tile_bits
    place = tl.arange(0, tile)
    at = sync.array(call, words.CODES, tl.int32) + first
    key = tl.load(at + place, mask=first + place < limit, other=-1)
    counts = tl.histogram(key, keys, mask=key >= 0)
    # Through memory, since a vector cannot be indexed by another.
    before = vectors.running(counts, 0) - counts
    tl.store(counted + tl.arange(0, keys), slots - before)
    tl.debug_barrier()
    both = vectors.sort(tl.where(key >= 0, key, keys) * tile + place, tile_bits)
    key = both >> tile_bits
    source = both & (tile - 1)
    has = key < keys
    slot = tl.load(counted + key, mask=has, other=0) + place
    fits = has & (slot < sync.word(call, words.CAPACITY).to(tl.int32)) & (drops == 0)
    overflowed = vectors.total((has & (fits == 0)).to(tl.int32), 0)
    if (overflowed > 0) & (drops == 0):
        sync.note_dropped(call, words.OVERFLOWED, overflowed)
    if drops & (sync.is_exact(call) == 0):
        sync.drop(call, overflowed)
    to = tl.load(key_to_rank + key, mask=has, other=0) - sync.first_rank(call)
    code = tl.where(fits, (to.to(tl.int32) << words.SLOT_BITS) + slot, -1)
    tl.store(at + source, code, mask=first + source < limit)
    return slots + counts, first + source, code
