"""Replies: the routing of rows that come back otherwise than they went.

A reply has the points and slots of a dispatch, and other segments: each answers ``segments`` of
those that were sent, one behind the other. So the slot codes of its points are those that the
dispatch has left, and nothing is planned. What peers must know for the combine is told behind the
rows: points with their weights. The state is that of the dispatch, windows are the reply's own.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync = load("words"), load("vectors"), load("sync")
compact, known_calls = load("compact"), load("known")

TILE = tl.constexpr(32)  # segments that a program looks at together
NONE = tl.constexpr(2**31 - 1)


@triton.jit
def announce(call: tl.int64):
    """A kernel of one program before a dispatch that has a reply: peers that wait for something of
    an earlier reply need not wait any longer."""
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    epoch = tl.load(sync.array(call, words.STATE, tl.int32) + words.PLAN_EPOCH) + 1
    if sync.aborted(call) == 0:
        blocks = sync.word(call, words.RANK) * sync.word(call, words.PLAN_BLOCKS)
        sync.signal(call, words.PLAN_FLAGS_AT, blocks, epoch)


@triton.jit(do_not_specialize=range(7))
def adopt(
    call: tl.int64, ticket: tl.int64, num_sources: tl.int64, fanout: tl.int64, segments: tl.int64,
    weights: tl.int64, known: tl.int64,
):  # fmt: skip
    """Behind the rows of a dispatch: its routing as that of its reply.

    ``weights``: f32 [num_sources, fanout], or 0. ``known``: the routing of the dispatch, or 0 if
    this rank has refused it; its turn ends here as that of the others.
    """
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    epoch = tl.load(sync.array(call, words.STATE, tl.int32) + words.PLAN_EPOCH) + 1
    joins = known != 0
    known = known.to(tl.int64).to(tl.pointer_type(tl.int32))
    own = known + sync.word(call, words.RANK) + words.SOURCES
    sent = tl.load(own, mask=joins, other=0)
    num_sources = tl.minimum(num_sources, sent.to(tl.int64) // segments)
    if (num_sources > 0) & (sync.aborted(call) == 0):
        known_calls.tell_points(call, num_sources * fanout, fanout, weights)
    lowest_slots(call, num_sources, fanout)
    if tl.program_id(0) == 0:
        keep_sources(call, known, joins, segments)
    compact.arrive(call, epoch, ticket)


@triton.jit(do_not_specialize=range(6))
def follow(
    call: tl.int64, num_sources: tl.int64, fanout: tl.int64, segments: tl.int64, known: tl.int64,
    own_sources: tl.int64,
):  # fmt: skip
    """The same with exact sizes, where nothing is told before the combine; also where this rank's
    own segments lie, which a dispatch along the routing looks up."""
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    lowest_slots(call, num_sources, fanout)
    offsets = sync.array(call, words.SRC_OFFSETS, tl.int64)
    stride = tl.num_programs(0).to(tl.int64) * TILE
    for first in range(tl.program_id(0).to(tl.int64) * TILE, own_sources, stride):
        source = first + tl.arange(0, TILE).to(tl.int64)
        tl.store(offsets + source * fanout, source, mask=source < own_sources)
    if tl.program_id(0) == 0:
        keep_sources(call, known.to(tl.int64).to(tl.pointer_type(tl.int32)), True, segments)


@triton.jit
def lowest_slots(call, num_sources, fanout):
    """The lowest slot of every segment on each rank, as its points' codes say; -1: none there."""
    codes = sync.array(call, words.CODES, tl.int32)
    slots = sync.array(call, words.FIRST_SLOTS, tl.int32)
    peer = tl.arange(0, words.MAX_RANKS)
    stride = tl.num_programs(0).to(tl.int64) * TILE
    for first in range(tl.program_id(0).to(tl.int64) * TILE, num_sources, stride):
        source = first + tl.arange(0, TILE).to(tl.int64)
        inside = source < num_sources
        lowest = tl.full((TILE, words.MAX_RANKS), NONE, tl.int32)
        for k in range(fanout):
            code = tl.load(codes + source * fanout + k, mask=inside, other=-1)
            slot = tl.where(code >= 0, code & words.SLOT_MASK, NONE)
            goes = (code >> words.SLOT_BITS)[:, None] == peer[None, :]
            lowest = tl.minimum(lowest, tl.where(goes, slot[:, None], NONE))
        to = slots + source[:, None] * words.MAX_RANKS + peer[None, :]
        tl.store(to, tl.where(lowest < NONE, lowest, -1), mask=inside[:, None])


@triton.jit
def keep_sources(call, known, joins, segments):
    """Segments of every rank that a reply answers, and the ranks that have refused the dispatch."""
    routing = sync.array(call, words.ROUTING, tl.int32)
    most = tl.load(known + words.MOST_SOURCES, mask=joins, other=0)
    tl.store(routing + words.MOST_SOURCES, (most // segments).to(tl.int32))
    for rank in range(words.MAX_RANKS):
        sent = tl.load(known + rank + words.SOURCES, mask=joins, other=0)
        tl.store(routing + rank + words.SOURCES, (sent // segments).to(tl.int32))
    for word in tl.static_range(words.RANK_WORDS):
        refusing = tl.load(known + words.REFUSING + word, mask=joins, other=0)
        tl.store(routing + words.REFUSING + word, refusing)
