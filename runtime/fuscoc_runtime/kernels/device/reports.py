"""What planning finds out of calls whose sizes are exact: whether they are carried out, and what
the host waits for.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync, slabs = load("words"), load("vectors"), load("sync"), load("slabs")
verdicts = load("verdicts")


@triton.jit
def told_sources(call, node, num_sources):
    """What a rank tells of its source segments, or of those that have landed from a node. With
    exact sizes it refuses the call, -1, if one of its points cannot be moved; between nodes its
    slabs say so."""
    sources = num_sources.to(tl.int32)
    if sync.word(call, words.NUM_NODES) > 1:
        sources = slabs.sources_of(call, node)
    elif sync.is_exact(call):
        routing = sync.array(call, words.ROUTING, tl.int32)
        use = tl.load(routing + words.USES) + 1
        sources = tl.where(tl.load(routing + words.DROPPED + (use & 1)) > 0, -1, sources)
    return sources


@triton.jit
def stops(call, counts, slots, columns):
    """With exact sizes, whether nothing of the call is moved, which all ranks find out alike: one
    refuses it, or the windows, or between nodes the slabs, are too small. ``slots`` are those of
    every rank."""
    there = tl.arange(0, words.MAX_RANKS) < sync.word(call, words.NUM_RANKS)
    sources = most_sources(call, counts, columns)
    stop = (sources < 0) | (sources > sync.word(call, words.STRIDE))
    stop = stop | (slots > sync.word(call, words.CAPACITY))
    return (vectors.largest((there & stop).to(tl.int32), 0) > 0) & (sync.is_exact(call) != 0)


@triton.jit
def most_sources(call, counts, columns):
    """By place in a node, the most source segments of a rank there, of all nodes; -1 if one of them
    refuses the call."""
    place = tl.arange(0, words.MAX_RANKS)
    num_ranks = sync.word(call, words.NUM_RANKS)
    most = tl.full((words.MAX_RANKS,), 0, tl.int32)
    refuses = most
    for node in range(sync.word(call, words.NUM_NODES)):
        at = counts + (node * num_ranks + place) * (columns + 1) + columns
        sources = tl.load(at, mask=place < num_ranks, other=0)
        most = tl.maximum(most, sources)
        refuses = tl.minimum(refuses, sources)
    return tl.where(refuses < 0, -1, most)


@triton.jit
def report(call, counts, slots, rows, columns, differs=None):
    """Tell the host, with exact sizes, what it waits for, and other nodes what must be known of it
    there; by one program. Where tables of ranks
    ``differs`` they refuse the call, all of them."""
    if sync.is_exact(call):
        peer = tl.arange(0, words.MAX_RANKS)
        sources = most_sources(call, counts, columns)
        if differs is not None:
            sources = tl.where(differs, -1, sources)
        store_report(call, words.REPORT_SLOTS + peer, slots)
        store_report(call, words.REPORT_SOURCES + peer, sources)
        store_report(call, words.REPORT_ROWS, rows)
        store_report(call, words.REPORT_ABORTED, sync.aborted(call))
        if sync.word(call, words.MOST_SLOTS) > 0:
            verdicts.tell(call, sources, slots)


@triton.jit
def store_report(call, at, value):
    """Numbers and, in the same words of 64 bits, the epoch that tells which call they are of."""
    epoch = tl.load(sync.array(call, words.STATE, tl.int32) + words.PLAN_EPOCH) + 1
    both = (epoch.to(tl.int64) << 32) | (value.to(tl.int64) & 0xFFFFFFFF)
    tl.store(sync.array(call, words.REPORT, tl.int64) + at, both)
