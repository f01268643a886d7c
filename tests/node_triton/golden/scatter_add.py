"""Kernels of shuffle ``scatter_add`` in scatter_add.fsc inside one node, by fuscoc 0.1.0.

Every argument is an int64, a count or an address; docs/abi.md of fuscoc describes them.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

place = load("place")
dispatch = load("dispatch")
combine = load("combine")
slabs = load("slabs")
hop = load("hop")
hop_back = load("hop_back")


@triton.jit
def load_sources(source, cells, has):
    row_0 = tl.multiple_of((source[0] + cells * 256).to(tl.pointer_type(tl.int64)), 16)
    tile_0 = tl.load(row_0[:, None] + tl.arange(0, 32)[None, :], mask=has[:, None], other=0)
    return (tile_0,)


@triton.jit
def store_rows(bases, at, slots, has, tiles):
    row_0 = tl.multiple_of((bases + at[0] + slots * 256).to(tl.pointer_type(tl.int64)), 16)
    tl.store(row_0[:, None] + tl.arange(0, 32)[None, :], tiles[0], mask=has[:, None])


@triton.jit
def load_rows(rows, slots, has):
    row_0 = tl.multiple_of((rows[0] + slots * 256).to(tl.pointer_type(tl.int64)), 16)
    tile_0 = tl.load(row_0[:, None] + tl.arange(0, 32)[None, :], mask=has[:, None], other=0)
    return (tile_0,)


@triton.jit
def store_sent(to, has, tiles):
    row_0 = tl.multiple_of(to.to(tl.pointer_type(tl.int64)), 16)
    tl.store(row_0[:, None] + tl.arange(0, 32)[None, :], tiles[0], mask=has[:, None])


@triton.jit
def load_back(rows, slots, here, sent, has, lost):
    row_0 = tl.multiple_of(
        tl.where(here, rows[0] + slots * 256, sent).to(tl.pointer_type(tl.int64)),
        16,
    )
    tile_0 = tl.load(row_0[:, None] + tl.arange(0, 32)[None, :], mask=has[:, None], other=0)
    tile_0 = tl.where(lost[:, None], -1, tile_0)
    return (tile_0,)


@triton.jit
def store_results(result, places, has, tiles):
    row_0 = tl.multiple_of((result[0] + places * 256).to(tl.pointer_type(tl.int64)), 16)
    tl.store(row_0[:, None] + tl.arange(0, 32)[None, :], tiles[0], mask=has[:, None])


@triton.jit
def load_source(part, source, cell):
    row_0 = tl.multiple_of((source[0] + cell * 256).to(tl.pointer_type(tl.int64)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 32))
    return (tile_0,)


@triton.jit
def load_row(part, base, at, slot):
    row_0 = tl.multiple_of((base + at[0] + slot * 256).to(tl.pointer_type(tl.int64)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 32))
    return (tile_0,)


@triton.jit
def store_row(part, base, at, slot, tiles):
    row_0 = tl.multiple_of((base + at[0] + slot * 256).to(tl.pointer_type(tl.int64)), 16)
    tl.store(row_0 + tl.arange(0, 32), tiles[0])


@triton.jit
def load_landed(part, source, cell):
    if cell[2]:
        tiles = load_source(part, source[1], cell[3])
    else:
        tiles = load_row(part, cell[0], source[0], cell[1])
    return tiles


@triton.jit
def zero():
    return (tl.full((32,), 0, tl.int64),)


@triton.jit
def add_row(part, rows, slot, weight, has, sums):
    row_0 = tl.multiple_of((rows[0] + slot * 256).to(tl.pointer_type(tl.int64)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 32))
    return (tile_0,)


@triton.jit
def add_partial(part, row, has, sums):
    row_0 = tl.multiple_of(row.to(tl.pointer_type(tl.int64)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 32))
    return (tile_0,)


@triton.jit
def store_partial(part, row, tiles):
    row_0 = tl.multiple_of(row.to(tl.pointer_type(tl.int64)), 16)
    tl.store(row_0 + tl.arange(0, 32), tiles[0])


@triton.jit
def lost():
    return (tl.full((32,), -1, tl.int64),)


@triton.jit
def store_result(part, result, cell, tiles):
    row_0 = tl.multiple_of((result[0] + cell * 256).to(tl.pointer_type(tl.int64)), 16)
    tl.store(row_0 + tl.arange(0, 32), tiles[0])


@triton.jit(do_not_specialize=range(3))
def scatter_add_node_exchange(call: tl.int64, num_sources: tl.int64, num_slots: tl.int64):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    num_slots = num_slots.to(tl.int64)
    place.exchange(call, num_sources, num_slots)


@triton.jit(do_not_specialize=range(2))
def scatter_add_node_place(call: tl.int64, num_sources: tl.int64):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    place.place(call, num_sources, fanout=1, tile=(128, 1), apart=False, begun=0)


# scatter_add.fsc:19: dispatch sent[t] -> arrived[to(t).slot] on to(t).rank into sums[head(s)] ...
@triton.jit(do_not_specialize=range(6))
def scatter_add_node_dispatch(
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
        load_source=load_sources,
        store_row=store_rows,
        fanout=1,
        lanes=1,
        parts=1,
        weighted=False,
        tile_rows=64,
        cells=0,
    )


# scatter_add.fsc:20: combine reverse
@triton.jit(do_not_specialize=range(8))
def scatter_add_node_combine(
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
        load_rows=load_rows,
        store_sent=store_sent,
        load_back=load_back,
        store_results=store_results,
        num_fields=1,
        partial_bytes=256,
        fanout=1,
        lanes=1,
        parts=1,
        weighted=False,
        tile_rows=64,
        places=True,
        strided=False,
    )


@triton.jit
def relation(point, given):
    input_destination = given[0]
    extent_ranks = given[1]
    value_ = point * 2
    destination_ = tl.load(input_destination + value_).to(tl.int64)
    destination_1 = tl.load(input_destination + (value_ + 1)).to(tl.int64)
    is_rank_ = (destination_ >= -1) & (destination_ < extent_ranks)
    value_1 = tl.where((destination_1 == -1), -1, tl.where(is_rank_, destination_, -2))
    return value_1, destination_1, point


@triton.jit(do_not_specialize=range(8))
def scatter_add_node_pack(
    call: tl.int64,
    num_sources: tl.int64,
    says: tl.int64,
    weights: tl.int64,
    source_0: tl.int64,
    slab_at_0: tl.int64,
    input_destination: tl.int64,
    extent_ranks: tl.int64,
):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    says = says.to(tl.int64)
    weights = weights.to(tl.int64)
    source_0 = source_0.to(tl.int64)
    slab_at_0 = slab_at_0.to(tl.int64)
    input_destination = input_destination.to(tl.int64).to(tl.pointer_type(tl.int64))
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
        fanout=1,
        lanes=1,
        parts=1,
        tile=(128, 1),
        tiles=1,
        compact=False,
        given=(input_destination, extent_ranks),
        relation=relation,
        counts=False,
    )


@triton.jit(do_not_specialize=range(9))
def scatter_add_node_forward(
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
        across=True,
        first=first_place,
        end=end_place,
    )


@triton.jit(do_not_specialize=range(8))
def scatter_add_node_collect(
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
        partial_bytes=256,
        fanout=1,
        lanes=1,
        parts=1,
        weighted=False,
        first=first_place,
        end=end_place,
    )


@triton.jit(do_not_specialize=range(10))
def scatter_add_node_finish(
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
        partial_bytes=256,
        fanout=1,
        lanes=1,
        parts=1,
        weighted=False,
        first=first_place,
        end=end_place,
        places=True,
        strided=False,
    )
