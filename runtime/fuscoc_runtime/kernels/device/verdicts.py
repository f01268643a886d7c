"""What nodes tell each other of a dispatch of exact sizes that one may have to refuse for all.

Whether a given slot exists and is free, and whether a rank has more slots than its capacity, is
found out where slots are, when everything has landed there. So before rows move every rank tells
its rail what its node has found, all ranks of a node the same: then all nodes move them, or none. A
node whose windows are too small to look at slots says so, and all plan once more when it has larger
ones.

Verdicts travel in the place of receipts, which are of a fixed capacity: the tag of the call, and
what is found.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync, slabs = load("words"), load("vectors"), load("sync"), load("slabs")

GOES = tl.constexpr(0)
GROWS = tl.constexpr(1)  # windows are too small
REFUSES = tl.constexpr(2)


@triton.jit
def tell(call, sources, slots):
    """Say what has been found of the source segments and slots of this node's ranks, by place."""
    there = tl.arange(0, words.MAX_RANKS) < sync.word(call, words.NUM_RANKS)
    refuses = (sources < 0) | (slots > sync.word(call, words.MOST_SLOTS))
    grows = slots > sync.word(call, words.CAPACITY)
    found = tl.where(refuses, REFUSES, tl.where(grows, GROWS, GOES))
    verdict = vectors.largest(tl.where(there, found, GOES), 0)
    for node in range(sync.word(call, words.NUM_NODES)):
        to = sync.array(call, words.RECEIPTS_OUT, tl.int64) + node * slabs.RECEIPTS
        tl.store(to, slabs.tag_of(call))
        tl.store(to + 1, verdict.to(tl.int64))


@triton.jit
def of_all_nodes(call):
    """The gravest verdict. A node that is out of step refuses the call."""
    gravest = tl.full((), 0, tl.int64)
    tag = slabs.tag_of(call)
    for node in range(sync.word(call, words.NUM_NODES)):
        own = node == sync.word(call, words.NODE)
        first = sync.word(call, words.RECEIPTS_IN)
        first = tl.where(own, sync.word(call, words.RECEIPTS_OUT), first)
        told = first.to(tl.pointer_type(tl.int64)) + node * slabs.RECEIPTS
        verdict = tl.where(tl.load(told) == tag, tl.load(told + 1), REFUSES)
        gravest = tl.maximum(gravest, verdict)
    return gravest
