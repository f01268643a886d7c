"""A combine across nodes: what a rank has taken on for others goes back over the network.

`collect` reduces as inside a node, adds up the segments of other nodes and leaves a sum of each to
the slab of its node. When slabs have travelled, `finish` adds up this rank's own segments: its own
rows, then partial rows of its node, which are there since, then the sums of other nodes, in their
order. Where staging would be large it has room for the partial rows of some of the places, which
come in turns. Where slabs are large there are several of both kernels, for some of the places
each: while sums of some travel, those of later ones are made, and those of earlier ones are added
up. A rank that refuses the combine sends slabs all the same; what needs its rows is lost.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load
from fuscoc_runtime.room import MOST_TURNS

words, vectors, sync = load("words"), load("vectors"), load("sync")
slabs, points, back, of_rows = load("slabs"), load("points"), load("combine"), load("sums")
ranks = load("ranks")

NODES = tl.constexpr(8)  # whose flags are looked at together
TURNS = tl.constexpr(MOST_TURNS)  # of a combine, at most


@triton.jit
def collect(
    call, num_sources, ticket, rows_ticket, weights, first, end, rows, zero: tl.constexpr,
    add_row: tl.constexpr, add_partial: tl.constexpr, store_partial: tl.constexpr,
    partial_bytes: tl.constexpr, fanout: tl.constexpr, lanes: tl.constexpr, parts: tl.constexpr,
    weighted: tl.constexpr,
):  # fmt: skip
    """Before the network, for the segments of other nodes from the places ``first`` to ``end``, so
    many. ``rows_ticket`` as in `combine`, -1 if this rank refuses."""
    sync.follow()
    if first == 0:
        slabs.tell_exchange(call, 0)
    turn = back.begin(call, ticket, rows_ticket)
    joins, tag = turn[0], turn[1]
    if (first > 0) & (first % sync.word(call, words.STAGED_PLACES) == 0) & (joins == 1):
        joins = begin_turn(call, tag, first // sync.word(call, words.STAGED_PLACES))
    if joins == 1:
        back.sum_rows(
            call, num_sources, tag, 1, weights, rows, rows, zero, add_row, add_partial,
            store_partial, None, None, None, None, None, None, partial_bytes, fanout, lanes, parts,
            weighted, False, False, 1, collect_one, slabs.others_source, first, end,
            slabs.num_reduced, slabs.reduced_source,
        )  # fmt: skip
    else:
        outdated = turn[3]
        # With exact sizes that is so on all ranks, and the call has no number of its own.
        if (tl.program_id(0) == 0) & ((outdated == 0) | (sync.is_exact(call) == 0)):
            back.refuse(call, tag)
        for place in range(tl.program_id(0).to(tl.int64), num_sources, tl.num_programs(0)):
            lose(call, slabs.others_source(call, first, end, place), fanout, lanes)
    if tl.program_id(0) == 0:
        for node in range(sync.word(call, words.NUM_NODES)):
            slab = slabs.going_back(call, node)
            tl.store(slab.to(tl.pointer_type(tl.int64)), slabs.tag_back(call, tag))
            if joins == 0:
                ranks.add_one(slabs.status_of(slab), sync.word(call, words.RANK))
    sync.leave(sync.array(call, words.STATE, tl.int32), "gpu")


@triton.jit
def begin_turn(call, tag, turn):
    """Tell the peers that this rank has added up what they have sent so far, and wait until they
    have: then staging may be written once more. Whether it may."""
    told = turn_word(tag, turn)
    rank = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    if tl.program_id(0) == 0:
        for step in range(1, num_ranks):
            back.tell(call, words.TURNS_AT, (rank + step) % num_ranks, told)
    return back.told_by_all(call, words.TURNS_AT, told, tag)


@triton.jit
def turn_word(tag, turn):
    """What a rank tells that has got to a turn of a combine. Its lower half wraps, as it may: words
    are told from others by their differences."""
    return (tag >> 32 << 32) | ((tag * TURNS + turn) & 0xFFFFFFFF)


@triton.jit
def collect_one(
    call, source, tag, absent, weights, rows, result, zero: tl.constexpr, add_row: tl.constexpr,
    add_partial: tl.constexpr, store_partial: tl.constexpr, store_result: tl.constexpr,
    lost: tl.constexpr, partial_bytes: tl.constexpr, fanout: tl.constexpr, lanes: tl.constexpr,
    parts: tl.constexpr, weighted: tl.constexpr, places: tl.constexpr, strided: tl.constexpr,
):  # fmt: skip
    """The sum of a segment of another node into the slab, and whether there is one."""
    codes, bits = points.own_points(call, source, weights, fanout, lanes, weighted)
    node = source // sync.word(call, words.STRIDE)
    slab = slabs.going_back(call, node)
    place = source % sync.word(call, words.STRIDE)
    flag = tl.full((), 0, tl.int32)
    if vectors.largest(codes, 0) >= 0:
        slots = points.slots_here(call, codes)
        there = back.sent_here(call, source)
        lacks = back.lacking(there, absent)
        if vectors.largest(lacks, 0) == 1:
            flag += slabs.LOST
            ranks.add(slabs.status_of(slab), lacks)
        else:
            flag += slabs.SUMMED
            row = slabs.sum_at(
                call, slab, words.ROWS_IN, words.ROWS_GOT, node, place, partial_bytes
            )  # fmt: skip
            for part in range(parts):
                _, sums = of_rows.sum_here(
                    call, part, source, slots, bits, there, rows, zero, add_row, add_partial,
                    partial_bytes, fanout, lanes, weighted,
                )  # fmt: skip
                store_partial(part, row, sums)
    tl.store(slabs.flag_of(slab, place), flag)


@triton.jit
def lose(call, source, fanout: tl.constexpr, lanes: tl.constexpr):
    """Say of a segment of another node that its rows cannot be summed, if it has some here."""
    codes, _ = points.own_points(call, source, 0, fanout, lanes, False)
    slab = slabs.going_back(call, source // sync.word(call, words.STRIDE))
    flag = tl.where(vectors.largest(codes, 0) >= 0, slabs.LOST, 0)
    tl.store(slabs.flag_of(slab, source % sync.word(call, words.STRIDE)), flag)


@triton.jit
def finish(
    call, num_sources, ticket, rows_ticket, weights, first, end, rows, result, result_bytes,
    zero: tl.constexpr, add_row: tl.constexpr, add_partial: tl.constexpr,
    store_result: tl.constexpr, lost: tl.constexpr, num_fields: tl.constexpr,
    partial_bytes: tl.constexpr, fanout: tl.constexpr, lanes: tl.constexpr, parts: tl.constexpr,
    weighted: tl.constexpr, places: tl.constexpr = False, strided: tl.constexpr = False,
):  # fmt: skip
    """Behind the network: the results of this rank's segments from ``first`` to ``end``, in the
    order of `slabs.finished_source`, as `combine` has them. With the last ones the call ends."""
    sync.follow()
    ends = end >= sync.word(call, words.STRIDE)
    if ends:
        slabs.tell_exchange(call, 1)
    turn = back.look(call, ticket, rows_ticket)
    joins, tag = turn[0], turn[1]
    if joins == 1:
        count = tl.maximum(tl.minimum(num_sources, end) - first, 0)
        back.sum_rows(
            call, count, tag, 0, weights, rows, result, zero, add_row, add_partial, None,
            store_result, lost, None, None, None, None, partial_bytes, fanout, lanes, parts,
            weighted, places, strided, 1, finish_one, slabs.finished_source, first, end,
        )  # fmt: skip
    elif ends & (rows_ticket >= 0):
        back.poison_all(result, result_bytes, num_fields)
    if ends & (tl.program_id(0) == 0):
        for first in range(0, sync.word(call, words.NUM_NODES), NODES):
            note_refusals(call, first, tag)
    if ends:
        back.finish(call, turn)
    else:
        sync.leave(sync.array(call, words.STATE, tl.int32), "gpu")


@triton.jit
def note_refusals(call, first, tag):
    """Count the ranks of nodes from ``first`` on whose rows some segment of this rank lacks."""
    node, exists, slab = nodes_from(call, first)
    is_theirs = tl.load(slab.to(tl.pointer_type(tl.int64)), mask=exists, other=0)
    is_theirs = is_theirs == slabs.tag_back(call, tag)
    num_ranks = sync.word(call, words.NUM_RANKS)
    own = sync.word(call, words.RANK)
    left = slabs.status_of(slabs.going_back(call, node))
    for word in tl.static_range(words.RANK_WORDS):
        bit = ((own >> 5) == word).to(tl.int32) << (own & 31).to(tl.int32)
        refusing = tl.load(slabs.status_of(slab) + word, mask=exists, other=0)
        refusing = tl.where(exists & (is_theirs == 0), bit, refusing)
        if vectors.largest((refusing != 0).to(tl.int32), 0) > 0:
            for index in range(NODES):
                bits = vectors.pick(refusing, index, NODES)
                for peer in range(tl.minimum(num_ranks - word * 32, 32)):
                    if (bits >> peer) & 1 == 1:
                        at = first + index
                        back.note_refusal(call, at * num_ranks + word * 32 + peer)
        # It has been sent, and ranks will be added to it.
        tl.store(left + word, 0, mask=node < sync.word(call, words.NUM_NODES))


@triton.jit
def nodes_from(call, first):
    """The nodes from ``first`` on that are looked at together, which of them are others, and the
    slabs that have come back from these."""
    node = first + tl.arange(0, NODES)
    exists = (node < sync.word(call, words.NUM_NODES)) & (node != sync.word(call, words.NODE))
    return node, exists, slabs.come_back(call, tl.where(exists, node, 0))


@triton.jit
def finish_one(
    call, source, tag, absent, weights, rows, result, zero: tl.constexpr, add_row: tl.constexpr,
    add_partial: tl.constexpr, store_partial: tl.constexpr, store_result: tl.constexpr,
    lost: tl.constexpr, partial_bytes: tl.constexpr, fanout: tl.constexpr, lanes: tl.constexpr,
    parts: tl.constexpr, weighted: tl.constexpr, places: tl.constexpr, strided: tl.constexpr,
):  # fmt: skip
    """The result of a segment of this rank."""
    codes, bits = points.own_points(call, source, weights, fanout, lanes, weighted)
    slots = points.slots_here(call, codes)
    there = back.sent_here(call, source)
    lacks = back.lacking(there, absent)
    segment = source % sync.word(call, words.STRIDE)
    num_nodes = sync.word(call, words.NUM_NODES)
    flags = flags_of(call, 0, segment, tag)  # on their way while this node's rows are added up
    to = segment
    if places:
        to = points.cell_of(call, segment, fanout, strided)
    is_lost = vectors.largest(lacks, 0)
    for part in range(parts):
        has, sums = of_rows.sum_here(
            call, part, source, slots, bits, there, rows, zero, add_row, add_partial,
            partial_bytes, fanout, lanes, weighted,
        )  # fmt: skip
        for first in range(0, num_nodes, NODES):
            found = flags
            if first > 0:
                found = flags_of(call, first, segment, tag)
            is_lost |= vectors.largest(found & slabs.LOST, 0)
            for node in range(first, tl.minimum(first + NODES, num_nodes)):
                if vectors.pick(found, node - first, NODES) == slabs.SUMMED:
                    slab, place = slabs.come_back(call, node), slabs.place_of(call, node, segment)
                    row = slabs.sum_at(
                        call, slab, words.ROWS_OUT, words.ROWS_SENT, node, place, partial_bytes
                    )  # fmt: skip
                    sums = add_partial(part, row, has, sums)
                    has = has | 1
        if (has != 0) | (places == 0):
            store_result(part, result, to, sums)
    if is_lost != 0:
        tl.debug_barrier()
        for part in range(parts):
            store_result(part, result, to, lost())
        for peer in range(sync.word(call, words.NUM_RANKS)):
            lacks_it = vectors.pick(lacks, peer, words.MAX_RANKS) == 1
            if lacks_it & back.joins(call, peer):  # of others the host is told
                back.note_refusal(call, sync.first_rank(call) + peer)


@triton.jit
def flags_of(call, first, segment, tag):
    """What nodes from ``first`` on have of a segment of this rank, together: their flags, 0 of the
    own node and where it has no place; lost if the rank there is out of step."""
    node, exists, slab = nodes_from(call, first)
    place = slabs.place_of(call, node, segment)
    exists = exists & (place >= 0)
    told = tl.load(slab.to(tl.pointer_type(tl.int64)), mask=exists, other=0)
    flags = tl.load(slabs.flag_of(slab, place), mask=exists, other=0)
    return tl.where(exists & (told != slabs.tag_back(call, tag)), slabs.LOST, flags)
