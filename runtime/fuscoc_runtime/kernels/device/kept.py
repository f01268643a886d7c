"""Boxes that follow from extents and the ranks' slots alone: those that a ring entry has, here and
in the windows of all ranks, stay right until one of these changes.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync, plan = load("words"), load("vectors"), load("sync"), load("plan")
of_piece, ranks = load("cells"), load("ranks")

# Words of what fixed boxes of a ring entry were made of, i64.
WHOLE = tl.constexpr(0)  # whether they are all there: no point was dropped, no rank refused
SLOTS = tl.constexpr(1)  # [MAX_RANKS]
GIVEN = tl.constexpr(1 + words.MAX_RANKS.value)  # what the relation was given, extents and ranks


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
