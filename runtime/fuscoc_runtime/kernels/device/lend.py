"""Results of pieces that are lent: peers store into them, as by a dispatch turned around, and
nothing is staged.

Before it says that it has begun a combine a rank tells the others where it lends its result, of
which all is cleared by then that they do not fill. If all ranks lend theirs, each stores everything
at its place, and they meet once more behind it. If one does not, or does not join, results are
staged.

All programs of all ranks find the same. A word says of which combine it is, and it is replaced by
one of a later combine only where this one's results are staged: else nobody ends before all have
stored. So whoever finds a later word knows that this combine stages, too.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync, back = load("words"), load("vectors"), load("sync"), load("combine")
boxes, ranks = load("boxes"), load("ranks")

PLACE = tl.constexpr(0xFFFFFFFF)  # of a word: 1 more than the lines before a result, 0: not lent;
# in the top the combine of the handle


@triton.jit
def offer(call, tag, result_at):
    """Tell all ranks where this one lends its result, so many bytes into its memory for them, or
    that it does not, below 0. By one program, in front of `combine.join` or `combine.refuse`."""
    place = tl.where(result_at < 0, 0, result_at // boxes.LINE + 1)
    peer = tl.arange(0, words.MAX_RANKS)
    there = peer < sync.word(call, words.NUM_RANKS)
    at = sync.section(call, peer, words.LENT_AT, tl.int64) + sync.word(call, words.RANK)
    tl.store(at, tl.full((words.MAX_RANKS,), 0, tl.int64) + (tag << 32 | place), mask=there)
    tl.debug_barrier()  # the stores of every thread come first


@triton.jit
def peers_lend(call, tag):
    """Whether all others do so, behind `combine.join`. One that is in a later dispatch has told
    nothing of this combine."""
    rank = sync.word(call, words.RANK)
    peer = tl.arange(0, words.MAX_RANKS)
    there = (peer < sync.word(call, words.NUM_RANKS)) & (peer != rank)
    there = there & (ranks.each(ranks.refusing(call)) == 0)
    begun = sync.look(sync.section(call, rank, words.BARRIER_AT, tl.int64) + peer, there)
    told = sync.look(sync.section(call, rank, words.LENT_AT, tl.int64) + peer, there)
    is_of_this = back.reached(begun, tag) & ((told >> 32).to(tl.int32) == tag.to(tl.int32))
    lends = is_of_this & ((told & PLACE) != 0)
    return vectors.largest((there & (lends == 0)).to(tl.int32), 0) == 0


@triton.jit
def result_of(call, peer):
    """The address of the result that a peer lends, as mapped here."""
    told = sync.section(call, sync.word(call, words.RANK), words.LENT_AT, tl.int64) + peer
    first = tl.load(sync.array(call, words.RESULTS, tl.int64) + peer)
    return first + ((tl.load(told) & PLACE) - 1) * boxes.LINE


@triton.jit
def meet(call, tag, result, result_bytes):
    """Tell the peers that all is there that this rank stores, and wait for theirs; by its last
    program. A result that lacks some is lost. If nobody waits any more a program of this rank may
    have stored nothing, so the peers are told nothing."""
    rank = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    arrived = sync.section(call, rank, words.ARRIVED_AT, tl.int64)
    lacks = sync.aborted(call)
    others = tl.where(lacks == 0, num_ranks, 1)
    for step in range(1, others):
        peer = (rank + step) % num_ranks
        if back.joins(call, peer):
            back.tell(call, words.ARRIVED_AT, peer, tag)
    for step in range(1, others):
        peer = (rank + step) % num_ranks
        if back.joins(call, peer):
            if back.wait_for_rows(call, arrived + peer, peer, 0, tag) == 0:
                back.note_refusal(call, peer)
                lacks += 1
    if lacks != 0:
        back.poison(result, result_bytes)
