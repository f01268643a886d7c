"""Rows that travel between nodes without places for those that stay away, by the ranks of a node
that a policy chooses: they leave from memory that the node's ranks can address, and land there.

What a rank sends a node is a flow; its rows are numbered by their places. On both sides of the
network `number` finds the number of a place, as both know the points, and when it is known who
sends and gets which rows, `settle` makes of it where the row is. From then on the other kernels
pack a row there, move it on from there, and bring its sum back there, as they do in slabs. `share`
lets all ranks of a node know how large the flows of all are, and `pass_by` lets nobody go on before
all have moved what they had to, and says if they mean different routings.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync = load("words"), load("vectors"), load("sync")
slabs, known = load("slabs"), load("known")

RANKS = tl.constexpr(min(words.MAX_RANKS.value, 32))  # of a node that a program counts, a bit each
PLACES = tl.constexpr(8192 // RANKS.value)  # looked at together
COUNTS = tl.constexpr(1024)  # that are shared together
OTHER = tl.constexpr(-2)  # said in place of a dispatch, by ranks whose rails differ in it
PART = tl.constexpr(3)  # words of the rows of a flow that one rank sends: the number behind the
# last one, what is added to a number to get its place in memory, and which rank of the node has it
RANK_BITS = tl.constexpr(words.MAX_RANKS.value.bit_length() - 1)  # of the number of a rank


@triton.jit(do_not_specialize=range(6))
def number(
    call: tl.int64, has_landed: tl.int64, fanout: tl.int64, answered: tl.int64, numbers: tl.int64,
    counts: tl.int64,
):  # fmt: skip
    """A program for each node: of every place of its slab the number of its row in the flow to, or
    with ``has_landed`` from, that node, -1 without; int32 [nodes, stride] ``numbers``. ``counts``,
    int64 [nodes + ranks], are the rows of flows to every node and the segments to every rank, if
    they are not 0: then there are so many programs for each word of ranks. Of a reply a place is
    that of ``answered`` so many segments, one behind the other, with the points of all of them."""
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    program, num_nodes = tl.program_id(0).to(tl.int64), sync.word(call, words.NUM_NODES)
    node, first_rank = program % num_nodes, program // num_nodes * RANKS
    own = sync.word(call, words.NODE)
    stride = sync.word(call, words.STRIDE) // answered
    num_points = fanout * answered
    num_ranks = sync.word(call, words.NUM_RANKS)
    slab = slabs.leaving(call, node)
    is_there = tl.full((), 1, tl.int32)
    if has_landed != 0:
        slab = slabs.landed(call, node)
        is_there = slabs.is_of(slab, slabs.tag_of(call)).to(tl.int32)
    of_points = slabs.point_words(slab)
    to = numbers.to(tl.int64).to(tl.pointer_type(tl.int32)) + node * stride
    numbers_rows = first_rank == 0
    copies = tl.full((RANKS,), 0, tl.int64)
    rows = tl.full((), 0, tl.int32)
    for first in range(0, stride, PLACES):
        place = first + tl.arange(0, PLACES).to(tl.int64)
        exists = place < stride
        goes = tl.full((PLACES,), 0, tl.int32)
        ranks = tl.full((PLACES,), 0, tl.int32)  # a bit for each that the segment goes to
        for k in range(num_points):
            word = tl.load(of_points + place * num_points + k, mask=exists, other=-1)
            their = slabs.rank_of(word)
            goes |= (their >= 0).to(tl.int32)
            bit = their - first_rank
            is_counted = (bit >= 0) & (bit < RANKS) & (their >= 0)
            ranks |= tl.where(is_counted, 1 << tl.where(is_counted, bit, 0).to(tl.int32), 0)
        goes = tl.where((node != own) & (is_there != 0), goes, 0)
        index = rows + vectors.running(goes, 0) - goes
        tl.store(to + place, tl.where(goes != 0, index, -1), mask=exists & numbers_rows)
        rows += vectors.total(goes, 0)
        copies += vectors.total((ranks[:, None] >> tl.arange(0, RANKS)[None, :]) & 1, 0)
    if counts != 0:
        at = counts.to(tl.int64).to(tl.pointer_type(tl.int64))
        tl.store(at + node, rows.to(tl.int64), mask=numbers_rows)
        rank = first_rank + tl.arange(0, RANKS)
        tl.store(at + num_nodes + node * num_ranks + rank, copies, mask=rank < num_ranks)


@triton.jit(do_not_specialize=range(7))
def share(
    call: tl.int64, own: tl.int64, landed: tl.int64, width: tl.int64, bases: tl.int64,
    told: tl.int64, stamp: tl.int64,
):  # fmt: skip
    """A kernel of one program: tell the node's ranks the ``own`` counts, int64 [width], and those
    that have ``landed`` from the rank of this place in every node, [nodes, width]. The host reads
    all that are told in ``told``, [ranks of the node, nodes, width], in words that have a ``stamp``
    in their upper halves."""
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    rank = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    own_node = sync.word(call, words.NODE)
    size = sync.word(call, words.NUM_NODES) * width
    meeting = tl.load(sync.array(call, words.STATE, tl.int32) + words.MEETINGS) + 1
    begin = (meeting & 1).to(tl.int64) * num_ranks * size
    for first in range(0, size, COUNTS):
        index = first + tl.arange(0, COUNTS).to(tl.int64)
        exists, is_own = index < size, index // width == own_node
        at = landed.to(tl.int64).to(tl.pointer_type(tl.int64)) + index
        theirs = tl.load(at, mask=exists & (is_own == 0), other=0)
        mine = own.to(tl.int64).to(tl.pointer_type(tl.int64)) + index % width
        count = tl.where(is_own, tl.load(mine, mask=exists & is_own, other=0), theirs)
        for peer in range(num_ranks):
            to = memory_of(bases, peer).to(tl.pointer_type(tl.int64)) + begin + rank * size
            tl.store(to + index, count, mask=exists)
    known.meet(call, 0)
    for first in range(0, num_ranks * size, COUNTS):
        index = first + tl.arange(0, COUNTS).to(tl.int64)
        exists = index < num_ranks * size
        at = memory_of(bases, rank).to(tl.pointer_type(tl.int64)) + begin
        count = tl.load(at + index, mask=exists, other=0)
        to = told.to(tl.int64).to(tl.pointer_type(tl.int64))
        tl.store(to + index, (stamp.to(tl.int64) << 32) | count, mask=exists)


@triton.jit(do_not_specialize=range(3))
def pass_by(call: tl.int64, follows: tl.int64, returns: tl.int64):
    """A kernel of one program that ends when all ranks of the node have come to it.

    If the rows behind it go along the routing of dispatch ``follows``, -1 if not, back where it
    ``returns``, the host is told if a rank of this rail, or of that of a rank of the node, follows
    another one: it has sent a header that says so, and rows of the two do not fit each other."""
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    follows = follows.to(tl.int32)
    own = sync.word(call, words.NODE)
    said = follows
    for node in range(sync.word(call, words.NUM_NODES)):
        slab = slabs.landed(call, node)
        if returns != 0:
            slab = slabs.come_back(call, node)
        theirs = slabs.routing_of(slab, returns)
        said = tl.where((node != own) & (theirs != follows) & (follows >= 0), OTHER, said)
    they_say = known.meet(call, said)
    rank = tl.arange(0, words.MAX_RANKS)
    there = rank < sync.word(call, words.NUM_RANKS)
    differs = there & (tl.load(they_say + rank, mask=there, other=0) != follows)
    if (vectors.largest(differs.to(tl.int32), 0) > 0) & (sync.aborted(call) == 0):
        tl.store(sync.array(call, words.EXCHANGES, tl.int32) + words.DO_NOT_FIT, 1)


@triton.jit
def memory_of(bases, rank):
    """Where the memory of a rank of the node begins that all can address."""
    return tl.load(bases.to(tl.int64).to(tl.pointer_type(tl.int64)) + rank)


@triton.jit(do_not_specialize=range(6))
def settle(
    own: tl.int64, others: tl.int64, num_nodes: tl.int64, stride: tl.int64, num_ranks: tl.int64,
    parts: tl.int64,
):  # fmt: skip
    """A program for each node and side: of every place that has a number where its row is, as
    `slabs.row_in` reads it. Numbers are int32 [nodes, stride], this rank's ``own`` flows, and those
    of ``others`` that have landed; ``parts``: int64 [2, nodes, ranks of the node, PART]."""
    flow = tl.program_id(0).to(tl.int64)
    of_places = tl.where(flow < num_nodes, own, others).to(tl.pointer_type(tl.int32))
    of_places += flow % num_nodes * stride
    part = parts.to(tl.int64).to(tl.pointer_type(tl.int64)) + flow * num_ranks * PART
    for first in range(0, stride, PLACES):
        place = first + tl.arange(0, PLACES).to(tl.int64)
        exists = place < stride
        index = tl.load(of_places + place, mask=exists, other=-1).to(tl.int64)
        rank = tl.full((PLACES,), 0, tl.int64)  # that has the row: parts before it end before it
        for bit in tl.static_range(RANK_BITS):
            next_rank = rank + (words.MAX_RANKS >> (bit + 1))
            is_one = next_rank < num_ranks
            end = tl.load(part + (next_rank - 1) * PART, mask=is_one, other=0)
            rank = tl.where(is_one & (index >= end), next_rank, rank)
        of_rank = part + rank * PART
        shift, owner = tl.load(of_rank + 1), tl.load(of_rank + 2)
        is_here = (index >= 0) & (index < tl.load(of_rank))
        at = tl.where(is_here, (owner << slabs.ROW_BITS) | (index + shift), -1)
        tl.store(of_places + place, at.to(tl.int32), mask=exists)
