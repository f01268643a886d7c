"""Kernels of shuffle ``vit_patches`` in vit_patches.fsc inside one node, by fuscoc 0.1.0.

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
    input_height = given[0]
    input_width = given[1]
    input_packing = given[2]
    extent_ranks = given[3]
    if number == 0:
        width_ = tl.load(input_width + entry).to(tl.int64)
        value_ = entry * 2
        packing_ = tl.load(input_packing + value_).to(tl.int64)
        packing_1 = tl.load(input_packing + (value_ + 1)).to(tl.int64)
        is_rank_ = (packing_ >= -1) & (packing_ < extent_ranks)
        value_1 = tl.where((packing_1 == -1), -1, tl.where(is_rank_, packing_, -2))
        height_ = tl.load(input_height + entry).to(tl.int64)
        value_2 = width_ // 14
        found = (
            tl.load(cells_before + entry),
            value_1,
            packing_1,
            0,
            ((height_ // 14), value_2),
            ((196 * value_2), 14),
            (value_2, 1),
            (width_,),
        )
    return found


@triton.jit
def sizes(entry, given):
    input_height = given[0]
    input_width = given[1]
    height_ = tl.load(input_height + entry).to(tl.int64)
    width_ = tl.load(input_width + entry).to(tl.int64)
    points = entry * 0 + (height_ // 14) * (width_ // 14)
    cells = entry * 0 + (height_ * width_)
    fits = entry == entry
    fits = fits & ((height_ // 14) >= 0) & ((height_ // 14) < 2147483648)
    fits = fits & ((width_ // 14) >= 0) & ((width_ // 14) < 2147483648)
    fits = fits & (height_ % 14 == 0)
    fits = fits & (width_ % 14 == 0)
    fits = fits & ((height_ * width_) >= 0)
    wide = pieces.as_float(entry * 0 + 1)
    wide = wide * pieces.as_float(height_ // 14)
    wide = wide * pieces.as_float(width_ // 14)
    fits = fits & (wide < pieces.MOST_POINTS)
    return points, cells, fits


@triton.jit(do_not_specialize=range(10))
def vit_patches_node_plan(
    call: tl.int64,
    part: tl.int64,
    num_sources: tl.int64,
    num_slots: tl.int64,
    num_cells: tl.int64,
    input_height: tl.int64,
    input_width: tl.int64,
    input_packing: tl.int64,
    extent_images: tl.int64,
    extent_ranks: tl.int64,
):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    part = part.to(tl.int64)
    num_sources = num_sources.to(tl.int64)
    num_slots = num_slots.to(tl.int64)
    num_cells = num_cells.to(tl.int64)
    input_height = input_height.to(tl.int64).to(tl.pointer_type(tl.int64))
    input_width = input_width.to(tl.int64).to(tl.pointer_type(tl.int64))
    input_packing = input_packing.to(tl.int64).to(tl.pointer_type(tl.int64))
    extent_images = extent_images.to(tl.int64)
    extent_ranks = extent_ranks.to(tl.int64)
    pieces.meet(
        call,
        part,
        num_sources,
        num_slots,
        num_cells,
        num_entries=extent_images,
        given=(input_height, input_width, input_packing, extent_ranks),
        sizes=sizes,
        fanout=1,
        ragged=True,
        fixed=False,
    )
    pieces.place(
        call,
        part,
        given=(input_height, input_width, input_packing, extent_ranks),
        piece=piece,
        rows=((2, 588, 3, 42, (14,), (-1,), (42,)),),
        item_lines=1024,
        fixed=False,
        comes_back=True,
        num_pieces=1,
        fanout=1,
        ragged=True,
        apart=False,
    )


# vit_patches.fsc:18: dispatch patches[n, i, j] -> sequence[where(n).offset + i * width(n) / p + ...
@triton.jit(do_not_specialize=range(4))
def vit_patches_node_dispatch(
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
        rows=((2, 588, 3, 42, (14,), (-1,), (42,)),),
        steps=3,
        num_loops=2,
        lines_at_once=(256,),
        item_lines=1024,
        apart=False,
        fixed=False,
        holds=False,
    )


@triton.jit(do_not_specialize=range(4))
def vit_patches_node_dispatch_few(
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
        rows=((2, 588, 3, 42, (14,), (-1,), (42,)),),
        steps=3,
        num_loops=2,
        lines_at_once=(512,),
        item_lines=1024,
        apart=False,
        fixed=False,
        holds=False,
    )


# vit_patches.fsc:19: combine reverse
@triton.jit(do_not_specialize=range(6))
def vit_patches_node_combine(
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
        sizes=(2, 588, 3, 42, (14,), (-1,), (42,)),
        steps=3,
        lines_at_once=256,
        item_lines=1024,
        disjoint=True,
        fixed=False,
    )


@triton.jit(do_not_specialize=range(7))
def vit_patches_node_lend(
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
        sizes=(2, 588, 3, 42, (14,), (-1,), (42,)),
        steps=3,
        lines_at_once=512,
        item_lines=1024,
        disjoint=True,
        fixed=False,
        result_at=result_at,
        may_lend=True,
    )
