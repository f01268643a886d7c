"""Kernels of shuffle ``embedding_reply`` in embedding.fsc inside one node, by fuscoc 0.1.0.

Every argument is an int64, a count or an address; docs/abi.md of fuscoc describes them.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

plan = load("plan")
dispatch = load("dispatch")
padding = load("padding")
vectors = load("vectors")
combine = load("combine")
slabs = load("slabs")
hop = load("hop")
hop_back = load("hop_back")


@triton.jit
def load_source(part, source, cell):
    row_0 = tl.multiple_of((source[0] + cell * 512).to(tl.pointer_type(tl.int64)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 64))
    return (tile_0,)


@triton.jit
def load_row(part, base, at, slot):
    row_0 = tl.multiple_of((base + at[0] + slot * 512).to(tl.pointer_type(tl.int64)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 64))
    return (tile_0,)


@triton.jit
def store_row(part, base, at, slot, tiles):
    row_0 = tl.multiple_of((base + at[0] + slot * 512).to(tl.pointer_type(tl.int64)), 16)
    tl.store(row_0 + tl.arange(0, 64), tiles[0])


@triton.jit
def load_landed(part, source, cell):
    if cell[2]:
        tiles = load_source(part, source[1], cell[3])
    else:
        tiles = load_row(part, cell[0], source[0], cell[1])
    return tiles


@triton.jit
def zero():
    return (tl.full((128,), 0, tl.float32),)


@triton.jit
def add_row(part, rows, slot, weight, has, sums):
    row_0 = tl.multiple_of((rows[0] + slot * 512).to(tl.pointer_type(tl.float32)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 128))
    return ((sums[0] + tile_0.to(tl.float32) * weight),)


@triton.jit
def add_partial(part, row, has, sums):
    row_0 = tl.multiple_of(row.to(tl.pointer_type(tl.float32)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 128))
    return ((sums[0] + tile_0.to(tl.float32)),)


@triton.jit
def store_partial(part, row, tiles):
    row_0 = tl.multiple_of(row.to(tl.pointer_type(tl.float32)), 16)
    tl.store(row_0 + tl.arange(0, 128), tiles[0].to(tl.float32))


@triton.jit
def lost():
    return (tl.full((128,), float("nan"), tl.float32),)


@triton.jit
def store_result(part, result, source, tiles):
    row_0 = tl.multiple_of((result[0] + source * 512).to(tl.pointer_type(tl.float32)), 16)
    tl.store(row_0 + tl.arange(0, 128), tiles[0].to(tl.float32))


@triton.jit(do_not_specialize=range(2))
def embedding_reply_node_count(call: tl.int64, num_sources: tl.int64):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    plan.count(
        call,
        num_sources,
        fanout=32,
        keys=256,
        block=256,
        tile=(4, 32),
        tiles=1,
        compact=False,
    )


@triton.jit(do_not_specialize=range(2))
def embedding_reply_node_exchange(call: tl.int64, num_sources: tl.int64):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    plan.exchange(call, num_sources, keys=256, tile=(4, 32), tiles=1, block=8, compact=False)


@triton.jit(do_not_specialize=range(3))
def embedding_reply_node_assign(call: tl.int64, num_sources: tl.int64, key_to_rank: tl.int64):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    key_to_rank = key_to_rank.to(tl.int64).to(tl.pointer_type(tl.int64))
    plan.assign(
        call,
        num_sources,
        key_to_rank,
        fanout=32,
        keys=256,
        align=1,
        padding=padding.fewest,
        tile=(4, 32),
        tiles=1,
        block=256,
        compact=False,
    )


# embedding.fsc:20: dispatch ids[t, k] -> by_part[wanted(t, k) / cdiv(rows, parts), *]
@triton.jit(do_not_specialize=range(6))
def embedding_reply_node_dispatch(
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
        fanout=32,
        lanes=32,
        parts=1,
        weighted=True,
    )


# embedding.fsc:21: reply sums[t] of pooled reduce sum(w)
@triton.jit(do_not_specialize=range(8))
def embedding_reply_node_combine(
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
        partial_bytes=512,
        fanout=32,
        lanes=32,
        parts=1,
        weighted=True,
    )


@triton.jit
def relation(point, given):
    input_indices = given[0]
    extent_ranks = given[1]
    owners = given[2]
    k_ = point % 32
    t_ = point // 32
    indices_ = tl.load(input_indices + ((t_ * 32) + k_)).to(tl.int64)
    value_ = vectors.floor_div(indices_, 4096)
    is_key_ = (value_ >= 0) & (value_ < 256)
    key_owner_ = tl.load(owners + tl.where(is_key_, value_, 0))
    owner_ = tl.where(is_key_, key_owner_, tl.where((value_ == -1), -1, -2))
    is_rank_ = (owner_ >= -1) & (owner_ < extent_ranks)
    value_1 = tl.where((indices_ == -1), -1, tl.where(is_rank_, owner_, -2))
    value_2 = tl.where((indices_ == -1), -1, value_)
    return value_1, value_2, t_


@triton.jit(do_not_specialize=range(9))
def embedding_reply_node_pack(
    call: tl.int64,
    num_sources: tl.int64,
    says: tl.int64,
    weights: tl.int64,
    source_0: tl.int64,
    slab_at_0: tl.int64,
    input_indices: tl.int64,
    extent_ranks: tl.int64,
    owners: tl.int64,
):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    says = says.to(tl.int64)
    weights = weights.to(tl.int64)
    source_0 = source_0.to(tl.int64)
    slab_at_0 = slab_at_0.to(tl.int64)
    input_indices = input_indices.to(tl.int64).to(tl.pointer_type(tl.int64))
    extent_ranks = extent_ranks.to(tl.int64)
    owners = owners.to(tl.int64).to(tl.pointer_type(tl.int64))
    hop.pack(
        call,
        num_sources,
        says,
        weights,
        source_fields=(source_0,),
        slab_at=(slab_at_0,),
        load_source=load_source,
        store_row=store_row,
        fanout=32,
        lanes=32,
        parts=1,
        tile=(4, 32),
        tiles=1,
        compact=False,
        given=(input_indices, extent_ranks, owners),
        relation=relation,
    )


@triton.jit(do_not_specialize=range(9))
def embedding_reply_node_forward(
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
        fanout=32,
        lanes=32,
        parts=1,
        weighted=True,
        cell_of=slabs.cell_of,
        across=True,
        first=first_place,
        end=end_place,
    )


@triton.jit(do_not_specialize=range(8))
def embedding_reply_node_collect(
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
        partial_bytes=512,
        fanout=32,
        lanes=32,
        parts=1,
        weighted=True,
        first=first_place,
        end=end_place,
    )


@triton.jit(do_not_specialize=range(10))
def embedding_reply_node_finish(
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
        partial_bytes=512,
        fanout=32,
        lanes=32,
        parts=1,
        weighted=True,
        first=first_place,
        end=end_place,
    )
