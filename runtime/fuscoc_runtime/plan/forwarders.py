"""Who forwards which network rows: the balance policy of a shuffle, carried out.

The census tells every rank what all ranks send, so all choose the same forwarders without another
word. Only cut flows need one: how many pairs fall to each side of a cut, only their source knows.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuscoc_runtime.arrays import Array, namespace
from fuscoc_runtime.comm.requests import AllGather, Request
from fuscoc_runtime.errors import NativeBuildError
from fuscoc_runtime.plan import native
from fuscoc_runtime.plan.arrays import before, upload
from fuscoc_runtime.plan.carry import landing_before
from fuscoc_runtime.plan.census import Census
from fuscoc_runtime.plan.flows import Int64Array, Shares
from fuscoc_runtime.plan.types import PlanContext
from fuscoc_runtime.topology import Topology

NATIVE_BALANCE = ("lpt", "rebalance", "auto")
NATIVE_SCHEDULE = ("fast", "auto")
"""Policies that need the compiled part of the planner; two nodes have nothing to schedule."""


@dataclass(frozen=True, eq=False)
class Forwarding:
    """What a rank leaves to which forwarder, int64 on the host.

    ``landing``, ``position`` [R], by forwarder: what to add to the number of a network row to get
    its landing row there, and to that of a remote pair to get its place among all pairs that are
    served there. ``pairs`` [R, R], by source rank and forwarder.
    """

    landing: Int64Array
    position: Int64Array
    pairs: Int64Array


def check_policy(ctx: PlanContext) -> NativeBuildError | None:
    """The error of a rank that cannot compute its forwarders, before the others rely on it."""
    rules, num_nodes = ctx.program.exchange, ctx.topology.num_nodes
    balances = num_nodes > 1 and rules.forwarder in NATIVE_BALANCE
    schedules = num_nodes > 2 and rules.schedule in NATIVE_SCHEDULE
    if not (balances or schedules):
        return None
    try:
        native.load()
    except native.BuildError as error:
        return NativeBuildError(ctx.rank, str(error))
    return None


def assign_forwarders(
    ctx: PlanContext, remote_row: Array, census: Census, shares: Shares
) -> Generator[Request, Any, Forwarding]:
    """Collective if the policy cuts flows, which all ranks know. ``remote_row``: of ``Hops``."""
    rows, rank = shares.rows, ctx.rank
    end = np.cumsum(rows[rank])
    # Rows are ordered by node, and the forwarders of a node take consecutive ones, which land
    # behind those of lower ranks, or of those whose sender comes before.
    earlier = landing_before(ctx.topology, rank) if shares.hands_over else None
    if shares.assignment.num_cuts().any():
        # Pairs are ordered by row.
        [bounds] = upload([end], ctx.device)
        xp = namespace(remote_row)
        served = xp.searchsorted(remote_row, bounds)
        pairs = yield AllGather(xp.concatenate([served[:1], served[1:] - served[:-1]]))
    else:
        per_node = np.repeat(node_pairs(ctx.topology, census), ctx.topology.ranks_per_node, axis=1)
        pairs = np.where(rows > 0, per_node, 0)
    return Forwarding(
        _total(rows, rank, earlier) - before(rows[rank]),
        _total(pairs, rank, earlier) - before(pairs[rank]),
        pairs,
    )


def node_pairs(topology: Topology, census: Census) -> Int64Array:
    """Pairs by source rank and destination node: int64 [num_ranks, num_nodes]."""
    shape = topology.num_ranks, topology.num_nodes, topology.ranks_per_node
    return np.asarray(census.pairs.reshape(shape).sum(axis=2))


def _total(counts: Int64Array, rank: int, earlier: Int64Array | None) -> Int64Array:
    """int64 [R]: of ``counts`` [source, forwarder], what lies before that of ``rank``."""
    if earlier is None:
        return np.asarray(counts[:rank].sum(axis=0))
    return np.asarray((counts * earlier).sum(axis=0))
