"""What a rank plans as forwarder and destination, by kernels: the same as ``receive.py`` makes of
tensors, to the last bit."""

from __future__ import annotations

import torch
from torch import Tensor

from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.plan.arrays import allocate
from fuscoc_runtime.plan.device.launch import blocks, launch
from fuscoc_runtime.plan.device.source import BLOCK, TILE_POINTS
from fuscoc_runtime.plan.receive import Arriving
from fuscoc_runtime.plan.types import DescriptorList, PlanContext

NUM_KINDS = 3
"""Leads of pairs from this node, other leads, further points."""


def receive_placed(
    ctx: PlanContext, words: Tensor, forwards: Tensor, arriving: Arriving
) -> tuple[dict[str, DescriptorList], Tensor]:
    """As ``receive`` of ``receive.py``."""
    lists, row_index = _targets(ctx, words, arriving)
    return {**_forward(ctx, forwards, arriving.num_landing), **lists}, row_index


def _forward(ctx: PlanContext, words: Tensor, num_rows: int) -> dict[str, DescriptorList]:
    num_pairs = len(words)
    columns = allocate([num_pairs] * 3 + [num_rows] * 3, ctx.device)
    launch(
        "plan_targets", "forward", ctx.device, blocks(num_pairs, BLOCK),
        (address(words), address(columns[0]), num_pairs, num_rows, ctx.topology.ranks_per_node),
        (BLOCK,),
    )  # fmt: skip
    names = ("src_row", "dst_peer", "dst_slot"), ("term_begin", "term_end", "dst_row")
    return {
        "forward": dict(zip(names[0], columns[:3], strict=True)),
        "reduce_node": dict(zip(names[1], columns[3:], strict=True)),
    }


def _targets(
    ctx: PlanContext, words: Tensor, arriving: Arriving
) -> tuple[dict[str, DescriptorList], Tensor]:
    compact, (num_points, width) = ctx.program.is_compact, words.shape
    near = arriving.near(ctx.topology, ctx.rank)
    num_pairs = int(arriving.pairs.sum())
    num_near = arriving.num_near_pairs(ctx.topology, ctx.rank)
    num_local, num_far = 0 if compact else num_points - num_pairs, num_pairs - num_near
    num_tiles = blocks(num_points, TILE_POINTS)
    tiles = torch.empty(num_tiles * NUM_KINDS, dtype=torch.int32, device=ctx.device)
    sizes = [num_points] * 2 + [num_local] * 2 + [num_near] * 4 + [num_far] * 4 + [NUM_KINDS]
    *columns, totals = allocate(sizes, ctx.device)
    row_index = totals[:0]
    if compact:
        row_index = torch.full((arriving.num_slots,), -1, dtype=torch.int64, device=ctx.device)
    shape = int(compact), width, TILE_POINTS
    launch(
        "plan_targets", "count_kinds", ctx.device, num_tiles,
        (address(words), address(tiles), num_points, near.start, near.stop),
        shape,
        num_warps=1,
    )  # fmt: skip
    launch(
        "plan_targets", "scan_kinds", ctx.device, 1,
        (address(tiles), address(totals), num_tiles),
        (),
    )  # fmt: skip
    launch(
        "plan_targets", "place_targets", ctx.device, num_tiles,
        (
            address(words), address(tiles), address(totals), address(columns[0]),
            address(row_index), num_points, num_pairs, num_near, near.start, near.stop,
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
