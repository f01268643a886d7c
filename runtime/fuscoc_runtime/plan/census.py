"""What every rank must know of all ranks: how much goes where, and whether anyone failed.

One AllGather of a small vector per rank, the only time that a plan makes the host wait for the
device (if no flow is cut). From it every rank computes, alike, all slot bases, all buffer sizes and
the counts of every later exchange. A rank's row of it:

    bytes of its error (0: none), slots of a dense target, points whose key or rank does not exist
    and segments that begin where another one does, live points [num_ranks], pairs [num_ranks],
    network rows [num_nodes], live points by key [num_keys], where a table places the keys, their
    owners [num_keys], and extents that all must give alike
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuscoc_runtime.arrays import Array, namespace
from fuscoc_runtime.comm.requests import Request
from fuscoc_runtime.errors import (
    ExtentMismatchError,
    FuscoRuntimeError,
    PlacementMismatchError,
)
from fuscoc_runtime.plan.agree import agree, attempt, error_size, raise_together
from fuscoc_runtime.plan.arrays import count, upload
from fuscoc_runtime.plan.flows import Int64Array
from fuscoc_runtime.plan.hops import Copies, NumCopies
from fuscoc_runtime.plan.points import SortedPoints, check_points, count_bad
from fuscoc_runtime.plan.types import PlanContext, Points
from fuscoc_runtime.topology import Topology

NUM_SCALARS = 3


@dataclass(frozen=True, eq=False)
class Census:
    """Counts of all ranks, int64 on the host, because they size buffers and exchanges.

    ``length`` [R]: slots of a dense target. ``points``, ``pairs`` [R, R]: live points and NVLink
    copies, source rank x destination rank. ``flows`` [R, num_nodes]: network rows, source rank x
    destination node. ``keys`` [R, num_keys]: live points by source rank and key (no columns for a
    dense target). ``owners`` [num_keys]: the table that places the keys; empty if none does.
    """

    length: Int64Array
    points: Int64Array
    pairs: Int64Array
    flows: Int64Array
    keys: Int64Array
    owners: Int64Array

    @classmethod
    def of(cls, ctx: PlanContext, rows: Int64Array) -> Census:
        """``rows``: int64 [R, ``census_size``]."""
        parts, begin = [], NUM_SCALARS
        for size in _num_counts(ctx):
            parts.append(rows[:, begin : begin + size])
            begin += size
        points, pairs, flows, keys, owners = parts
        return cls(rows[:, 1], points, pairs, flows, keys, owners[ctx.rank])

    def num_copies(self, topology: Topology, rank: int) -> NumCopies:
        """Copies that start at ``rank``."""
        node, pairs = topology.node_ranks(topology.node(rank)), self.pairs[rank].tolist()
        near = sum(pairs[node.start : node.stop])
        return NumCopies(near, sum(pairs) - near, sum(self.flows[rank].tolist()))


def count_points(ctx: PlanContext, points: Points, ordered: SortedPoints, copies: Copies) -> Array:
    """This rank's row of the census, without an error."""
    num_ranks, target = ctx.topology.num_ranks, ctx.program.target
    parts = [
        *upload([np.array([0, points.target_length or 0], np.int64)], ctx.device),
        count_bad(ctx, points),
        count(ordered.points.rank, num_ranks, ordered.live),
        copies.per_rank,
        copies.per_node,
    ]
    if target.kind == "packed":
        parts.append(count(ordered.points.target, target.num_keys, ordered.live))
    if has_table(ctx) and points.key_to_rank is not None:
        parts.append(points.key_to_rank)
    row: Array = namespace(parts[-1]).concatenate(parts)
    return row


def read_census(
    ctx: PlanContext, points: Points, rows: Int64Array
) -> Generator[Request, Any, Census]:
    """Compare the rows of all ranks, int64 [R, words], extents included. Collective: raises on
    every rank what any rank has found wrong."""
    sizes, _, num_bad = rows[:, :NUM_SCALARS].T.tolist()
    yield from raise_together(None, sizes)
    rows, told = rows[:, : census_size(ctx)], rows[:, census_size(ctx) :]
    _check_extents(ctx, told)
    if any(num_bad):
        found = attempt(ctx.rank, lambda: check_points(ctx, points))
        yield from agree(found)
    if has_table(ctx):
        _check_placement(ctx, rows[:, -num_keys(ctx) :])
    return Census.of(ctx, rows)


def failed_row(ctx: PlanContext, error: FuscoRuntimeError) -> Array:
    """The row of a rank that has nothing but an error."""
    row = np.zeros(census_size(ctx) + len(agreed(ctx)), np.int64)
    row[0] = error_size(error)
    [sent] = upload([row], ctx.device)
    return sent


def census_size(ctx: PlanContext) -> int:
    """Words of a rank's row, but for those of extents."""
    return NUM_SCALARS + sum(_num_counts(ctx))


def with_extents(ctx: PlanContext, points: Points, row: Array) -> Array:
    """A rank's row, with the extents behind it that all ranks must give alike."""
    told = [points.extents[name] for name in agreed(ctx)]
    if not told:
        return row
    parts = [row, *upload([np.array(told, np.int64)], ctx.device)]
    whole: Array = namespace(row).concatenate(parts)
    return whole


def agreed(ctx: PlanContext) -> tuple[str, ...]:
    """Names of the extents that all ranks must give alike."""
    return ctx.shuffle.declared.target.agreed


def has_table(ctx: PlanContext) -> bool:
    """Whether a table places the keys."""
    target = ctx.program.target
    return target.is_placed_by_table


def num_keys(ctx: PlanContext) -> int:
    """Keys of the target; a dense one has none."""
    return ctx.program.target.num_keys if ctx.program.target.kind == "packed" else 0


def _num_counts(ctx: PlanContext) -> tuple[int, ...]:
    num_ranks, keys = ctx.topology.num_ranks, num_keys(ctx)
    return num_ranks, num_ranks, ctx.topology.num_nodes, keys, keys if has_table(ctx) else 0


def _check_extents(ctx: PlanContext, told: Int64Array) -> None:
    """All ranks give the same, int64 [R, extents]."""
    for name, values in zip(agreed(ctx), told.T.tolist(), strict=True):
        rank = next((rank for rank, value in enumerate(values) if value != values[0]), None)
        if rank is not None:
            raise ExtentMismatchError(name, rank, (values[0], values[rank]))


def _check_placement(ctx: PlanContext, owners: Int64Array) -> None:
    """All ranks place keys by the same table."""
    different = np.flatnonzero((owners != owners[0]).any(axis=1))
    target = ctx.program.target
    if len(different) and target.kind == "packed":
        raise PlacementMismatchError(target.placement.table or "", int(different[0]))
