"""What planning finds out of calls whose sizes are exact: whether they are carried out, and what
the host waits for.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync = load("words"), load("vectors"), load("sync")


@triton.jit
def stops(call, counts, slots, columns):
    """With exact sizes, whether nothing of the call is moved, which all ranks find out alike: one
    refuses it, or the windows are too small. ``slots`` are those of every rank."""
    peer = tl.arange(0, words.MAX_RANKS)
    there = peer < sync.word(call, words.NUM_RANKS)
    sources = tl.load(counts + peer * (columns + 1) + columns, mask=there, other=0)
    stop = (sources < 0) | (sources > sync.word(call, words.MAX_SOURCES))
    stop = stop | (slots > sync.word(call, words.CAPACITY))
    return (vectors.largest((there & stop).to(tl.int32), 0) > 0) & (sync.is_exact(call) != 0)


@triton.jit
def report(call, counts, slots, rows, columns):
    """Tell the host, with exact sizes, what it waits for; by one program."""
    if sync.is_exact(call):
        peer = tl.arange(0, words.MAX_RANKS)
        there = peer < sync.word(call, words.NUM_RANKS)
        sources = tl.load(counts + peer * (columns + 1) + columns, mask=there, other=0)
        store_report(call, words.REPORT_SLOTS + peer, slots)
        store_report(call, words.REPORT_SOURCES + peer, sources)
        store_report(call, words.REPORT_ROWS, rows)
        store_report(call, words.REPORT_ABORTED, sync.aborted(call))


@triton.jit
def store_report(call, at, value):
    """Numbers and, in the same words of 64 bits, the epoch that tells which call they are of."""
    epoch = tl.load(sync.array(call, words.STATE, tl.int32) + words.PLAN_EPOCH) + 1
    both = (epoch.to(tl.int64) << 32) | (value.to(tl.int64) & 0xFFFFFFFF)
    tl.store(sync.array(call, words.REPORT, tl.int64) + at, both)
