"""Planning for slots that the relation gives: nothing is counted and nothing assigned, but every
slot is checked where it lies.

Ranks tell each other how many slots they have, as they tell counts of keys elsewhere; having a
peer's also means that its window may be written. Then every point claims its slot with the epoch of
the call, and the second one to do so finds it there.

Of several nodes a rank does so for the segments that have landed here, too: slots and claims are of
its node, and the rank that they are of is told how many points have found none.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync, plan = load("words"), load("vectors"), load("sync"), load("plan")
slabs, of_tiles, reports = load("slabs"), load("tiles"), load("reports")

COLUMNS = tl.constexpr(1)  # what ranks tell: their slots


@triton.jit
def exchange(call, num_sources, num_slots):
    """The slots of all ranks, beside the segments that are of each node: a block a node, as in
    `plan.exchange`."""
    sync.follow()
    sync.lead()
    num_slots = tl.full((1,), 0, tl.int32) + num_slots.to(tl.int32)
    blocks = sync.word(call, words.PLAN_BLOCKS)
    for node in range(tl.program_id(0), blocks, tl.num_programs(0)):
        sources = reports.told_sources(call, node, num_sources)
        plan.store_counts(call, node, sources, tl.arange(0, 1), num_slots, COLUMNS, True)
        plan.flag_counts(call, node, blocks)
    for node in range(tl.program_id(0), blocks, tl.num_programs(0)):
        plan.await_counts(call, node, blocks)


@triton.jit
def place(call, num_sources, begun, fanout: tl.constexpr, tile: tl.constexpr, apart: tl.constexpr):
    """Slot codes of a tile; the first program also says what this rank receives. ``begun`` is as in
    `move`; where segments must lie ``apart``, each has one point, and what crosses nodes has been
    looked at by `hop.pack`."""
    sync.follow()
    sync.lead()
    num_nodes = sync.word(call, words.NUM_NODES)
    node = tl.program_id(0) // (tl.num_programs(0) // num_nodes)
    counts = plan.counts_of_ranks(call, COLUMNS)
    failed = sync.aborted(call) != 0
    failed = failed | reports.stops(call, counts, lengths(call, counts), COLUMNS)
    if tl.program_id(0) == 0:
        plan.store_sources(call, counts, COLUMNS, failed)

    tile_index = of_tiles.tile_of(0, 1)
    point, live = of_tiles.tile_points(tile_index, num_sources, fanout, tile)
    if num_nodes > 1:
        to, slot = slabs.take_on(call, tile_index * tile[0], point, live, fanout)
    else:
        to = tl.load(sync.array(call, words.RANKS, tl.int64) + point, mask=live, other=-1)
        slot = tl.load(sync.array(call, words.KEYS, tl.int64) + point, mask=live, other=-1)
    goes = to >= 0
    own = counts + (sync.first_rank(call) + to) * (COLUMNS + 1)
    length = tl.load(own, mask=goes, other=0)
    refuses = tl.load(own + COLUMNS, mask=goes, other=0) < 0
    # A rank that has refused the call has told no length, and gets no rows that it would look at.
    # Points for it keep their place there, so that combines know what they lack.
    exists = goes & (slot >= 0) & ((slot < length) | refuses)
    slot = tl.minimum(slot, sync.word(call, words.CAPACITY) - 1).to(tl.int32)
    bad = vectors.total(((to == words.OUT_OF_RANGE) | (goes & (exists == 0))).to(tl.int32), 0)
    if (bad > 0) & (failed == 0):
        slabs.note_dropped(call, node, words.BAD_KEYS, bad)
    exists = exists & (failed == 0)
    if apart:
        begins = exists & (num_nodes == 1)
        cell = tl.load(sync.array(call, words.SRC_OFFSETS, tl.int64) + point, mask=begins, other=0)
        again = begin_again(begun, cell, begins)
        note_shared(call, vectors.total(again.to(tl.int32), 0))
        exists = exists & (again == 0)
    clashes = claims(call, to, slot, exists & (refuses == 0))
    clashed = vectors.total(clashes.to(tl.int32), 0)
    if clashed > 0:
        slabs.note_dropped(call, node, words.CLASHED, clashed)
    fits = exists & (clashes == 0)
    to = tl.where(fits, to, -1)
    code = tl.where(fits, (to.to(tl.int32) << words.SLOT_BITS) + slot, -1)
    tl.store(sync.array(call, words.CODES, tl.int32) + point, code, mask=live)
    plan.first_slots(call, tile_index, num_sources, tl.reshape(to, tile), tl.reshape(slot, tile))


@triton.jit
def is_nowhere(rank, slot):
    """Whether points should go to a rank that does not exist, or a slot that no rank has."""
    beyond = (slot < 0) | (slot > words.SLOT_MASK)
    return (rank == words.OUT_OF_RANGE) | ((rank >= 0) & beyond)


@triton.jit
def begin_again(begun, cell, begins):
    """Mark the source cells that segments begin with. Which of them are marked already."""
    bit = tl.full(cell.shape, 1, tl.int64) << (cell % 32)
    to = begun.to(tl.pointer_type(tl.int32)) + cell // 32
    before = tl.atomic_or(to, bit.to(tl.int32), mask=begins, sem="relaxed", scope="gpu")
    return begins & ((before & bit.to(tl.int32)) != 0)


@triton.jit
def note_shared(call, shared):
    """Count segments that begin with the cell of another one."""
    if shared > 0:
        sync.note_dropped(call, words.SHARED, shared)


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
