"""Boxes that follow from extents and the ranks' slots alone: those that a ring entry has, here and
in the windows of all ranks, stay right until one of these changes.

Every rank tells the others whether they have changed for it. If they have for none, the boxes of
all are kept, nobody tells anybody of them, and slots that did not clash then do not clash now.

Boxes that dispatch copies have two halves of their memory. Programs of dispatch read those that are
there while it is not known yet whether they are right, and new ones are made in the other half. The
last program of dispatch makes that half the current one.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync, plan = load("words"), load("vectors"), load("sync"), load("plan")
of_piece, ranks = load("cells"), load("ranks")

TOLD_ANYWAY = tl.constexpr(1 << 20)  # one dispatch in so many sets the flags that none waits for
SAME, LACKS, NEW = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # of what ranks have told
# Words of what fixed boxes of a ring entry were made of, i64.
WHOLE = tl.constexpr(0)  # whether they are all there: no point dropped, no slot twice, none refused
SLOTS = tl.constexpr(1)  # [MAX_RANKS]
GIVEN = tl.constexpr(1 + words.MAX_RANKS.value)  # what the relation was given, extents and ranks


@triton.jit
def is_same(call, num_slots, num_points, given):
    """Whether this rank has in the running call what fixed boxes of the ring entry were made of, as
    far as it knows alone, and these are whole: 1, else 0."""
    made_of = sync.array(call, words.MADE_OF, tl.int64)
    points = tl.load(sync.array(call, words.MOVED, tl.int64) + 1)
    whole = tl.load(made_of + WHOLE)
    slots = tl.load(made_of + SLOTS + sync.word(call, words.RANK))
    same = (whole != 0) & (slots == num_slots) & (points == num_points)
    for i in tl.static_range(len(given)):
        same = same & (tl.load(made_of + GIVEN + i) == given[i])
    return same.to(tl.int32)


@triton.jit
def tell(call, epoch, same):
    """Tell all ranks what `is_same` has found: a word, which nothing has to come before."""
    peer = tl.arange(0, words.MAX_RANKS)
    there = peer < sync.word(call, words.NUM_RANKS)
    there = there & (sync.aborted(call) == 0)  # else it could be taken for an earlier call's
    notes = sync.section(call, peer, words.NOTES_AT, tl.int32) + sync.word(call, words.RANK)
    told = tl.full((words.MAX_RANKS,), 0, tl.int32) + (2 * epoch + same)
    tl.atomic_xchg(notes, told, mask=there, sem="relaxed", scope="sys")


@triton.jit
def is_kept(call, epoch, num_slots, num_points, given):
    """Whether it is so on all ranks, as the planner hears it. Who is a dispatch ahead by then has
    heard so itself: all that programs of this rank's dispatch store has arrived there."""
    same = is_same(call, num_slots, num_points, given)
    tell(call, epoch, same)
    rank = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    notes = sync.section(call, rank, words.NOTES_AT, tl.int32)
    for step in range(1, num_ranks):
        if same == 1:  # else the others find it out, and this one need not wait for them
            peer = (rank + step) % num_ranks
            sync.wait(call, notes + peer, 2 * epoch, words.PLAN_PEERS, peer, 0)
            told = tl.atomic_add(notes + peer, 0, sem="relaxed", scope="sys")
            same = (told - 2 * epoch > 0).to(tl.int32)
    return same == 1


@triton.jit
def hear(call):
    """What all ranks have told this one by now, a vector of `sync.look`. Nothing that they have
    stored is read behind it."""
    lane = tl.arange(0, sync.lanes())
    there = lane < sync.word(call, words.NUM_RANKS)
    notes = sync.section(call, sync.word(call, words.RANK), words.NOTES_AT, tl.int32) + lane
    return sync.look(notes, there)


@triton.jit
def all_say_so(call, epoch, told):
    """Whether it is so on all ranks, as a program of dispatch hears it that has been ``told`` so
    much: it waits no longer than the planner does. Nobody who says so is ahead before this program
    has stored what it copies, and stores depend on what it says."""
    planned = sync.array(call, words.STATE, tl.int32) + words.PLANNED
    verdict = judge(call, epoch, told)
    waits = verdict == LACKS
    polls = 0
    while waits:
        polls += 1
        if polls % sync.POLLS == 0:
            waits = epoch - tl.atomic_add(planned, 0, sem="acquire", scope="gpu") > 0
        verdict = judge(call, epoch, hear(call))  # behind what the planner has seen last
        waits = waits & (verdict == LACKS)
        sync.pause()
    return verdict == SAME


@triton.jit
def judge(call, epoch, told):
    """What ranks have told in all, of the running call: that all is the ``SAME``, or that one has
    something new, or if none has, that one ``LACKS``, which has told nothing yet."""
    there = tl.arange(0, sync.lanes()) < sync.word(call, words.NUM_RANKS)
    each = tl.where(told == 2 * epoch + 1, SAME, tl.where(2 * epoch - told > 0, LACKS, NEW))
    return vectors.largest(tl.where(there, each, SAME), 0)


@triton.jit
def renew(call, epoch):
    """Let what ranks have told this one of their boxes be of the running call, too. Flags that are
    set where boxes are made are set now and then, too: of epochs only differences count, as long as
    these are below 2^31."""
    peer = tl.arange(0, words.MAX_RANKS)
    there = peer < sync.word(call, words.NUM_RANKS)
    told = sync.section(call, sync.word(call, words.RANK), words.TOLD_AT, tl.int64) + peer
    num_boxes = tl.load(told, mask=there, other=0) & 0xFFFFFFFF
    tl.store(told, (epoch.to(tl.int64) << 32) | num_boxes, mask=there)
    if epoch % TOLD_ANYWAY == 0:
        plan.flag_counts(call, 0, 1)
        sync.signal(call, words.TOLD_FLAGS_AT, sync.word(call, words.RANK), epoch)


@triton.jit
def is_stale(call, given):
    """Whether fixed boxes of the ring entry are not those that the running call has; then what it
    has is written down, and `keep` says that they are there when they are."""
    made_of = sync.array(call, words.MADE_OF, tl.int64)
    whole = tl.load(made_of + WHOLE)
    peer = tl.arange(0, words.MAX_RANKS)
    there = peer < sync.word(call, words.NUM_RANKS)
    at = plan.counts_of_ranks(call, of_piece.COLUMNS) + peer * (of_piece.COLUMNS + 1)
    slots = tl.load(at, mask=there, other=0).to(tl.int64)
    differs = (slots != tl.load(made_of + SLOTS + peer)).to(tl.int32)
    differs = vectors.largest(differs, 0)
    for i in tl.static_range(len(given)):
        value = whole * 0 + given[i]
        differs |= (value != tl.load(made_of + GIVEN + i)).to(tl.int32)
    tl.debug_barrier()  # another thread may have stored who refuses
    stale = (differs != 0) | (whole == 0) | ranks.is_any(ranks.refusing(call))
    if stale:
        tl.debug_barrier()  # every thread has read what is replaced
        tl.store(made_of + WHOLE, 0)
        tl.store(made_of + SLOTS + peer, slots)
        for i in tl.static_range(len(given)):
            tl.store(made_of + GIVEN + i, whole * 0 + given[i])
    return stale


@triton.jit
def keep(call):
    """Say that the boxes that were made are all there, if no point was dropped meanwhile, no rank
    has refused the call, and somebody still waits."""
    routing = sync.array(call, words.ROUTING, tl.int32)
    use = tl.load(routing + words.USES) + 1
    dropped = tl.atomic_add(routing + words.DROPPED + (use & 1), 0)
    is_refused = ranks.is_any(ranks.refusing(call))
    whole = (dropped == 0) & (is_refused == 0) & (sync.aborted(call) == 0)
    tl.store(sync.array(call, words.MADE_OF, tl.int64) + WHOLE, whole.to(tl.int64))


@triton.jit
def spoil(call):
    """Let nobody keep the boxes of the ring entry: what was found of them, every call finds."""
    tl.store(sync.array(call, words.MADE_OF, tl.int64) + WHOLE, 0)
