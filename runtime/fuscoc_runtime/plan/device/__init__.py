"""The planner's kernels: a handful of launches for what takes tensors hundreds of operations."""

from __future__ import annotations

from fuscoc_runtime.plan.census import num_keys
from fuscoc_runtime.plan.types import PlanContext

MAX_FANOUT = 128
"""All pairs of points of a tile are compared, and a tile holds whole segments."""

MAX_RANKS = 128
MAX_KEYS = 8192
"""Counts of a tile are histograms in shared memory."""

MAX_STRIDES = 3
"""Addresses are arguments, by name."""

MAX_TABLE_BYTES = 1 << 28
"""Of the counts of all tiles: many points of many keys would take gigabytes."""

FEWEST_TILE_POINTS, COUNT_BYTES = 32, 4


def has_kernels(ctx: PlanContext, num_points: int) -> bool:
    """Whether kernels plan the points of a source. Ranks may differ in it: what they exchange is
    the same."""
    wanted = ctx.kernels if ctx.kernels is not None else ctx.device.type == "cuda"
    num_counts = 1 + 2 * ctx.topology.num_ranks + ctx.topology.num_nodes + num_keys(ctx)
    return (
        wanted
        and ctx.program.num_points_each(ctx.topology.num_ranks) <= MAX_FANOUT
        and ctx.topology.num_ranks <= MAX_RANKS
        and num_keys(ctx) <= MAX_KEYS
        and len(ctx.program.relation.addresses) <= 1 + MAX_STRIDES
        and num_points // FEWEST_TILE_POINTS * num_counts * COUNT_BYTES <= MAX_TABLE_BYTES
    )
