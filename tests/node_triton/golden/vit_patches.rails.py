"""Kernels of shuffle ``vit_patches`` in vit_patches.fsc between nodes, by fuscoc 0.1.0.

Every argument is an int64, a count or an address; docs/abi.md of fuscoc describes them.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

place = load("place")
dispatch = load("dispatch")
slabs = load("slabs")
hop = load("hop")
hop_back = load("hop_back")


@triton.jit
def load_source(part, source, cell):
    src_stride0 = tl.load(cell[1])
    row_0 = (source[0] + cell[0] * 3).to(tl.pointer_type(tl.int16))
    at = tl.arange(0, 512)
    tile_0 = tl.load(
        row_0 + (at // 21 * (src_stride0 * 3 // 2) + at % 21),
        mask=tl.arange(0, 512) < 294,
        other=0,
    )
    return (tile_0,)


@triton.jit
def load_row(part, base, at, slot):
    row_0 = (base + at[0] + slot * 588).to(tl.pointer_type(tl.int16))
    tile_0 = tl.load(row_0 + tl.arange(0, 512), mask=tl.arange(0, 512) < 294, other=0)
    return (tile_0,)


@triton.jit
def store_row(part, base, at, slot, tiles):
    row_0 = (base + at[0] + slot * 588).to(tl.pointer_type(tl.int16))
    tl.store(row_0 + tl.arange(0, 512), tiles[0], mask=tl.arange(0, 512) < 294)


@triton.jit
def load_landed(part, source, cell):
    if cell[2]:
        tiles = load_source(part, source[1], cell[3])
    else:
        tiles = load_row(part, cell[0], source[0], cell[1])
    return tiles


@triton.jit
def zero():
    return (tl.full((512,), 0, tl.int16),)


@triton.jit
def add_row(part, rows, slot, weight, has, sums):
    row_0 = (rows[0] + slot * 588).to(tl.pointer_type(tl.int16))
    tile_0 = tl.load(row_0 + tl.arange(0, 512), mask=tl.arange(0, 512) < 294, other=0)
    return (tile_0,)


@triton.jit
def add_partial(part, row, has, sums):
    row_0 = row.to(tl.pointer_type(tl.int16))
    tile_0 = tl.load(row_0 + tl.arange(0, 512), mask=tl.arange(0, 512) < 294, other=0)
    return (tile_0,)


@triton.jit
def store_partial(part, row, tiles):
    row_0 = row.to(tl.pointer_type(tl.int16))
    tl.store(row_0 + tl.arange(0, 512), tiles[0], mask=tl.arange(0, 512) < 294)


@triton.jit
def lost():
    return (tl.full((512,), -1, tl.int16),)


@triton.jit
def store_result(part, result, cell, tiles):
    src_stride0 = tl.load(cell[1])
    row_0 = (result[0] + cell[0] * 3).to(tl.pointer_type(tl.int16))
    at = tl.arange(0, 512)
    tl.store(
        row_0 + (at // 21 * (src_stride0 * 3 // 2) + at % 21),
        tiles[0],
        mask=tl.arange(0, 512) < 294,
    )


@triton.jit(do_not_specialize=range(3))
def vit_patches_rails_exchange(call: tl.int64, num_sources: tl.int64, num_slots: tl.int64):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    num_slots = num_slots.to(tl.int64)
    place.exchange(call, num_sources, num_slots)


@triton.jit(do_not_specialize=range(2))
def vit_patches_rails_place(call: tl.int64, num_sources: tl.int64):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    place.place(call, num_sources, fanout=1, tile=(128, 1), apart=False, begun=0)


@triton.jit(do_not_specialize=range(6))
def vit_patches_rails_pack(
    call: tl.int64,
    num_sources: tl.int64,
    says: tl.int64,
    weights: tl.int64,
    source_0: tl.int64,
    slab_at_0: tl.int64,
):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    says = says.to(tl.int64)
    weights = weights.to(tl.int64)
    source_0 = source_0.to(tl.int64)
    slab_at_0 = slab_at_0.to(tl.int64)
    hop.pack(
        call,
        num_sources,
        says,
        weights,
        source_fields=(source_0,),
        slab_at=(slab_at_0,),
        load_source=load_source,
        store_row=store_row,
        fanout=1,
        lanes=1,
        parts=1,
        tile=(128, 1),
        tiles=1,
        compact=False,
        given=(),
        relation=None,
        strided=True,
        counts=False,
    )


@triton.jit(do_not_specialize=range(9))
def vit_patches_rails_forward(
    call: tl.int64,
    num_sources: tl.int64,
    ticket: tl.int64,
    weights: tl.int64,
    slab_at_0: tl.int64,
    source_0: tl.int64,
    rows_at_0: tl.int64,
    first_place: tl.int64,
    end_place: tl.int64,
):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    ticket = ticket.to(tl.int64)
    weights = weights.to(tl.int64)
    slab_at_0 = slab_at_0.to(tl.int64)
    source_0 = source_0.to(tl.int64)
    rows_at_0 = rows_at_0.to(tl.int64)
    first_place = first_place.to(tl.int64)
    end_place = end_place.to(tl.int64)
    dispatch.dispatch(
        call,
        num_sources,
        ticket,
        weights,
        source_fields=((slab_at_0,), (source_0,)),
        rows_at=(rows_at_0,),
        load_source=load_landed,
        load_row=load_row,
        store_row=store_row,
        fanout=1,
        lanes=1,
        parts=1,
        weighted=False,
        cell_of=slabs.cell_of,
        strided=True,
        across=True,
        first=first_place,
        end=end_place,
    )


@triton.jit(do_not_specialize=range(8))
def vit_patches_rails_collect(
    call: tl.int64,
    num_sources: tl.int64,
    ticket: tl.int64,
    rows_ticket: tl.int64,
    weights: tl.int64,
    first_place: tl.int64,
    end_place: tl.int64,
    rows_0: tl.int64,
):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    ticket = ticket.to(tl.int64)
    rows_ticket = rows_ticket.to(tl.int64)
    weights = weights.to(tl.int64)
    first_place = first_place.to(tl.int64)
    end_place = end_place.to(tl.int64)
    rows_0 = rows_0.to(tl.int64)
    hop_back.collect(
        call,
        num_sources,
        ticket,
        rows_ticket,
        weights,
        rows=(rows_0,),
        zero=zero,
        add_row=add_row,
        add_partial=add_partial,
        store_partial=store_partial,
        partial_bytes=588,
        fanout=1,
        lanes=1,
        parts=1,
        weighted=False,
        first=first_place,
        end=end_place,
    )


@triton.jit(do_not_specialize=range(10))
def vit_patches_rails_finish(
    call: tl.int64,
    num_sources: tl.int64,
    ticket: tl.int64,
    rows_ticket: tl.int64,
    weights: tl.int64,
    first_place: tl.int64,
    end_place: tl.int64,
    rows_0: tl.int64,
    result_0: tl.int64,
    result_bytes_0: tl.int64,
):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    ticket = ticket.to(tl.int64)
    rows_ticket = rows_ticket.to(tl.int64)
    weights = weights.to(tl.int64)
    first_place = first_place.to(tl.int64)
    end_place = end_place.to(tl.int64)
    rows_0 = rows_0.to(tl.int64)
    result_0 = result_0.to(tl.int64)
    result_bytes_0 = result_bytes_0.to(tl.int64)
    hop_back.finish(
        call,
        num_sources,
        ticket,
        rows_ticket,
        weights,
        rows=(rows_0,),
        result=(result_0,),
        result_bytes=(result_bytes_0,),
        zero=zero,
        add_row=add_row,
        add_partial=add_partial,
        store_result=store_result,
        lost=lost,
        num_fields=1,
        partial_bytes=588,
        fanout=1,
        lanes=1,
        parts=1,
        weighted=False,
        first=first_place,
        end=end_place,
        places=True,
        strided=True,
    )
