"""Planning for slots that the relation gives: nothing is counted and nothing assigned, but every
slot is checked where it lies.

Ranks tell each other how many slots they have, as they tell counts of keys elsewhere; having a
peer's also means that its window may be written. Then every point claims its slot with the epoch of
the call, and the second one to do so finds it there.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync, plan = load("words"), load("vectors"), load("sync"), load("plan")
of_tiles, reports = load("tiles"), load("reports")

COLUMNS = tl.constexpr(1)  # what ranks tell: their slots


@triton.jit
def exchange(call, num_sources, num_slots):
    """The slots of all ranks; by one program."""
    num_slots = tl.full((1,), 0, tl.int32) + num_slots.to(tl.int32)
    plan.tell_counts(call, num_sources, tl.arange(0, 1), num_slots, COLUMNS)


@triton.jit
def place(call, num_sources, fanout: tl.constexpr, tile: tl.constexpr):
    """Slot codes of a tile; the first program also says what this rank receives."""
    counts = plan.counts_of_ranks(call, COLUMNS)
    failed = sync.aborted(call) != 0
    failed = failed | reports.stops(call, counts, lengths(call, counts), COLUMNS)
    if tl.program_id(0) == 0:
        plan.store_sources(call, counts, COLUMNS, failed)

    tile_index = of_tiles.tile_of(0, 1)
    point, live = of_tiles.tile_points(tile_index, num_sources, fanout, tile)
    to = tl.load(sync.array(call, words.RANKS, tl.int64) + point, mask=live, other=-1)
    slot = tl.load(sync.array(call, words.KEYS, tl.int64) + point, mask=live, other=-1)
    goes = to >= 0
    length = tl.load(counts + to * (COLUMNS + 1), mask=goes, other=0)
    refuses = tl.load(counts + to * (COLUMNS + 1) + COLUMNS, mask=goes, other=0) < 0
    # A rank that has refused the call has told no length, and gets no rows that it would look at.
    # Points for it keep their place there, so that combines know what they lack.
    exists = goes & (slot >= 0) & ((slot < length) | refuses)
    slot = tl.minimum(slot, sync.word(call, words.CAPACITY) - 1).to(tl.int32)
    bad = vectors.total(((to == words.OUT_OF_RANGE) | (goes & (exists == 0))).to(tl.int32), 0)
    if (bad > 0) & (failed == 0):
        sync.note_dropped(call, words.BAD_KEYS, bad)
    exists = exists & (failed == 0)
    clashes = claims(call, to, slot, exists & (refuses == 0))
    clashed = vectors.total(clashes.to(tl.int32), 0)
    if clashed > 0:
        sync.note_dropped(call, words.CLASHED, clashed)
    fits = exists & (clashes == 0)
    to = tl.where(fits, to, -1)
    code = tl.where(fits, (to.to(tl.int32) << words.SLOT_BITS) + slot, -1)
    tl.store(sync.array(call, words.CODES, tl.int32) + point, code, mask=live)
    plan.first_slots(call, tile_index, num_sources, tl.reshape(to, tile), tl.reshape(slot, tile))


@triton.jit
def lengths(call, counts):
    """The slots of every rank, as they have told."""
    peer = tl.arange(0, words.MAX_RANKS)
    there = peer < sync.word(call, words.NUM_RANKS)
    return tl.load(counts + peer * (COLUMNS + 1), mask=there, other=0)


@triton.jit
def claims(call, rank, slot, claiming):
    """Claim slots for the points that are ``claiming`` some. Whose slots others have claimed."""
    epoch = tl.load(sync.array(call, words.STATE, tl.int32) + words.PLAN_EPOCH) + 1
    epoch = tl.full(slot.shape, 0, tl.int32) + epoch
    clashes = claiming & (claiming == 0)
    for peer in range(sync.word(call, words.NUM_RANKS)):
        here = (claiming & (rank == peer)) != 0
        claim = sync.section(call, peer, words.CLAIMS_AT, tl.int32) + slot
        before = tl.atomic_xchg(claim, epoch, mask=here, sem="relaxed", scope="sys")
        clashes = clashes | (here & (before == epoch))
    return clashes
