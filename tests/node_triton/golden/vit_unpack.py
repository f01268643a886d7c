"""Kernels of shuffle ``vit_unpack`` in vit_unpack.fsc inside one node, by fuscoc 0.1.0.

Every argument is an int64, a count or an address; docs/abi.md of fuscoc describes them.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

pieces = load("pieces")
chains = load("chains")
move = load("move")
give_back = load("give_back")


@triton.jit
def piece(number: tl.constexpr, entry, cells_before, given):
    input_places = given[0]
    extent_ranks = given[1]
    if number == 0:
        value_ = entry * 4
        places_ = tl.load(input_places + value_).to(tl.int64)
        places_1 = tl.load(input_places + (value_ + 2)).to(tl.int64)
        is_inside_ = (places_1 >= 0) & (places_1 < 16)
        value_1 = 224 * tl.where(is_inside_, places_1, 0)
        places_2 = tl.load(input_places + (value_ + 3)).to(tl.int64)
        is_inside_1 = (places_2 >= 0) & (places_2 < 16)
        value_2 = value_1 + tl.where(is_inside_1, places_2, 0)
        places_3 = tl.load(input_places + (value_ + 1)).to(tl.int64)
        is_rank_ = (places_ >= -1) & (places_ < extent_ranks)
        dropped_ = (places_ == -1) | (places_3 == -1)
        value_3 = (dropped_ | (places_1 == -1)) | (places_2 == -1)
        reached_ = tl.where((is_inside_ & is_inside_1), tl.where(is_rank_, places_, -2), -2)
        found = (
            (14 * entry),
            tl.where(value_3, -1, reached_),
            (value_2 + (3584 * places_3)),
            0,
            (1, 14),
            (0, 1),
            (0, 16),
            (),
        )
    return found


@triton.jit(do_not_specialize=range(8))
def vit_unpack_node_plan(
    call: tl.int64,
    part: tl.int64,
    num_sources: tl.int64,
    num_slots: tl.int64,
    num_cells: tl.int64,
    input_places: tl.int64,
    extent_length: tl.int64,
    extent_ranks: tl.int64,
):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    part = part.to(tl.int64)
    num_sources = num_sources.to(tl.int64)
    num_slots = num_slots.to(tl.int64)
    num_cells = num_cells.to(tl.int64)
    input_places = input_places.to(tl.int64).to(tl.pointer_type(tl.int64))
    extent_length = extent_length.to(tl.int64)
    extent_ranks = extent_ranks.to(tl.int64)
    pieces.meet(
        call,
        part,
        num_sources,
        num_slots,
        num_cells,
        num_entries=extent_length,
        given=(input_places, extent_ranks),
        sizes=None,
        fanout=1,
        ragged=False,
        fixed=False,
    )
    chains.place(
        call,
        part,
        given=(input_places, extent_ranks),
        piece=piece,
        rows=((2, 42, 42, 42, (), (), ()),),
        item_lines=1024,
        fixed=False,
        comes_back=True,
        group=128,
        entry=(14, 1, 14, 0, 208),
    )


# vit_unpack.fsc:19: dispatch sequence[s] -> patches[to(s).n, to(s).i, to(s).j] on to(s).rank
@triton.jit(do_not_specialize=range(4))
def vit_unpack_node_dispatch(
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
        rows=((2, 42, 42, 42, (), (), ()),),
        steps=2,
        num_loops=2,
        lines_at_once=(256,),
        item_lines=1024,
        apart=False,
        fixed=False,
        holds=False,
    )


@triton.jit(do_not_specialize=range(4))
def vit_unpack_node_dispatch_few(
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
        rows=((2, 42, 42, 42, (), (), ()),),
        steps=2,
        num_loops=2,
        lines_at_once=(512,),
        item_lines=1024,
        apart=False,
        fixed=False,
        holds=False,
    )


# vit_unpack.fsc:20: combine reverse
@triton.jit(do_not_specialize=range(6))
def vit_unpack_node_combine(
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
        sizes=(2, 42, 42, 42, (), (), ()),
        steps=2,
        lines_at_once=256,
        item_lines=1024,
        disjoint=True,
        fixed=False,
    )


@triton.jit(do_not_specialize=range(7))
def vit_unpack_node_lend(
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
        sizes=(2, 42, 42, 42, (), (), ()),
        steps=2,
        lines_at_once=512,
        item_lines=1024,
        disjoint=True,
        fixed=False,
        result_at=result_at,
        may_lend=True,
    )
