"""Relation outputs -> the points that move, in the order in which they are sent."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.plan.arrays import indices
from fuscoc_runtime.plan.explain import explain_index
from fuscoc_runtime.plan.types import PlanContext, Points


@dataclass(frozen=True, eq=False)
class LivePoints:
    """Points that are not dropped, ordered by (source, destination rank, domain order).

    int64 [num_live_points] each. ``target`` is the key of a packed target and the slot of a dense
    one. Every segment's points for one rank, and so for one node, are neighbours: that is all
    that deduplication needs.
    """

    point: Tensor
    source: Tensor
    rank: Tensor
    target: Tensor


def live_points(ctx: PlanContext, points: Points) -> LivePoints:
    """Drop the dead points and order the rest."""
    rank = points.columns["rank"]
    kept = indices(rank >= 0)
    source = kept // ctx.shuffle.fanout
    key = source * ctx.topology.num_ranks + rank[kept]
    order = torch.sort(key, stable=True).indices
    point = kept[order]
    target = points.columns["key" if ctx.shuffle.target.kind == "packed" else "slot"]
    return LivePoints(point, source[order], rank[point], target[point])


def check_points(ctx: PlanContext, points: Points) -> FuscoRuntimeError | None:
    """The error of the first point whose key or rank does not exist."""
    bad = indices(points.columns["rank"] < -1)
    return explain_index(ctx, points, int(bad[0])) if len(bad) else None
