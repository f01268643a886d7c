"""Kernels of shuffle ``vit_patches_normalised`` in vit_patches_normalised.fsc inside one node, by fuscoc 0.1.0.

Every argument is an int64, a count or an address; docs/abi.md of fuscoc describes them.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

place = load("place")
dispatch = load("dispatch")
slabs = load("slabs")
hop = load("hop")


@triton.jit
def normalised(x, at, shifts: tl.constexpr, factors: tl.constexpr):
    """(x - shift) * factor, by the channels of the lanes ``at``."""
    shift = tl.full(x.shape, shifts[0], tl.float32)
    factor = tl.full(x.shape, factors[0], tl.float32)
    for channel in tl.static_range(1, len(shifts)):
        is_here = at % len(shifts) == channel
        shift = tl.where(is_here, shifts[channel], shift)
        factor = tl.where(is_here, factors[channel], factor)
    return (x - shift) * factor


@triton.jit
def load_source(part, source, cell):
    src_stride0 = tl.load(cell[1])
    src_stride1 = tl.load(cell[1] + cell[2])
    row_0 = (source[0] + cell[0] * 1).to(tl.pointer_type(tl.uint8))
    at = tl.arange(0, 512)
    tile_0 = tl.load(row_0 + (at // 42 * src_stride0 + at // 3 % 14 * 1 + at % 3 * src_stride1))
    at = 512 + tl.arange(0, 128)
    tile_1 = tl.load(
        row_0 + (at // 42 * src_stride0 + at // 3 % 14 * 1 + at % 3 * src_stride1),
        mask=512 + tl.arange(0, 128) < 588,
        other=0,
    )
    tile_0 = normalised(
        tile_0.to(tl.float32),
        tl.arange(0, 512),
        (123.67500305175781, 116.27999877929688, 103.52999877929688),
        (0.017124753445386887, 0.017507003620266914, 0.01742919348180294),
    )
    tile_0 = tile_0.to(tl.bfloat16)
    tile_1 = normalised(
        tile_1.to(tl.float32),
        512 + tl.arange(0, 128),
        (123.67500305175781, 116.27999877929688, 103.52999877929688),
        (0.017124753445386887, 0.017507003620266914, 0.01742919348180294),
    )
    tile_1 = tile_1.to(tl.bfloat16)
    return (tile_0, tile_1)


@triton.jit
def load_row(part, base, at, slot):
    row_0 = tl.multiple_of((base + at[0] + slot * 1176).to(tl.pointer_type(tl.bfloat16)), 8)
    tile_0 = tl.load(row_0 + tl.arange(0, 512))
    tile_1 = tl.load(row_0 + 512 + tl.arange(0, 128), mask=512 + tl.arange(0, 128) < 588, other=0)
    return (tile_0, tile_1)


@triton.jit
def store_row(part, base, at, slot, tiles):
    row_0 = tl.multiple_of((base + at[0] + slot * 1176).to(tl.pointer_type(tl.bfloat16)), 8)
    tl.store(row_0 + tl.arange(0, 512), tiles[0])
    tl.store(row_0 + 512 + tl.arange(0, 128), tiles[1], mask=512 + tl.arange(0, 128) < 588)


@triton.jit
def load_landed(part, source, cell):
    if cell[2]:
        tiles = load_source(part, source[1], cell[3])
    else:
        tiles = load_row(part, cell[0], source[0], cell[1])
    return tiles


@triton.jit(do_not_specialize=range(3))
def vit_patches_normalised_node_exchange(
    call: tl.int64,
    num_sources: tl.int64,
    num_slots: tl.int64,
):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    num_slots = num_slots.to(tl.int64)
    place.exchange(call, num_sources, num_slots)


@triton.jit(do_not_specialize=range(2))
def vit_patches_normalised_node_place(call: tl.int64, num_sources: tl.int64):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    place.place(call, num_sources, fanout=1, tile=(128, 1), apart=False, begun=0)


# vit_patches_normalised.fsc:21: dispatch patches[n, i, j] -> sequence[where(n).offset + i * ...
# vit_patches_normalised.fsc:22: on where(n).rank cast((pixels / 255 - mean) / std)
@triton.jit(do_not_specialize=range(6))
def vit_patches_normalised_node_dispatch(
    call: tl.int64,
    num_sources: tl.int64,
    ticket: tl.int64,
    weights: tl.int64,
    source_0: tl.int64,
    rows_at_0: tl.int64,
):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    ticket = ticket.to(tl.int64)
    weights = weights.to(tl.int64)
    source_0 = source_0.to(tl.int64)
    rows_at_0 = rows_at_0.to(tl.int64)
    dispatch.dispatch(
        call,
        num_sources,
        ticket,
        weights,
        source_fields=(source_0,),
        rows_at=(rows_at_0,),
        load_source=load_source,
        load_row=load_row,
        store_row=store_row,
        fanout=1,
        lanes=1,
        parts=1,
        weighted=False,
        strided=True,
    )


@triton.jit(do_not_specialize=range(6))
def vit_patches_normalised_node_pack(
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
def vit_patches_normalised_node_forward(
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
