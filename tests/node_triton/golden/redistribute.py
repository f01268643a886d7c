"""Kernels of shuffle ``redistribute`` in redistribute.fsc inside one node, by fuscoc 0.1.0.

Every argument is an int64, a count or an address; docs/abi.md of fuscoc describes them.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

pieces = load("pieces")
move = load("move")
give_back = load("give_back")
vectors = load("vectors")


@triton.jit
def piece(number: tl.constexpr, entry, cells_before, given):
    extent_rank = given[0]
    extent_ranks = given[1]
    if number == 0:
        value_ = vectors.floor_div(8192, extent_ranks)
        value_1 = extent_rank * value_
        value_2 = vectors.floor_div(value_1, extent_ranks)
        value_3 = extent_ranks * value_2
        value_4 = value_1 - value_3
        value_5 = ((extent_ranks + value_3) - value_1) < value_
        value_6 = tl.where(value_5, ((extent_ranks + value_3) - value_1), value_)
        value_7 = value_4 < 1
        value_8 = value_6 * tl.where(value_7, value_4, 1)
        found = (0, value_4, value_2, 1, (1, value_8), (0, 1), (0, 0), ())
    elif number == 1:
        value_ = vectors.floor_div(8192, extent_ranks)
        value_1 = extent_rank * value_
        value_2 = vectors.floor_div(value_1, extent_ranks)
        value_3 = extent_ranks * value_2
        value_4 = value_1 - value_3
        value_5 = value_4 < 1
        value_6 = extent_ranks * tl.where(value_5, value_4, 1)
        value_7 = value_2 + tl.where(value_5, value_4, 1)
        value_8 = vectors.floor_div((value_1 + value_), extent_ranks)
        value_9 = (value_8 - value_2) - tl.where(value_5, value_4, 1)
        found = (
            ((value_3 + value_6) - value_1),
            0,
            value_7,
            1,
            (tl.where((value_9 >= 0), value_9, 0), extent_ranks),
            (extent_ranks, 1),
            (1, 0),
            (),
        )
    elif number == 2:
        value_ = vectors.floor_div(8192, extent_ranks)
        value_1 = extent_rank * value_
        value_2 = vectors.floor_div((value_1 + value_), extent_ranks)
        value_3 = extent_ranks * value_2
        value_4 = vectors.floor_div(value_1, extent_ranks)
        value_5 = extent_ranks * value_4
        value_6 = value_1 - value_5
        value_7 = value_6 < 1
        value_8 = ((1 + value_2) - value_4) - tl.where(value_7, value_6, 1)
        value_9 = 1 < value_8
        value_10 = value_1 * tl.where(value_9, 1, value_8)
        value_11 = value_ * tl.where(value_9, 1, value_8)
        value_12 = value_3 * tl.where(value_9, 1, value_8)
        found = (
            (value_3 - value_1),
            0,
            value_2,
            1,
            (1, ((value_10 + value_11) - value_12)),
            (0, 1),
            (0, 0),
            (),
        )
    return found


@triton.jit(do_not_specialize=range(7))
def redistribute_node_plan(
    call: tl.int64,
    part: tl.int64,
    num_sources: tl.int64,
    num_slots: tl.int64,
    num_cells: tl.int64,
    extent_rank: tl.int64,
    extent_ranks: tl.int64,
):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    part = part.to(tl.int64)
    num_sources = num_sources.to(tl.int64)
    num_slots = num_slots.to(tl.int64)
    num_cells = num_cells.to(tl.int64)
    extent_rank = extent_rank.to(tl.int64)
    extent_ranks = extent_ranks.to(tl.int64)
    pieces.meet(
        call,
        part,
        num_sources,
        num_slots,
        num_cells,
        num_entries=1,
        given=(extent_rank, extent_ranks),
        sizes=None,
        fanout=1,
        ragged=False,
        fixed=True,
    )
    pieces.place(
        call,
        part,
        given=(extent_rank, extent_ranks),
        piece=piece,
        rows=((16, 4096, 4096, 4096, (), (), ()),),
        item_lines=1024,
        fixed=True,
        comes_back=True,
        num_pieces=3,
        fanout=1,
        ragged=False,
        apart=False,
    )


# redistribute.fsc:12: dispatch block[i] -> cyclic[(rank * (rows / ranks) + i) / ranks]
# redistribute.fsc:13: on (rank * (rows / ranks) + i) % ranks
@triton.jit(do_not_specialize=range(5))
def redistribute_node_dispatch(
    call: tl.int64,
    ticket: tl.int64,
    source_0: tl.int64,
    source_bytes: tl.int64,
    rows_at_0: tl.int64,
):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    ticket = ticket.to(tl.int64)
    source_0 = source_0.to(tl.int64)
    source_bytes = source_bytes.to(tl.int64)
    rows_at_0 = rows_at_0.to(tl.int64)
    move.dispatch(
        call,
        ticket,
        begun=0,
        source_fields=(source_0,),
        source_bytes=source_bytes,
        rows_at=(rows_at_0,),
        rows=((16, 4096, 4096, 4096, (), (), ()),),
        steps=2,
        num_loops=2,
        lines_at_once=(1024,),
        item_lines=1024,
        apart=False,
        fixed=True,
        holds=True,
    )


# redistribute.fsc:14: combine reverse
@triton.jit(do_not_specialize=range(6))
def redistribute_node_combine(
    call: tl.int64,
    ticket: tl.int64,
    rows_ticket: tl.int64,
    rows: tl.int64,
    result: tl.int64,
    result_bytes: tl.int64,
):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    ticket = ticket.to(tl.int64)
    rows_ticket = rows_ticket.to(tl.int64)
    rows = rows.to(tl.int64)
    result = result.to(tl.int64)
    result_bytes = result_bytes.to(tl.int64)
    give_back.combine(
        call,
        ticket,
        rows_ticket,
        rows,
        result,
        result_bytes,
        sizes=(16, 4096, 4096, 4096, (), (), ()),
        steps=2,
        lines_at_once=1024,
        item_lines=1024,
        disjoint=True,
        fixed=True,
    )


@triton.jit(do_not_specialize=range(7))
def redistribute_node_lend(
    call: tl.int64,
    ticket: tl.int64,
    rows_ticket: tl.int64,
    result_at: tl.int64,
    rows: tl.int64,
    result: tl.int64,
    result_bytes: tl.int64,
):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    ticket = ticket.to(tl.int64)
    rows_ticket = rows_ticket.to(tl.int64)
    result_at = result_at.to(tl.int64)
    rows = rows.to(tl.int64)
    result = result.to(tl.int64)
    result_bytes = result_bytes.to(tl.int64)
    give_back.combine(
        call,
        ticket,
        rows_ticket,
        rows,
        result,
        result_bytes,
        sizes=(16, 4096, 4096, 4096, (), (), ()),
        steps=2,
        lines_at_once=1024,
        item_lines=1024,
        disjoint=True,
        fixed=True,
        result_at=result_at,
        may_lend=True,
    )
