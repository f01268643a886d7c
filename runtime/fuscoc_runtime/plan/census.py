"""What every rank must know of all ranks: how much goes where, and whether anyone failed.

One AllGather of a small vector per rank, the only time that a plan makes the host wait for the
device (if no flow is cut). From it every rank computes, alike, all slot bases, all buffer sizes and
the counts of every later exchange.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from fuscoc_runtime.comm.requests import AllGather, Request
from fuscoc_runtime.errors import FuscoRuntimeError, PlacementMismatchError
from fuscoc_runtime.plan.agree import agree, attempt, error_size, raise_together
from fuscoc_runtime.plan.arrays import count, iota, upload
from fuscoc_runtime.plan.hops import Copies, NumCopies
from fuscoc_runtime.plan.points import SortedPoints, check_points, count_bad
from fuscoc_runtime.plan.types import PlanContext, Points
from fuscoc_runtime.topology import Topology

NUM_SCALARS = 4


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

    def num_copies(self, topology: Topology, rank: int) -> NumCopies:
        """Copies that start at ``rank``."""
        node, pairs = topology.node_ranks(topology.node(rank)), self.pairs[rank].tolist()
        near = sum(pairs[node.start : node.stop])
        return NumCopies(near, sum(pairs) - near, sum(self.flows[rank].tolist()))


def take_census(
    ctx: PlanContext, points: Points, ordered: SortedPoints, copies: Copies
) -> Generator[Request, Any, Census]:
    """Collective: count, gather, compare. Raises on every rank what any rank has found wrong."""
    num_ranks, target = ctx.topology.num_ranks, ctx.shuffle.target
    parts = [
        *upload([torch.tensor([0, points.target_length or 0])], ctx.device),
        _checksum(ctx, points),
        count_bad(points),
        count(ordered.rank, num_ranks, ordered.live),
        copies.per_rank,
        copies.per_node,
    ]
    if target.kind == "packed":
        parts.append(count(ordered.target, target.num_keys, ordered.live))
    gathered = yield AllGather(torch.cat(parts))
    scalars, *counts = torch.split(
        gathered, [NUM_SCALARS, num_ranks, num_ranks, ctx.topology.num_nodes, _num_keys(ctx)], dim=1
    )
    sizes, length, checksums, num_bad = scalars.unbind(1)
    yield from raise_together(None, sizes, ctx.device)
    if bool(num_bad.any()):
        found = attempt(ctx.rank, lambda: check_points(ctx, points))
        yield from agree(found, ctx.device)
    _check_placement(ctx, checksums)
    return Census(length, *counts)


def fail_census(ctx: PlanContext, error: FuscoRuntimeError) -> Generator[Request, Any, NoReturn]:
    """Take part in the census with nothing but an error; every rank raises."""
    num_counts = 2 * ctx.topology.num_ranks + ctx.topology.num_nodes + _num_keys(ctx)
    row = torch.zeros(NUM_SCALARS + num_counts, dtype=torch.int64)
    row[0] = error_size(error)
    gathered = yield AllGather(row.to(ctx.device))
    yield from raise_together(error, gathered[:, 0], ctx.device)
    raise error


def _num_keys(ctx: PlanContext) -> int:
    return ctx.shuffle.target.num_keys if ctx.shuffle.target.kind == "packed" else 0


def _checksum(ctx: PlanContext, points: Points) -> Tensor:
    """int64 [1]: a fingerprint of the table that places keys, if one does; its sum wraps alike
    everywhere."""
    target, owner = ctx.shuffle.target, points.key_to_rank
    if target.kind == "dense" or target.placement.kind != "table" or owner is None:
        return torch.zeros(1, dtype=torch.int64, device=ctx.device)
    return (owner * (iota(owner) + 1)).sum().view(1)


def _check_placement(ctx: PlanContext, checksums: Tensor) -> None:
    different = torch.nonzero(checksums != checksums[0]).flatten().tolist()
    target = ctx.shuffle.target
    if different and target.kind == "packed":
        raise PlacementMismatchError(target.placement.table or "", different[0])
