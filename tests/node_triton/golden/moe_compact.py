"""Kernels of shuffle ``moe_compact`` in moe_compact.fsc inside one node, by fuscoc 0.1.0.

Every argument is an int64, a count or an address; docs/abi.md of fuscoc describes them.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

plan = load("plan")
compact = load("compact")
padding = load("padding")
combine = load("combine")
slabs = load("slabs")
hop = load("hop")
hop_back = load("hop_back")


@triton.jit
def load_source(part, source, cell):
    row_0 = tl.multiple_of((source[0] + cell * 14336).to(tl.pointer_type(tl.int64)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 2048), mask=tl.arange(0, 2048) < 1792, other=0)
    return (tile_0,)


@triton.jit
def load_row(part, base, at, slot):
    row_0 = tl.multiple_of((base + at[0] + slot * 14336).to(tl.pointer_type(tl.int64)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 2048), mask=tl.arange(0, 2048) < 1792, other=0)
    return (tile_0,)


@triton.jit
def store_row(part, base, at, slot, tiles):
    row_0 = tl.multiple_of((base + at[0] + slot * 14336).to(tl.pointer_type(tl.int64)), 16)
    tl.store(row_0 + tl.arange(0, 2048), tiles[0], mask=tl.arange(0, 2048) < 1792)


@triton.jit
def load_landed(part, source, cell):
    if cell[2]:
        tiles = load_source(part, source[1], cell[3])
    else:
        tiles = load_row(part, cell[0], source[0], cell[1])
    return tiles


@triton.jit
def zero():
    return (tl.full((8192,), 0, tl.float32),)


@triton.jit
def add_row(part, rows, slot, weight, has, sums):
    row_0 = tl.multiple_of((rows[0] + slot * 14336).to(tl.pointer_type(tl.bfloat16)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 8192), mask=tl.arange(0, 8192) < 7168, other=0)
    return ((sums[0] + tile_0.to(tl.float32) * weight),)


@triton.jit
def add_partial(part, row, has, sums):
    row_0 = tl.multiple_of(row.to(tl.pointer_type(tl.bfloat16)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 8192), mask=tl.arange(0, 8192) < 7168, other=0)
    return ((sums[0] + tile_0.to(tl.float32)),)


@triton.jit
def store_partial(part, row, tiles):
    row_0 = tl.multiple_of(row.to(tl.pointer_type(tl.bfloat16)), 16)
    tl.store(row_0 + tl.arange(0, 8192), tiles[0].to(tl.bfloat16), mask=tl.arange(0, 8192) < 7168)


@triton.jit
def lost():
    return (tl.full((8192,), float("nan"), tl.float32),)


@triton.jit
def store_result(part, result, source, tiles):
    row_0 = tl.multiple_of((result[0] + source * 14336).to(tl.pointer_type(tl.bfloat16)), 16)
    tl.store(row_0 + tl.arange(0, 8192), tiles[0].to(tl.bfloat16), mask=tl.arange(0, 8192) < 7168)


@triton.jit(do_not_specialize=range(2))
def moe_compact_node_count(call: tl.int64, num_sources: tl.int64):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    plan.count(
        call,
        num_sources,
        fanout=8,
        keys=512,
        block=512,
        tile=(16, 8),
        tiles=1,
        compact=True,
    )


@triton.jit(do_not_specialize=range(2))
def moe_compact_node_exchange(call: tl.int64, num_sources: tl.int64):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    plan.exchange(call, num_sources, keys=512, tile=(16, 8), tiles=1, block=8, compact=True)


@triton.jit(do_not_specialize=range(3))
def moe_compact_node_assign(call: tl.int64, num_sources: tl.int64, key_to_rank: tl.int64):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    key_to_rank = key_to_rank.to(tl.int64).to(tl.pointer_type(tl.int64))
    plan.assign(
        call,
        num_sources,
        key_to_rank,
        fanout=8,
        keys=512,
        align=128,
        padding=padding.fewest,
        tile=(16, 8),
        tiles=1,
        block=512,
        compact=True,
    )


# moe_compact.fsc:19: dispatch by_token[t] -> by_expert[r(t, k), *]
@triton.jit(do_not_specialize=range(6))
def moe_compact_node_dispatch(
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
    compact.dispatch(
        call,
        num_sources,
        ticket,
        weights,
        source_fields=(source_0,),
        rows_at=(rows_at_0,),
        load_source=load_source,
        store_row=store_row,
        fanout=8,
        lanes=8,
        parts=1,
        weighted=True,
    )


# moe_compact.fsc:20: combine reverse reduce sum(w)
@triton.jit(do_not_specialize=range(8))
def moe_compact_node_combine(
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
        partial_bytes=14336,
        fanout=8,
        lanes=8,
        parts=1,
        weighted=True,
    )


@triton.jit
def relation(point, given):
    input_topk_idx = given[0]
    extent_ranks = given[1]
    owners = given[2]
    k_ = point % 8
    t_ = point // 8
    value_ = t_ * 8
    topk_idx_ = tl.load(input_topk_idx + (value_ + k_)).to(tl.int64)
    value_1 = tl.where(((topk_idx_ + 1) >= 0), (topk_idx_ + 1), 0)
    value_2 = tl.where((tl.where((k_ >= 0), k_, 0) < 1), tl.where((k_ >= 0), k_, 0), 1)
    topk_idx_1 = tl.load(input_topk_idx + value_).to(tl.int64)
    value_3 = (topk_idx_ - topk_idx_1) >= (topk_idx_1 - topk_idx_)
    value_4 = tl.where(value_3, (topk_idx_ - topk_idx_1), (topk_idx_1 - topk_idx_))
    value_5 = 1 - tl.where((value_4 < 1), value_4, 1)
    value_6 = tl.where(((k_ - 1) >= 0), (k_ - 1), 0)
    topk_idx_2 = tl.load(input_topk_idx + (value_ + 1)).to(tl.int64)
    value_7 = (topk_idx_ - topk_idx_2) >= (topk_idx_2 - topk_idx_)
    value_8 = tl.where(value_7, (topk_idx_ - topk_idx_2), (topk_idx_2 - topk_idx_))
    value_9 = 1 - tl.where((value_8 < 1), value_8, 1)
    value_10 = tl.where((value_6 < 1), value_6, 1) * value_9
    value_11 = tl.where(((k_ - 2) >= 0), (k_ - 2), 0)
    value_12 = tl.where((value_11 < 1), value_11, 1)
    topk_idx_3 = tl.load(input_topk_idx + (value_ + 2)).to(tl.int64)
    value_13 = (topk_idx_ - topk_idx_3) >= (topk_idx_3 - topk_idx_)
    value_14 = tl.where(value_13, (topk_idx_ - topk_idx_3), (topk_idx_3 - topk_idx_))
    value_15 = tl.where((value_14 < 1), value_14, 1)
    value_16 = ((value_2 * value_5) + value_10) + (value_12 * (1 - value_15))
    value_17 = tl.where(((k_ - 3) >= 0), (k_ - 3), 0)
    value_18 = tl.where((value_17 < 1), value_17, 1)
    topk_idx_4 = tl.load(input_topk_idx + (value_ + 3)).to(tl.int64)
    value_19 = (topk_idx_ - topk_idx_4) >= (topk_idx_4 - topk_idx_)
    value_20 = tl.where(value_19, (topk_idx_ - topk_idx_4), (topk_idx_4 - topk_idx_))
    value_21 = tl.where((value_20 < 1), value_20, 1)
    value_22 = value_16 + (value_18 * (1 - value_21))
    value_23 = tl.where(((k_ - 4) >= 0), (k_ - 4), 0)
    value_24 = tl.where((value_23 < 1), value_23, 1)
    topk_idx_5 = tl.load(input_topk_idx + (value_ + 4)).to(tl.int64)
    value_25 = (topk_idx_ - topk_idx_5) >= (topk_idx_5 - topk_idx_)
    value_26 = tl.where(value_25, (topk_idx_ - topk_idx_5), (topk_idx_5 - topk_idx_))
    value_27 = tl.where((value_26 < 1), value_26, 1)
    value_28 = value_22 + (value_24 * (1 - value_27))
    value_29 = tl.where(((k_ - 5) >= 0), (k_ - 5), 0)
    value_30 = tl.where((value_29 < 1), value_29, 1)
    topk_idx_6 = tl.load(input_topk_idx + (value_ + 5)).to(tl.int64)
    value_31 = (topk_idx_ - topk_idx_6) >= (topk_idx_6 - topk_idx_)
    value_32 = tl.where(value_31, (topk_idx_ - topk_idx_6), (topk_idx_6 - topk_idx_))
    value_33 = tl.where((value_32 < 1), value_32, 1)
    value_34 = value_28 + (value_30 * (1 - value_33))
    value_35 = tl.where(((k_ - 6) >= 0), (k_ - 6), 0)
    value_36 = tl.where((value_35 < 1), value_35, 1)
    topk_idx_7 = tl.load(input_topk_idx + (value_ + 6)).to(tl.int64)
    value_37 = (topk_idx_ - topk_idx_7) >= (topk_idx_7 - topk_idx_)
    value_38 = tl.where(value_37, (topk_idx_ - topk_idx_7), (topk_idx_7 - topk_idx_))
    value_39 = tl.where((value_38 < 1), value_38, 1)
    value_40 = value_34 + (value_36 * (1 - value_39))
    value_41 = tl.where((value_1 < 1), value_1, 1) * value_40
    is_inside_ = (value_41 >= 0) & (value_41 < 1)
    value_42 = topk_idx_ + tl.where(is_inside_, value_41, 0)
    is_key_ = (value_42 >= 0) & (value_42 < 256)
    key_owner_ = tl.load(owners + tl.where(is_key_, value_42, 0))
    owner_ = tl.where(is_key_, key_owner_, tl.where((value_42 == -1), -1, -2))
    is_rank_ = (owner_ >= -1) & (owner_ < extent_ranks)
    dropped_ = (topk_idx_ == -1) | (value_41 == -1)
    value_43 = dropped_ | ((value_42 == -1) & is_inside_)
    reached_ = tl.where(is_inside_, tl.where(is_rank_, owner_, -2), -2)
    return tl.where(value_43, -1, reached_), tl.where(value_43, -1, value_42), t_


@triton.jit(do_not_specialize=range(9))
def moe_compact_node_pack(
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
        fanout=8,
        lanes=8,
        parts=1,
        tile=(16, 8),
        tiles=1,
        compact=True,
        given=(input_topk_idx, extent_ranks, owners),
        relation=relation,
    )


@triton.jit(do_not_specialize=range(7))
def moe_compact_node_forward(
    call: tl.int64,
    num_sources: tl.int64,
    ticket: tl.int64,
    weights: tl.int64,
    slab_at_0: tl.int64,
    source_0: tl.int64,
    rows_at_0: tl.int64,
):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    ticket = ticket.to(tl.int64)
    weights = weights.to(tl.int64)
    slab_at_0 = slab_at_0.to(tl.int64)
    source_0 = source_0.to(tl.int64)
    rows_at_0 = rows_at_0.to(tl.int64)
    compact.dispatch(
        call,
        num_sources,
        ticket,
        weights,
        source_fields=((slab_at_0,), (source_0,)),
        rows_at=(rows_at_0,),
        load_source=load_landed,
        store_row=store_row,
        fanout=8,
        lanes=8,
        parts=1,
        weighted=True,
        cell_of=slabs.cell_of,
    )


@triton.jit(do_not_specialize=range(8))
def moe_compact_node_collect(
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
        partial_bytes=14336,
        fanout=8,
        lanes=8,
        parts=1,
        weighted=True,
        first=first_place,
        end=end_place,
    )


@triton.jit(do_not_specialize=range(10))
def moe_compact_node_finish(
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
        partial_bytes=14336,
        fanout=8,
        lanes=8,
        parts=1,
        weighted=True,
        first=first_place,
        end=end_place,
    )
