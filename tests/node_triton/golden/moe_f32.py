"""Kernels of shuffle ``moe`` in moe_f32.fsc inside one node, by fuscoc 0.1.0.

Every argument is an int64, a count or an address; docs/abi.md of fuscoc describes them.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

plan = load("plan")
dispatch = load("dispatch")
padding = load("padding")
combine = load("combine")
slabs = load("slabs")
hop = load("hop")
hop_back = load("hop_back")


@triton.jit
def load_source(part, source, cell):
    row_0 = tl.multiple_of((source[0] + cell * 64).to(tl.pointer_type(tl.int64)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 8))
    return (tile_0,)


@triton.jit
def load_row(part, base, at, slot):
    row_0 = tl.multiple_of((base + at[0] + slot * 64).to(tl.pointer_type(tl.int64)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 8))
    return (tile_0,)


@triton.jit
def store_row(part, base, at, slot, tiles):
    row_0 = tl.multiple_of((base + at[0] + slot * 64).to(tl.pointer_type(tl.int64)), 16)
    tl.store(row_0 + tl.arange(0, 8), tiles[0])


@triton.jit
def load_landed(part, source, cell):
    if cell[2]:
        tiles = load_source(part, source[1], cell[3])
    else:
        tiles = load_row(part, cell[0], source[0], cell[1])
    return tiles


@triton.jit
def zero():
    return (tl.full((16,), 0, tl.float32),)


@triton.jit
def add_row(part, rows, slot, weight, has, sums):
    row_0 = tl.multiple_of((rows[0] + slot * 64).to(tl.pointer_type(tl.float32)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 16))
    return ((sums[0] + tile_0.to(tl.float32) * weight),)


@triton.jit
def add_partial(part, row, has, sums):
    row_0 = tl.multiple_of(row.to(tl.pointer_type(tl.float32)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 16))
    return ((sums[0] + tile_0.to(tl.float32)),)


@triton.jit
def store_partial(part, row, tiles):
    row_0 = tl.multiple_of(row.to(tl.pointer_type(tl.float32)), 16)
    tl.store(row_0 + tl.arange(0, 16), tiles[0].to(tl.float32))


@triton.jit
def lost():
    return (tl.full((16,), float("nan"), tl.float32),)


@triton.jit
def store_result(part, result, source, tiles):
    row_0 = tl.multiple_of((result[0] + source * 64).to(tl.pointer_type(tl.float32)), 16)
    tl.store(row_0 + tl.arange(0, 16), tiles[0].to(tl.float32))


@triton.jit(do_not_specialize=range(2))
def moe_node_count(call: tl.int64, num_sources: tl.int64):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    plan.count(call, num_sources, fanout=2, keys=16, block=16, tile=(64, 2), tiles=1, compact=False)


@triton.jit(do_not_specialize=range(2))
def moe_node_exchange(call: tl.int64, num_sources: tl.int64):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    plan.exchange(call, num_sources, keys=16, tile=(64, 2), tiles=1, block=8, compact=False)


@triton.jit(do_not_specialize=range(3))
def moe_node_assign(call: tl.int64, num_sources: tl.int64, key_to_rank: tl.int64):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    key_to_rank = key_to_rank.to(tl.int64).to(tl.pointer_type(tl.int64))
    plan.assign(
        call,
        num_sources,
        key_to_rank,
        fanout=2,
        keys=16,
        align=1,
        padding=padding.fewest,
        tile=(64, 2),
        tiles=1,
        block=16,
        compact=False,
    )


# moe_f32.fsc:18: dispatch by_token[t] -> by_expert[r(t, k), *]
@triton.jit(do_not_specialize=range(6))
def moe_node_dispatch(
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
        fanout=2,
        lanes=2,
        parts=1,
        weighted=True,
    )


# moe_f32.fsc:19: combine reverse reduce sum(w)
@triton.jit(do_not_specialize=range(8))
def moe_node_combine(
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
        partial_bytes=64,
        fanout=2,
        lanes=2,
        parts=1,
        weighted=True,
    )


@triton.jit
def relation(point, given):
    input_topk_idx = given[0]
    extent_ranks = given[1]
    owners = given[2]
    k_ = point % 2
    t_ = point // 2
    value_ = t_ * 2
    topk_idx_ = tl.load(input_topk_idx + (value_ + k_)).to(tl.int64)
    value_1 = tl.where(((topk_idx_ + 1) >= 0), (topk_idx_ + 1), 0)
    value_2 = tl.where((tl.where((k_ >= 0), k_, 0) < 1), tl.where((k_ >= 0), k_, 0), 1)
    topk_idx_1 = tl.load(input_topk_idx + value_).to(tl.int64)
    value_3 = (topk_idx_ - topk_idx_1) >= (topk_idx_1 - topk_idx_)
    value_4 = tl.where(value_3, (topk_idx_ - topk_idx_1), (topk_idx_1 - topk_idx_))
    value_5 = 1 - tl.where((value_4 < 1), value_4, 1)
    value_6 = tl.where((value_1 < 1), value_1, 1) * (value_2 * value_5)
    is_inside_ = (value_6 >= 0) & (value_6 < 1)
    value_7 = topk_idx_ + tl.where(is_inside_, value_6, 0)
    is_key_ = (value_7 >= 0) & (value_7 < 12)
    key_owner_ = tl.load(owners + tl.where(is_key_, value_7, 0))
    owner_ = tl.where(is_key_, key_owner_, tl.where((value_7 == -1), -1, -2))
    is_rank_ = (owner_ >= -1) & (owner_ < extent_ranks)
    dropped_ = (topk_idx_ == -1) | (value_6 == -1)
    value_8 = dropped_ | ((value_7 == -1) & is_inside_)
    reached_ = tl.where(is_inside_, tl.where(is_rank_, owner_, -2), -2)
    return tl.where(value_8, -1, reached_), tl.where(value_8, -1, value_7), t_


@triton.jit(do_not_specialize=range(9))
def moe_node_pack(
    call: tl.int64,
    num_sources: tl.int64,
    says: tl.int64,
    weights: tl.int64,
    source_0: tl.int64,
    slab_at_0: tl.int64,
    input_topk_idx: tl.int64,
    extent_ranks: tl.int64,
    owners: tl.int64,
):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    says = says.to(tl.int64)
    weights = weights.to(tl.int64)
    source_0 = source_0.to(tl.int64)
    slab_at_0 = slab_at_0.to(tl.int64)
    input_topk_idx = input_topk_idx.to(tl.int64).to(tl.pointer_type(tl.int64))
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
        fanout=2,
        lanes=2,
        parts=1,
        tile=(64, 2),
        tiles=1,
        compact=False,
        given=(input_topk_idx, extent_ranks, owners),
        relation=relation,
    )


@triton.jit(do_not_specialize=range(9))
def moe_node_forward(
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
        fanout=2,
        lanes=2,
        parts=1,
        weighted=True,
        cell_of=slabs.cell_of,
        across=True,
        first=first_place,
        end=end_place,
    )


@triton.jit(do_not_specialize=range(8))
def moe_node_collect(
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
        partial_bytes=64,
        fanout=2,
        lanes=2,
        parts=1,
        weighted=True,
        first=first_place,
        end=end_place,
    )


@triton.jit(do_not_specialize=range(10))
def moe_node_finish(
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
        partial_bytes=64,
        fanout=2,
        lanes=2,
        parts=1,
        weighted=True,
        first=first_place,
        end=end_place,
    )
