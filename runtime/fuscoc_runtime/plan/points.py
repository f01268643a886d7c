"""Relation outputs -> the points that move, in the order in which they are sent."""

from __future__ import annotations

from dataclasses import dataclass

from fuscoc_runtime.arrays import Array, namespace
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.plan.arrays import ascending, iota, positions, stable_order
from fuscoc_runtime.plan.explain import explain_index, explain_overlap
from fuscoc_runtime.plan.types import PlanContext, Points


@dataclass(frozen=True, eq=False)
class LivePoints:
    """The points that move, ordered by (source, destination rank, domain order).

    int64 [num_live_points] each. ``target`` is the key of a packed target and the slot of a dense
    one. ``pair`` is ``source * num_ranks + rank``: every segment's points for one rank, and so for
    one node, are neighbours, and that is all that deduplication needs.
    """

    point: Array
    pair: Array
    source: Array
    rank: Array
    target: Array


@dataclass(frozen=True, eq=False)
class SortedPoints:
    """Points ordered by (source, destination rank, domain order), those that do not move last.

    As ``LivePoints``, and ``live``: bool, those that move; the others have the rank and the key 0.
    """

    points: LivePoints
    live: Array

    def first(self, size: int) -> LivePoints:
        """The first ``size`` points."""
        return LivePoints(*(column[:size] for column in vars(self.points).values()))


def sort_points(ctx: PlanContext, points: Points) -> SortedPoints:
    """Order the points."""
    num_ranks, target = ctx.topology.num_ranks, ctx.program.target
    rank, source = points.columns["rank"], points.columns["source"]
    end = len(rank) * num_ranks  # behind every pair: there are no more sources than points
    where = namespace(rank).where
    key = where(rank >= 0, source * num_ranks + rank, end)
    point = stable_order(key, end + 1)
    pair = key[point]
    live = pair < end
    values = points.columns["key" if target.kind == "packed" else "slot"]
    sorted_points = LivePoints(
        point, pair, pair // num_ranks, pair % num_ranks, where(live, values[point], 0)
    )
    return SortedPoints(sorted_points, live)


def count_bad(ctx: PlanContext, points: Points) -> Array:
    """int64 [1]: points whose key or rank does not exist, and segments that begin where another one
    does, if they must not."""
    bad = (points.columns["rank"] < -1).sum().reshape(1)
    return bad + _beginning_again(points)[1].sum() if ctx.program.relation.apart else bad


def check_points(ctx: PlanContext, points: Points) -> FuscoRuntimeError | None:
    """The error of the first point whose key or rank does not exist, or else of two segments that
    begin with the same cell."""
    bad = positions(points.columns["rank"] < -1)
    if len(bad):
        return explain_index(ctx, points, int(bad[0]))
    if not ctx.program.relation.apart:
        return None
    source, again = _beginning_again(points)
    found = positions(again)
    if not len(found):
        return None
    first, second = source[int(found[0]) : int(found[0]) + 2].tolist()
    fanout = ctx.program.num_points_each(ctx.topology.num_ranks)
    cell = int(points.columns["src_offset"][second * fanout])
    return explain_overlap(ctx, cell, first, second)


def _beginning_again(points: Points) -> tuple[Array, Array]:
    """The segments of all points by their first cells, [num_points], and whether the next one is
    another segment with the same, [num_points - 1]; those that do not move are with nobody."""
    source, rank = points.columns["source"], points.columns["rank"]
    nowhere = -1 - iota(rank)
    first = namespace(rank).where(rank >= 0, points.columns["src_offset"], nowhere)
    cell, order = ascending(first)
    source = source[order]
    return source, (cell[1:] == cell[:-1]) & (source[1:] != source[:-1])
