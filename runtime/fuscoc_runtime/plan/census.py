"""What every rank must know of all ranks: how much goes where, and whether anyone failed.

One AllGather of a small vector per rank. From it every rank computes, alike, all slot bases, all
buffer sizes and the counts of every later exchange.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from fuscoc_runtime.comm.requests import AllGather, Request
from fuscoc_runtime.errors import FuscoRuntimeError, PlacementMismatchError
from fuscoc_runtime.plan.agree import error_size, raise_together
from fuscoc_runtime.plan.arrays import count, iota
from fuscoc_runtime.plan.hops import Hops
from fuscoc_runtime.plan.points import LivePoints
from fuscoc_runtime.plan.types import PlanContext, Points

NUM_SCALARS = 3


@dataclass(frozen=True, eq=False)
class Census:
    """Counts of all ranks, int64 on the host, because they size buffers and exchanges.

    ``length`` [R]: slots of a dense target. ``points``, ``pairs`` [R, R]: live points and NVLink
    copies, source rank x destination rank. ``flows`` [R, num_nodes]: network rows, source rank x
    destination node. ``keys`` [R, num_keys]: live points by source rank and key (no columns for a
    dense target).
    """

    length: Tensor
    points: Tensor
    pairs: Tensor
    flows: Tensor
    keys: Tensor


def take_census(
    ctx: PlanContext, points: Points, live: LivePoints, hops: Hops
) -> Generator[Request, Any, Census]:
    """Collective: count, gather, compare. Raises on every rank what any rank has found wrong."""
    num_ranks, target = ctx.topology.num_ranks, ctx.shuffle.target
    parts = [
        _scalars(ctx, 0, points.target_length or 0, _checksum(ctx, points)),
        count(live.rank, num_ranks),
        hops.per_rank,
        hops.rows.per_node,
    ]
    if target.kind == "packed":
        parts.append(count(live.target, target.num_keys))
    gathered = (yield AllGather(torch.cat(parts))).cpu()
    scalars, *counts = torch.split(
        gathered, [NUM_SCALARS, num_ranks, num_ranks, ctx.topology.num_nodes, _num_keys(ctx)], dim=1
    )
    sizes, length, checksums = scalars.unbind(1)
    yield from raise_together(None, sizes, ctx.device)
    _check_placement(ctx, checksums)
    return Census(length, *counts)


def fail_census(ctx: PlanContext, error: FuscoRuntimeError) -> Generator[Request, Any, NoReturn]:
    """Take part in the census with nothing but an error; every rank raises."""
    num_counts = 2 * ctx.topology.num_ranks + ctx.topology.num_nodes + _num_keys(ctx)
    counts = torch.zeros(num_counts, dtype=torch.int64, device=ctx.device)
    gathered = yield AllGather(torch.cat([_scalars(ctx, error_size(error), 0, 0), counts]))
    yield from raise_together(error, gathered[:, 0], ctx.device)
    raise error


def _scalars(ctx: PlanContext, *values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=ctx.device)


def _num_keys(ctx: PlanContext) -> int:
    return ctx.shuffle.target.num_keys if ctx.shuffle.target.kind == "packed" else 0


def _checksum(ctx: PlanContext, points: Points) -> int:
    """A fingerprint of the table that places keys, if one does; its sum wraps alike everywhere."""
    target, owner = ctx.shuffle.target, points.key_to_rank
    if target.kind == "dense" or target.placement.kind != "table" or owner is None:
        return 0
    return int((owner * (iota(owner) + 1)).sum())


def _check_placement(ctx: PlanContext, checksums: Tensor) -> None:
    different = torch.nonzero(checksums != checksums[0]).flatten().tolist()
    target = ctx.shuffle.target
    if different and target.kind == "packed":
        raise PlacementMismatchError(target.placement.table or "", different[0])
