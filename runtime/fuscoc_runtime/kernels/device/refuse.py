"""A dispatch that a rank does not join: a kernel that takes its turn."""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, sync, kept, move = load("words"), load("sync"), load("kept"), load("move")

COUNTS = tl.constexpr(2048)  # that are told at once


@triton.jit(do_not_specialize=range(4))
def refuse(call: tl.int64, ticket: tl.int64, columns: tl.int64, blocks: tl.int64):
    """A kernel of one program that takes a dispatch's turn without joining it: the peers get the
    counts of a rank without segments, and know that it refused."""
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    epoch = tl.load(sync.array(call, words.STATE, tl.int32) + words.PLAN_EPOCH) + 1
    rank = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    mine = ((epoch & 1) * num_ranks + rank) * (columns + 1)
    if sync.word(call, words.NOTES_AT) != 0:
        kept.tell(call, epoch, tl.full((), 0, tl.int32))
    if sync.aborted(call) == 0:
        for peer in range(num_ranks):
            to = sync.section(call, peer, words.COUNTS_AT, tl.int32) + mine
            for start in range(0, columns + 1, COUNTS):
                column = start + tl.arange(0, COUNTS)
                tl.store(to + column, tl.where(column < columns, 0, -1), mask=column <= columns)
        for block in range(blocks):
            sync.signal(call, words.PLAN_FLAGS_AT, rank * blocks + block, epoch)
    # Their counts say that the peers have finished everything before.
    sync.wait_for_all(call, words.PLAN_FLAGS_AT, blocks, 0, epoch, words.PLAN_PEERS)
    end_turn(call, epoch, ticket)


@triton.jit
def end_turn(call, epoch, ticket):
    """End a dispatch that this rank does not join."""
    if sync.word(call, words.NOTES_AT) != 0:
        there, others, _ = move.arrivals(call)
        move.arrive(there, others, move.ARRIVED)
    else:
        flags = sync.word(call, words.RANK) * sync.word(call, words.MAX_SOURCES)
        sync.signal(call, words.DISPATCH_FLAGS_AT, flags, epoch)  # compact targets wait for it
    sync.end_dispatch(call, epoch, ticket)
