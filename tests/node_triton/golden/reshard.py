"""Kernels of shuffle ``reshard`` in reshard.fsc inside one node, by fuscoc 0.1.0.

Every argument is an int64, a count or an address; docs/abi.md of fuscoc describes them.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

place = load("place")
dispatch = load("dispatch")
combine = load("combine")


@triton.jit
def load_source(part, source, cell):
    row_0 = tl.multiple_of((source[0] + cell * 16).to(tl.pointer_type(tl.int64)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 2))
    return (tile_0,)


@triton.jit
def load_row(part, base, at, slot):
    row_0 = tl.multiple_of((base + at[0] + slot * 16).to(tl.pointer_type(tl.int64)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 2))
    return (tile_0,)


@triton.jit
def store_row(part, base, at, slot, tiles):
    row_0 = tl.multiple_of((base + at[0] + slot * 16).to(tl.pointer_type(tl.int64)), 16)
    tl.store(row_0 + tl.arange(0, 2), tiles[0])


@triton.jit
def zero():
    return (tl.full((2,), 0, tl.int64),)


@triton.jit
def add_row(part, rows, slot, weight, has, sums):
    row_0 = tl.multiple_of((rows[0] + slot * 16).to(tl.pointer_type(tl.int64)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 2))
    return (tile_0,)


@triton.jit
def add_partial(part, row, has, sums):
    row_0 = tl.multiple_of(row.to(tl.pointer_type(tl.int64)), 16)
    tile_0 = tl.load(row_0 + tl.arange(0, 2))
    return (tile_0,)


@triton.jit
def store_partial(part, row, tiles):
    row_0 = tl.multiple_of(row.to(tl.pointer_type(tl.int64)), 16)
    tl.store(row_0 + tl.arange(0, 2), tiles[0])


@triton.jit
def lost():
    return (tl.full((2,), -1, tl.int64),)


@triton.jit
def store_result(part, result, cell, tiles):
    row_0 = tl.multiple_of((result[0] + cell * 16).to(tl.pointer_type(tl.int64)), 16)
    tl.store(row_0 + tl.arange(0, 2), tiles[0])


@triton.jit(do_not_specialize=range(3))
def reshard_node_exchange(call: tl.int64, num_sources: tl.int64, num_slots: tl.int64):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    num_slots = num_slots.to(tl.int64)
    place.exchange(call, num_sources, num_slots)


@triton.jit(do_not_specialize=range(2))
def reshard_node_place(call: tl.int64, num_sources: tl.int64):
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    num_sources = num_sources.to(tl.int64)
    place.place(call, num_sources, fanout=1, tile=(128, 1))


# reshard.fsc:23: dispatch in_rows[i, j]
# reshard.fsc:24: -> in_blocks[at(i) / y_cycle * high + at(i) % high, j / x_cycle * wide + j % wide]
# reshard.fsc:25: on at(i) / high % down * across + j / wide % across
@triton.jit(do_not_specialize=range(6))
def reshard_node_dispatch(
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
    )


# reshard.fsc:26: combine reverse
@triton.jit(do_not_specialize=range(8))
def reshard_node_combine(
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
        partial_bytes=16,
        fanout=1,
        lanes=1,
        parts=1,
        weighted=False,
        places=True,
        strided=False,
    )
