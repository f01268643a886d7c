"""Tables that place keys on ranks: inputs of a call, which must be the same on all of them.

Ranks tell each other, with their counts, one number that a table gives. Between nodes the table
travels with the segments, of which its number is told by the rank that takes them on. That one may
have refused the call, and have none itself; it takes that of a rank which has joined.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync, slabs = load("words"), load("vectors"), load("sync"), load("slabs")

KEYS = tl.constexpr(256)  # that are looked at together
RANKS = tl.constexpr(8)
MIX = tl.constexpr(0x3C79AC492BA7B653)  # odd numbers, with which bits of a product depend on all
MORE = tl.constexpr(0x1C69B3F74AC4AE35)  # lower ones of a factor


@triton.jit
def number_of(table, num_keys, num_ranks):
    """What a table of int64 is told by, sums of 64 bits over its entries, and whether one of these
    is no rank."""
    sums = tl.full((KEYS,), 0, tl.int64)
    wrong = tl.full((KEYS,), 0, tl.int32)
    for first in range(0, num_keys, KEYS):
        key = first + tl.arange(0, KEYS).to(tl.int64)
        owner = tl.load(table + key, mask=key < num_keys, other=0)
        mixed = (owner * 65536 + key + 1) * MIX
        mixed = (mixed ^ ((mixed >> 32) & 0xFFFFFFFF)) * MORE
        mixed = (mixed ^ ((mixed >> 29) & 0x7FFFFFFFF)) * MIX
        mixed = mixed ^ ((mixed >> 32) & 0xFFFFFFFF)
        sums += tl.where(key < num_keys, mixed, 0)
        wrong |= ((owner < 0) | (owner >= num_ranks)).to(tl.int32)
    return vectors.total(sums, 0), vectors.largest(wrong, 0)


@triton.jit
def tell(call, node, sources, table):
    """Tell the peers the number of this rank's ``table``, or of that which has come from a node, in
    the name of the rank there. Its ``sources``; -1 if with exact sizes an entry is no rank."""
    if sync.word(call, words.NUM_NODES) > 1:
        table = slabs.table_of(call, slabs.landed(call, node))
    if sources >= 0:
        num_keys = sync.word(call, words.NUM_KEYS)
        number, wrong = number_of(table, num_keys, sync.num_source_ranks(call))
        sources = tl.where((wrong != 0) & (sync.is_exact(call) != 0), -1, sources)
        mine = node * sync.word(call, words.NUM_RANKS) + sync.word(call, words.RANK)
        if sync.aborted(call) == 0:
            for peer in range(sync.word(call, words.NUM_RANKS)):
                tl.store(told(call, peer) + mine, number)
    return sources


@triton.jit
def told(call, window):
    """Where a rank's window has what has been told of the running call, by rank of all nodes."""
    epoch = tl.load(sync.array(call, words.STATE, tl.int32) + words.PLAN_EPOCH) + 1
    mine = (epoch & 1) * sync.num_source_ranks(call)
    return sync.section(call, window, words.TABLES_AT, tl.int64) + mine


@triton.jit
def differ(call, counts, columns):
    """Whether ranks that have joined the call have given different tables, which all find alike."""
    numbers = told(call, sync.word(call, words.RANK))
    lowest = tl.full((), 2**63 - 1, tl.int64)
    highest = -lowest
    for first in range(0, sync.num_source_ranks(call), RANKS):
        peer = first + tl.arange(0, RANKS).to(tl.int64)
        exists = peer < sync.num_source_ranks(call)
        sources = tl.load(counts + peer * (columns + 1) + columns, mask=exists, other=-1)
        joins = sources >= 0
        number = tl.load(numbers + peer, mask=joins, other=0)
        least = vectors.smallest(tl.where(joins, number, 2**63 - 1), 0)
        most = vectors.largest(tl.where(joins, number, -(2**63 - 1)), 0)
        lowest = tl.minimum(lowest, least)
        highest = tl.maximum(highest, most)
    return lowest < highest


@triton.jit
def note(call, counts, columns, differs):
    """Count the call if it ``differs`` in them; with exact sizes the host is told otherwise."""
    me = sync.first_rank(call) + sync.word(call, words.RANK)
    joins = tl.load(counts + me * (columns + 1) + columns) >= 0
    if differs & joins & (sync.is_exact(call) == 0):
        sync.note(call, words.MISPLACED, 1)


@triton.jit
def drop_own(call, node, point, exists, to, fanout: tl.constexpr):
    """Count points of this rank in a tile, of which those are planned here that go ``to`` ranks of
    this node: none of all is moved."""
    goes = exists & (to >= 0)
    if sync.word(call, words.NUM_NODES) > 1:
        own = point - node * sync.word(call, words.STRIDE) * fanout
        there = exists & (own < slabs.sources_of(call, node) * fanout)
        ranks = sync.array(call, words.OWN_RANKS, tl.int64)
        goes = there & (tl.load(ranks + own, mask=there, other=-1) >= 0)
    sync.drop(call, vectors.total(goes.to(tl.int32), 0))


@triton.jit
def in_use(call, table):
    """The table by which slots are assigned: this rank's, or between nodes that of a slab whose
    rank has joined the call."""
    if sync.word(call, words.NUM_NODES) > 1:
        chosen = sync.word(call, words.NODE)
        if slabs.sources_of(call, chosen) < 0:
            for node in range(sync.word(call, words.NUM_NODES)):
                joins = slabs.sources_of(call, node) >= 0
                chosen = tl.where(joins, tl.cast(node, tl.int64), chosen)
        table = slabs.table_of(call, slabs.landed(call, chosen))
    return table
