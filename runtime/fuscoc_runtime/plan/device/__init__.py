"""The planner's kernels: a handful of launches for what takes tensors hundreds of operations."""

from __future__ import annotations

from fuscoc_runtime.plan.census import num_keys
from fuscoc_runtime.plan.types import PlanContext, Wire

MAX_FANOUT = 128
"""All pairs of points of a tile are compared, and a tile holds whole segments."""

MAX_RANKS = 128
MAX_KEYS = 8192
MAX_ROUNDS = 1023
"""Counts of a tile are histograms in shared memory."""

MAX_STRIDES = 3
"""Addresses are arguments, by name."""


def has_kernels(ctx: PlanContext) -> bool:
    """Whether kernels plan the points of a source; equal on all ranks of one kind of device."""
    wanted = ctx.kernels if ctx.kernels is not None else ctx.device.type == "cuda"
    return (
        wanted
        and ctx.shuffle.fanout <= MAX_FANOUT
        and ctx.topology.num_ranks <= MAX_RANKS
        and num_keys(ctx) <= MAX_KEYS
        and ctx.shuffle.src_strides <= MAX_STRIDES
    )


def has_receiver_kernels(ctx: PlanContext, wire: Wire) -> bool:
    """Whether kernels also make the lists of a receiver."""
    return has_kernels(ctx) and wire.num_rounds <= MAX_ROUNDS
