"""What a rank plans as forwarder and destination, by kernels: the same as ``receive.py`` makes of
tensors, to the last bit."""

from __future__ import annotations

import torch
from torch import Tensor

from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.plan.arrays import allocate
from fuscoc_runtime.plan.device.launch import (
    WORD_BYTES,
    blocks,
    launch,
    power_of_two,
)
from fuscoc_runtime.plan.device.source import BLOCK, FEWEST_BINS, SCAN_COLUMNS, TILE_POINTS
from fuscoc_runtime.plan.flows import Int64Array
from fuscoc_runtime.plan.receive import Received
from fuscoc_runtime.plan.types import DescriptorList, PlanContext, Wire


def receive_placed(
    ctx: PlanContext,
    words: Tensor,
    forwards: Tensor,
    pair_counts: Int64Array,
    num_slots: int,
    wire: Wire,
    slices: Tensor,
) -> Received:
    """The lists of ``receive.py``; arguments as of ``receive`` there.

    ``slices``: int64 [3 * num_slices], first landing row, rows and round of every slice that
    arrives, in the order of the wire.
    """
    node = ctx.topology.node_ranks(ctx.topology.node(ctx.rank))
    num_pairs, num_near = int(pair_counts.sum()), int(pair_counts[node.start : node.stop].sum())
    num_rounds = wire.num_rounds
    [entries] = allocate([3 * num_rounds + 1], ctx.device)
    lists, forward_order = _forward(ctx, forwards, wire, slices, entries)
    targets, row_index = _targets(ctx, words, num_pairs, num_near, num_slots, num_rounds, entries)
    return Received({**lists, **targets}, forward_order, entries, row_index)


def _forward(
    ctx: PlanContext, words: Tensor, wire: Wire, slices: Tensor, entries: Tensor
) -> tuple[dict[str, DescriptorList], Tensor | None]:
    num_pairs, num_rows, m = len(words), wire.receive.num_rows, ctx.topology.ranks_per_node
    num_slices, num_rounds = len(slices) // 3, wire.num_rounds
    ordered = wire.landing_order is None
    sizes = [num_pairs] * 3 + [num_rows] * 3 + [0 if ordered else num_pairs]
    *columns, order = allocate(sizes, ctx.device)
    launch(
        "plan_targets", "forward", ctx.device, blocks(num_pairs, BLOCK),
        (address(words), address(columns[0]), num_pairs, num_rows, m),
        (BLOCK,),
    )  # fmt: skip
    launch(
        "plan_targets", "order_forwards", ctx.device,
        max(num_rounds, 0 if ordered else num_slices),
        (
            address(slices), num_slices, address(columns[3]), num_rows, num_pairs, num_rounds,
            address(entries), address(order),
        ),
        (int(ordered), BLOCK),
    )  # fmt: skip
    names = ("src_row", "dst_peer", "dst_slot"), ("term_begin", "term_end", "dst_row")
    lists = {
        "forward": dict(zip(names[0], columns[:3], strict=True)),
        "reduce_node": dict(zip(names[1], columns[3:], strict=True)),
    }
    return lists, None if ordered else order


def _targets(
    ctx: PlanContext,
    words: Tensor,
    num_pairs: int,
    num_near: int,
    num_slots: int,
    num_rounds: int,
    entries: Tensor,
) -> tuple[dict[str, DescriptorList], Tensor]:
    compact, (num_points, width) = ctx.program.is_compact, words.shape
    num_local, num_far = 0 if compact else num_points - num_pairs, num_pairs - num_near
    num_kinds, num_tiles = 2 * num_rounds + 2, blocks(num_points, TILE_POINTS)
    bins = power_of_two(num_kinds, FEWEST_BINS)
    tiles = torch.empty(num_tiles * num_kinds, dtype=torch.int32, device=ctx.device)
    sizes = [num_points] * 2 + [num_local] * 2 + [num_near] * 4 + [num_far] * 4 + [num_kinds]
    *columns, totals = allocate(sizes, ctx.device)
    row_index = entries[:0]
    if compact:
        row_index = torch.full((num_slots,), -1, dtype=torch.int64, device=ctx.device)
    shape = int(compact), width, TILE_POINTS, bins
    launch(
        "plan_targets", "count_kinds", ctx.device, num_tiles,
        (address(words), address(tiles), num_points, num_rounds),
        shape,
        num_warps=1,
    )  # fmt: skip
    launch(
        "plan_targets", "scan_kinds", ctx.device, blocks(num_kinds, SCAN_COLUMNS),
        (
            address(tiles), address(totals), address(entries) + WORD_BYTES * num_rounds, num_tiles,
            num_kinds,
        ),
        (SCAN_COLUMNS,),
    )  # fmt: skip
    launch(
        "plan_targets", "place_targets", ctx.device, num_tiles,
        (
            address(words), address(tiles), address(totals), address(columns[0]),
            address(row_index), num_points, num_pairs, num_near, num_rounds,
            ctx.topology.ranks_per_node,
        ),
        shape,
        num_warps=1,
    )  # fmt: skip
    terms = {"term_slot": columns[0], "term_point": columns[1]}
    names = "dst_peer", "dst_row", "term_begin", "term_end"
    return {
        "local": {"src_slot": columns[2], "dst_slot": columns[3]},
        "reduce_direct": {**dict(zip(names, columns[4:8], strict=True)), **terms},
        "reduce_forward": {**dict(zip(names, columns[8:12], strict=True)), **terms},
    }, row_index
