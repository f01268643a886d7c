"""Kernels of shuffle ``kv_pages`` in kv_pages.fsc inside one node, by fuscoc 0.1.0.

Every argument is an int64, a count or an address; docs/abi.md of fuscoc describes them.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

pieces = load("pieces")
move = load("move")
give_back = load("give_back")


@triton.jit
def piece(number: tl.constexpr, entry, cells_before, given):
    input_source_page = given[0]
    input_destination = given[1]
    extent_pages = given[2]
    extent_ranks = given[3]
    if number == 0:
        source_page_ = tl.load(input_source_page + entry).to(tl.int64)
        is_inside_ = (source_page_ >= 0) & (source_page_ < extent_pages)
        value_ = tl.where(is_inside_, source_page_, 0)
        value_1 = entry * 2
        destination_ = tl.load(input_destination + value_1).to(tl.int64)
        destination_1 = tl.load(input_destination + (value_1 + 1)).to(tl.int64)
        is_rank_ = (destination_ >= -1) & (destination_ < extent_ranks)
        dropped_ = (source_page_ == -1) | (destination_ == -1)
        reached_ = tl.where(is_inside_, tl.where(is_rank_, destination_, -2), -2)
        value_2 = tl.where((dropped_ | (destination_1 == -1)), -1, reached_)
        found = (value_, value_2, destination_1, 0, (1,), (0,), (0,), (extent_pages,))
    return found


@triton.jit(do_not_specialize=range(10))
def kv_pages_node_plan(
    call: tl.int64,
    part: tl.int64,
    num_sources: tl.int64,
    num_slots: tl.int64,
    num_cells: tl.int64,
    input_source_page: tl.int64,
    input_destination: tl.int64,
    extent_moves: tl.int64,
    extent_pages: tl.int64,
    extent_ranks: tl.int64,
):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    part = part.to(tl.int64)
    num_sources = num_sources.to(tl.int64)
    num_slots = num_slots.to(tl.int64)
    num_cells = num_cells.to(tl.int64)
    input_source_page = input_source_page.to(tl.int64).to(tl.pointer_type(tl.int64))
    input_destination = input_destination.to(tl.int64).to(tl.pointer_type(tl.int64))
    extent_moves = extent_moves.to(tl.int64)
    extent_pages = extent_pages.to(tl.int64)
    extent_ranks = extent_ranks.to(tl.int64)
    pieces.meet(
        call,
        part,
        num_sources,
        num_slots,
        num_cells,
        num_entries=extent_moves,
        given=(input_source_page, input_destination, extent_pages, extent_ranks),
        sizes=None,
        fanout=1,
        ragged=False,
        fixed=False,
    )
    pieces.place(
        call,
        part,
        given=(input_source_page, input_destination, extent_pages, extent_ranks),
        piece=piece,
        rows=((16, 2097152, 65536, 65536, (32,), (-1,), (65536,)),),
        item_lines=1024,
        fixed=False,
        comes_back=True,
        num_pieces=1,
        fanout=1,
        ragged=False,
        apart=True,
    )


# kv_pages.fsc:21: dispatch leaving[m] -> arrived[to(m).slot] on to(m).rank
@triton.jit(do_not_specialize=range(5))
def kv_pages_node_dispatch(
    call: tl.int64,
    ticket: tl.int64,
    begun: tl.int64,
    source_0: tl.int64,
    rows_at_0: tl.int64,
):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    ticket = ticket.to(tl.int64)
    begun = begun.to(tl.int64)
    source_0 = source_0.to(tl.int64)
    rows_at_0 = rows_at_0.to(tl.int64)
    move.dispatch(
        call,
        ticket,
        begun,
        source_fields=(source_0,),
        source_bytes=0,
        rows_at=(rows_at_0,),
        rows=((16, 2097152, 65536, 65536, (32,), (-1,), (65536,)),),
        steps=2,
        num_loops=1,
        lines_at_once=(1024,),
        item_lines=1024,
        apart=True,
        fixed=False,
        holds=False,
    )


# kv_pages.fsc:22: combine reverse
@triton.jit(do_not_specialize=range(6))
def kv_pages_node_combine(
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
        sizes=(16, 2097152, 65536, 65536, (32,), (-1,), (65536,)),
        steps=2,
        lines_at_once=1024,
        item_lines=1024,
        disjoint=True,
        fixed=False,
    )


@triton.jit(do_not_specialize=range(7))
def kv_pages_node_lend(
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
        sizes=(16, 2097152, 65536, 65536, (32,), (-1,), (65536,)),
        steps=2,
        lines_at_once=1024,
        item_lines=1024,
        disjoint=True,
        fixed=False,
        result_at=result_at,
        may_lend=True,
    )
