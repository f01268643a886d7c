"""Kernels of shuffle ``halo`` in halo.fsc inside one node, by fuscoc 0.1.0.

Every argument is an int64, a count or an address; docs/abi.md of fuscoc describes them.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import destinations, load

place = load("place")
dispatch = load("dispatch")
combine = load("combine")
slabs = load("slabs")
hop = load("hop")
hop_back = load("hop_back")
FANOUT, LANES, SEGMENTS = destinations(1, 128)


@triton.jit
def load_source(part, source, cell):
    row_0 = tl.multiple_of((source[0] + cell * 4096).to(tl.pointer_type(tl.int64)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 512))
    return (tile_0,)


@triton.jit
def load_row(part, base, at, slot):
    row_0 = tl.multiple_of((base + at[0] + slot * 4096).to(tl.pointer_type(tl.int64)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 512))
    return (tile_0,)


@triton.jit
def store_row(part, base, at, slot, tiles):
    row_0 = tl.multiple_of((base + at[0] + slot * 4096).to(tl.pointer_type(tl.int64)), 16)
    tl.store(row_0 + tl.arange(0, 512), tiles[0])


@triton.jit
def load_landed(part, source, cell):
    if cell[2]:
        tiles = load_source(part, source[1], cell[3])
    else:
        tiles = load_row(part, cell[0], source[0], cell[1])
    return tiles


@triton.jit
def zero():
    return (tl.full((1024,), 0, tl.float32),)


@triton.jit
def add_row(part, rows, slot, weight, has, sums):
    row_0 = tl.multiple_of((rows[0] + slot * 4096).to(tl.pointer_type(tl.float32)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 1024))
    return ((sums[0] + tile_0.to(tl.float32)),)


@triton.jit
def add_partial(part, row, has, sums):
    row_0 = tl.multiple_of(row.to(tl.pointer_type(tl.float32)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 1024))
    return ((sums[0] + tile_0.to(tl.float32)),)


@triton.jit
def store_partial(part, row, tiles):
    row_0 = tl.multiple_of(row.to(tl.pointer_type(tl.float32)), 16)
    tl.store(row_0 + tl.arange(0, 1024), tiles[0].to(tl.float32))


@triton.jit
def lost():
    return (tl.full((1024,), float("nan"), tl.float32),)


@triton.jit
def store_result(part, result, cell, tiles):
    row_0 = tl.multiple_of((result[0] + cell * 4096).to(tl.pointer_type(tl.float32)), 16)
    tl.store(row_0 + tl.arange(0, 1024), tiles[0].to(tl.float32))


@triton.jit(do_not_specialize=range(3))
def halo_node_exchange(call: tl.int64, num_sources: tl.int64, num_slots: tl.int64):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    num_slots = num_slots.to(tl.int64)
    place.exchange(call, num_sources, num_slots)


@triton.jit(do_not_specialize=range(2))
def halo_node_place(call: tl.int64, num_sources: tl.int64):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    place.place(call, num_sources, fanout=FANOUT, tile=(SEGMENTS, LANES), apart=False, begun=0)


# halo.fsc:16: dispatch mine[i] -> padded[reach + rank * part + i - p * part] on p clip
@triton.jit(do_not_specialize=range(6))
def halo_node_dispatch(
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
        fanout=FANOUT,
        lanes=LANES,
        parts=1,
        weighted=False,
    )


# halo.fsc:17: combine reverse reduce sum
@triton.jit(do_not_specialize=range(8))
def halo_node_combine(
    call: tl.int64,
    num_sources: tl.int64,
    ticket: tl.int64,
    rows_ticket: tl.int64,
    weights: tl.int64,
    rows_0: tl.int64,
    result_0: tl.int64,
    result_bytes_0: tl.int64,
):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    ticket = ticket.to(tl.int64)
    rows_ticket = rows_ticket.to(tl.int64)
    weights = weights.to(tl.int64)
    rows_0 = rows_0.to(tl.int64)
    result_0 = result_0.to(tl.int64)
    result_bytes_0 = result_bytes_0.to(tl.int64)
    combine.combine(
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
        store_partial=store_partial,
        store_result=store_result,
        lost=lost,
        num_fields=1,
        partial_bytes=4096,
        fanout=FANOUT,
        lanes=LANES,
        parts=1,
        weighted=False,
        places=True,
        strided=False,
    )


@triton.jit
def relation(point, given):
    extent_rank = given[0]
    extent_ranks = given[1]
    p_ = point % extent_ranks
    i_ = point // extent_ranks
    value_ = (0 - p_) >= (p_ - (extent_ranks - 1))
    value_1 = tl.where(value_, (0 - p_), (p_ - (extent_ranks - 1)))
    value_2 = (extent_ranks + 4095) // extent_ranks
    value_3 = p_ * value_2
    value_4 = (((extent_rank * value_2) + 2) + i_) - value_3
    value_5 = tl.where((value_2 < (4096 - value_3)), value_2, (4096 - value_3))
    value_6 = tl.where((value_5 >= 0), value_5, 0) + 3
    value_7 = tl.where(((0 - value_4) >= (value_4 - value_6)), (0 - value_4), (value_4 - value_6))
    value_8 = tl.where((value_1 >= 0), value_1, 0) + tl.where((value_7 >= 0), value_7, 0)
    value_9 = tl.where(((1 - value_8) >= 0), (1 - value_8), 0)
    value_10 = (((p_ + 1) * value_9) - 1) < extent_ranks
    is_rank_ = ((((p_ + 1) * value_9) - 1) >= -1) & value_10
    value_11 = tl.where(is_rank_, (((p_ + 1) * value_9) - 1), -2)
    return value_11, value_4, i_


@triton.jit(do_not_specialize=range(8))
def halo_node_pack(
    call: tl.int64,
    num_sources: tl.int64,
    says: tl.int64,
    weights: tl.int64,
    source_0: tl.int64,
    slab_at_0: tl.int64,
    extent_rank: tl.int64,
    extent_ranks: tl.int64,
):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    says = says.to(tl.int64)
    weights = weights.to(tl.int64)
    source_0 = source_0.to(tl.int64)
    slab_at_0 = slab_at_0.to(tl.int64)
    extent_rank = extent_rank.to(tl.int64)
    extent_ranks = extent_ranks.to(tl.int64)
    hop.pack(
        call,
        num_sources,
        says,
        weights,
        source_fields=(source_0,),
        slab_at=(slab_at_0,),
        load_source=load_source,
        store_row=store_row,
        fanout=FANOUT,
        lanes=LANES,
        parts=1,
        tile=(SEGMENTS, LANES),
        tiles=1,
        compact=False,
        given=(extent_rank, extent_ranks),
        relation=relation,
        counts=False,
    )


@triton.jit(do_not_specialize=range(9))
def halo_node_forward(
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
        fanout=FANOUT,
        lanes=LANES,
        parts=1,
        weighted=False,
        cell_of=slabs.cell_of,
        across=True,
        first=first_place,
        end=end_place,
    )


@triton.jit(do_not_specialize=range(8))
def halo_node_collect(
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
        partial_bytes=4096,
        fanout=FANOUT,
        lanes=LANES,
        parts=1,
        weighted=False,
        first=first_place,
        end=end_place,
    )


@triton.jit(do_not_specialize=range(10))
def halo_node_finish(
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
        partial_bytes=4096,
        fanout=FANOUT,
        lanes=LANES,
        parts=1,
        weighted=False,
        first=first_place,
        end=end_place,
        places=True,
        strided=False,
    )
