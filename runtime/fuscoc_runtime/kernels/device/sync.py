"""Epoch words: how programs of one GPU and of several wait for each other.

A flag holds the epoch of the call that set it and is never cleared, so a captured graph can be
replayed. Epochs wrap: only their differences count. Only atomics look at what others write: their
result is the same in every thread.
"""

import time

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words = load("words")

if triton.knobs.runtime.interpret:

    def pause():
        """Leave the processor to the ranks that are waited for."""
        time.sleep(1e-4)

else:

    @triton.jit
    def pause():
        pass


@triton.jit
def word(call, name: tl.constexpr):
    return tl.load(call + name)


@triton.jit
def array(call, name: tl.constexpr, dtype: tl.constexpr):
    """The array whose address is in the table."""
    return tl.load(call + name).to(tl.pointer_type(dtype))


@triton.jit
def section(call, peer, name: tl.constexpr, dtype: tl.constexpr):
    """A part of a rank's window."""
    return (tl.load(call + peer) + tl.load(call + name)).to(tl.pointer_type(dtype))


@triton.jit
def signal(call, name: tl.constexpr, index, epoch):
    """Set the flag ``index`` of a section at every peer, behind all this program has stored."""
    rank = word(call, words.RANK)
    num_ranks = word(call, words.NUM_RANKS)
    tl.debug_barrier()  # the stores of every thread come first
    for step in range(1, num_ranks):
        flag = section(call, (rank + step) % num_ranks, name, tl.int32) + index
        tl.atomic_xchg(flag, epoch, sem="release", scope="sys")


@triton.jit
def signal_one(call, peer, name: tl.constexpr, index, epoch):
    """The same for one peer."""
    tl.debug_barrier()
    tl.atomic_xchg(section(call, peer, name, tl.int32) + index, epoch, sem="release", scope="sys")


@triton.jit
def wait(call, flag, epoch, stage: tl.constexpr, peer, item):
    """Spin until ``flag`` has reached ``epoch``. False when it never does, which is recorded once:
    the time is up, some peer has refused a call, or another wait was given up before."""
    behind = epoch - tl.atomic_add(flag, 0, sem="acquire", scope="sys")
    if behind > 0:
        state = array(call, words.STATE, tl.int32)
        refusals = section(call, word(call, words.RANK), words.REFUSALS_AT, tl.int32)
        num_ranks = word(call, words.NUM_RANKS)
        refused = tl.load(state + words.REFUSALS)
        gave_up = 0
        spins = word(call, words.MAX_SPINS)
        while (behind > 0) & (gave_up == 0) & (spins > 0):
            behind = epoch - tl.atomic_add(flag, 0, sem="acquire", scope="sys")
            gave_up = tl.atomic_add(state + words.GAVE_UP, 0, sem="relaxed", scope="gpu")
            asked = spins % num_ranks
            if tl.atomic_add(refusals + asked, 0, sem="relaxed", scope="sys") - refused > 0:
                give_up(state, words.REFUSED, asked, 0)
            spins -= 1
            pause()
        if behind > 0:
            give_up(state, stage, peer, item)
    return behind <= 0


@triton.jit
def give_up(state, stage: tl.constexpr, peer, item):
    """Record why a wait was given up; the first reason is kept."""
    blame = (peer << 20) + (item & 0xFFFFF) + ((stage << 24) - 2**31)
    tl.atomic_cas(state + words.GAVE_UP, 0, blame.to(tl.int32), sem="relaxed", scope="gpu")


@triton.jit
def wait_for_all(call, name: tl.constexpr, stride, index, epoch, stage: tl.constexpr):
    """Wait for the flag ``index`` of every peer, in this rank's window; whether all came."""
    rank = word(call, words.RANK)
    num_ranks = word(call, words.NUM_RANKS)
    flags = section(call, rank, name, tl.int32)
    there = 1
    for step in range(1, num_ranks):
        peer = (rank + step) % num_ranks
        came = wait(call, flags + peer * stride + index, epoch, stage, peer, index)
        there = there & came.to(tl.int32)
    return there != 0


@triton.jit
def flagged_by_all(call, name: tl.constexpr, stride, index, epoch):
    """Whether every peer has set its flag ``index``, without waiting for it."""
    rank = word(call, words.RANK)
    num_ranks = word(call, words.NUM_RANKS)
    flags = section(call, rank, name, tl.int32)
    there = 1
    for step in range(1, num_ranks):
        flag = flags + (rank + step) % num_ranks * stride + index
        behind = epoch - tl.atomic_add(flag, 0, sem="acquire", scope="sys")
        there = there & (behind <= 0).to(tl.int32)
    return there != 0


@triton.jit
def group_size(call, most):
    """Source segments under one flag: fewer when every rank has few, to spread a small batch."""
    longest = tl.load(array(call, words.NUM_SOURCES_OF, tl.int32) + words.MAX_RANKS)
    return tl.minimum(most, tl.maximum(longest // 2048, 1))


@triton.jit
def take(state, counter: tl.constexpr):
    """The next item of a work counter."""
    return tl.atomic_add(state + counter, 1, sem="relaxed", scope="gpu").to(tl.int64)


@triton.jit
def leave(state, epoch_word: tl.constexpr, epoch):
    """Whether this program is the last; that one resets the work counters and ends the epoch."""
    tl.debug_barrier()
    last = tl.atomic_add(state + words.EXITS, 1) == tl.num_programs(0) - 1
    if last:
        tl.store(state + words.EXITS, 0)
        tl.store(state + words.NEXT_ITEM, 0)
        tl.store(state + words.NEXT_GROUP, 0)
        tl.store(state + epoch_word, epoch)
    return last


@triton.jit(do_not_specialize=range(1))
def spin(call: tl.int64):
    """A kernel that waits in vain for this rank's first combine, to find out how long it takes."""
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    rank = word(call, words.RANK)
    flag = section(call, rank, words.BARRIER_AT, tl.int32) + rank
    wait(call, flag, 1, words.COMBINE_ENTER, rank, rank)


@triton.jit(do_not_specialize=range(2))
def refuse(call: tl.int64, num_refusals: tl.int64):
    """A kernel that tells the peers of one more call that this rank does not join."""
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_refusals = num_refusals.to(tl.int32)
    tl.store(array(call, words.STATE, tl.int32) + words.REFUSALS, num_refusals)
    rank = word(call, words.RANK)
    num_ranks = word(call, words.NUM_RANKS)
    for step in range(1, num_ranks):
        told = section(call, (rank + step) % num_ranks, words.REFUSALS_AT, tl.int32) + rank
        tl.atomic_xchg(told, num_refusals, sem="release", scope="sys")
