"""Kernels of shuffle ``kv_cache`` in kv_cache.fsc inside one node, by fuscoc 0.1.0.

Every argument is an int64, a count or an address; docs/abi.md of fuscoc describes them.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

pieces = load("pieces")
move = load("move")


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
def kv_cache_node_plan(
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
        comes_back=False,
        num_pieces=1,
        fanout=1,
        ragged=False,
        apart=False,
    )


# kv_cache.fsc:24: dispatch leaving[m] -> arrived[to(m).slot] on to(m).rank into kept[s]
@triton.jit(do_not_specialize=range(4))
def kv_cache_node_dispatch(
    call: tl.int64,
    ticket: tl.int64,
    source_0: tl.int64,
    rows_at_0: tl.int64,
):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    ticket = ticket.to(tl.int64)
    source_0 = source_0.to(tl.int64)
    rows_at_0 = rows_at_0.to(tl.int64)
    move.dispatch(
        call,
        ticket,
        begun=0,
        source_fields=(source_0,),
        source_bytes=0,
        rows_at=(rows_at_0,),
        rows=((16, 2097152, 65536, 65536, (32,), (-1,), (65536,)),),
        steps=2,
        num_loops=1,
        lines_at_once=(1024,),
        item_lines=1024,
        apart=False,
        fixed=False,
        holds=False,
    )
