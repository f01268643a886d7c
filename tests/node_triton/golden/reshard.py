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
def load_sources(source, cells, has):
    row_0 = tl.multiple_of((source[0] + cells * 16).to(tl.pointer_type(tl.int64)), 16)
    tile_0 = tl.load(row_0[:, None] + tl.arange(0, 2)[None, :], mask=has[:, None], other=0)
    return (tile_0,)


@triton.jit
def store_rows(bases, at, slots, has, tiles):
    row_0 = tl.multiple_of((bases + at[0] + slots * 16).to(tl.pointer_type(tl.int64)), 16)
    tl.store(row_0[:, None] + tl.arange(0, 2)[None, :], tiles[0], mask=has[:, None])


@triton.jit
def load_rows(rows, slots, has):
    row_0 = tl.multiple_of((rows[0] + slots * 16).to(tl.pointer_type(tl.int64)), 16)
    tile_0 = tl.load(row_0[:, None] + tl.arange(0, 2)[None, :], mask=has[:, None], other=0)
    return (tile_0,)


@triton.jit
def store_sent(to, has, tiles):
    row_0 = tl.multiple_of(to.to(tl.pointer_type(tl.int64)), 16)
    tl.store(row_0[:, None] + tl.arange(0, 2)[None, :], tiles[0], mask=has[:, None])


@triton.jit
def load_back(rows, slots, here, sent, has, lost):
    row_0 = tl.multiple_of(
        tl.where(here, rows[0] + slots * 16, sent).to(tl.pointer_type(tl.int64)),
        16,
    )
    tile_0 = tl.load(row_0[:, None] + tl.arange(0, 2)[None, :], mask=has[:, None], other=0)
    tile_0 = tl.where(lost[:, None], -1, tile_0)
    return (tile_0,)


@triton.jit
def store_results(result, places, has, tiles):
    row_0 = tl.multiple_of((result[0] + places * 16).to(tl.pointer_type(tl.int64)), 16)
    tl.store(row_0[:, None] + tl.arange(0, 2)[None, :], tiles[0], mask=has[:, None])


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
    place.place(call, num_sources, fanout=1, tile=(128, 1), apart=False, begun=0)


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
        load_source=load_sources,
        store_row=store_rows,
        fanout=1,
        lanes=1,
        parts=1,
        weighted=False,
        tile_rows=512,
        cells=0,
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
        load_rows=load_rows,
        store_sent=store_sent,
        load_back=load_back,
        store_results=store_results,
        num_fields=1,
        partial_bytes=16,
        fanout=1,
        lanes=1,
        parts=1,
        weighted=False,
        tile_rows=512,
        places=True,
        strided=False,
    )
