"""The ways of rows that a policy lets other ranks of a node send or get: who sends whom what, when,
and where it lies meanwhile. All ranks compute the same from the same numbers.

A rank that sends rows has them in its memory in the order of the ranks that get them, and one that
gets rows in the order of those that send them; of a pair of ranks they lie in the order of
`Assignment.pairs`. On the way back they lie as they did.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from fuscoc_runtime.manifest.program import Rules
from fuscoc_runtime.plan.cost import CostModel
from fuscoc_runtime.plan.flows import Assignment, Demand, Int64Array
from fuscoc_runtime.plan.network import plan_stages
from fuscoc_runtime.plan.schedule import Transfers

PART = 3
"""Words of a part of a flow; see kernels/device/flows.py."""

Span: TypeAlias = tuple[int, int]
"""Rows from one number on up to another."""


class Leg(NamedTuple):
    """Rows of its memory that a rank sends and gets in a stage, by the other rank, ascending."""

    sends: tuple[tuple[int, Span], ...]
    gets: tuple[tuple[int, Span], ...]

    @property
    def back(self) -> Leg:
        """The same where rows come back."""
        return Leg(self.gets, self.sends)

    def part(self, number: int, count: int) -> Leg:
        """One of so many equal parts of the rows from and to every rank; both know the same."""
        return Leg(*(_part(each, number, count) for each in self))


@dataclass(frozen=True, eq=False)
class Ways:
    """Of one dispatch, for one rank.

    Attributes:
        own: int64 [num_nodes, ranks_per_node, PART], of this rank's flows to every node the parts
            that one rank sends; ``others``: of the flows of the ranks of its place those that one
            rank of its node gets.
        legs: what it sends and gets, stage by stage.
        most_rows: the most that any rank of the job sends or gets, in ``num_stages``.
        handed_over: rows of this rank that others of its node send.
    """

    own: Int64Array
    others: Int64Array
    legs: tuple[Leg, ...]
    most_rows: int
    num_stages: int
    handed_over: int


def _part(
    rows: tuple[tuple[int, Span], ...], number: int, count: int
) -> tuple[tuple[int, Span], ...]:
    spans = []
    for peer, (first, end) in rows:
        begin, stop = (first + (end - first) * each // count for each in (number, number + 1))
        if stop > begin:
            spans.append((peer, (begin, stop)))
    return tuple(spans)


def find_ways(demand: Demand, rules: Rules, model: CostModel, rank: int) -> Ways:
    """By the policy of a shuffle, for the flows of all ranks."""
    n, m = demand.num_nodes, demand.ranks_per_node
    if not demand.flows.any():
        return Ways(np.zeros((n, m, PART), np.int64), np.zeros((n, m, PART), np.int64), (), 0, 0, 0)
    stages = plan_stages(demand, rules, model)
    assignment = stages.assignment
    pairs = assignment.pairs
    sent_at = pairs.cumsum(axis=1) - pairs
    got_at = pairs.cumsum(axis=0) - pairs
    own, others = _parts(assignment, sent_at, got_at, rank)
    sends = _by_stage(stages.sends(rank), sent_at[rank])
    gets = _by_stage(stages.receives(rank), got_at[:, rank])
    legs = [
        Leg(tuple(sorted(sends[stage])), tuple(sorted(gets[stage])))
        for stage in sorted(sends.keys() | gets.keys())
    ]
    most = int(max(pairs.sum(axis=0).max(), pairs.sum(axis=1).max()))
    elsewhere = np.arange(m) != rank % m
    handed_over = int(assignment.share[rank][:, elsewhere].sum()) if assignment.carried else 0
    return Ways(own, others, tuple(legs), most, stages.num_stages, handed_over)


def _parts(
    assignment: Assignment, sent_at: Int64Array, got_at: Int64Array, rank: int
) -> tuple[Int64Array, Int64Array]:
    """``own`` and ``others`` of `Ways`."""
    num_ranks, n, m = assignment.share.shape
    source, part = np.arange(num_ranks)[:, None, None], np.arange(m)
    node = np.arange(n)[:, None]
    ends = assignment.share.cumsum(axis=2)
    gets = np.broadcast_to(node * m + part, ends.shape)
    sends = np.broadcast_to(source, ends.shape)
    before = np.zeros_like(ends)
    if assignment.carried:
        sends = np.broadcast_to(source // m * m + part, ends.shape)
        by_node = assignment.share.reshape(n, m, n, m)  # node, its rank, node, part
        is_own = np.eye(m, dtype=np.int64)[:, None, :]
        of_own = (by_node * is_own).sum(axis=1, keepdims=True)
        of_others = by_node * (1 - is_own)
        lower = of_others.cumsum(axis=1) - of_others
        before = ((lower + of_own) * (1 - is_own)).reshape(ends.shape)
    first = ends - assignment.share
    shift = before - first
    own = np.stack([ends, sent_at[sends, gets] + shift, sends % m], axis=3)[rank]
    others = np.stack([ends, got_at[sends, gets] + shift, gets % m], axis=3)
    mine = np.arange(n) * m + rank % m
    return own, np.ascontiguousarray(others[mine, rank // m])


def _by_stage(transfers: Transfers, at: Int64Array) -> defaultdict[int, list[tuple[int, Span]]]:
    """Of rows that begin ``at`` some place for every rank, by stage those of transfers."""
    found = defaultdict[int, list[tuple[int, Span]]](list)
    begin, end = at[transfers.peer] + transfers.begin, at[transfers.peer] + transfers.end
    columns = transfers.stage, transfers.peer, begin, end
    for stage, peer, *rows in zip(*(each.tolist() for each in columns), strict=True):
        found[stage].append((peer, (rows[0], rows[1])))
    return found
