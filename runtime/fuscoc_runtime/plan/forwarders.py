"""Who forwards which network rows: the balance policy of a shuffle, carried out.

The census tells every rank what all ranks send, so all choose the same forwarders without another
word. Only cut flows need one: how many pairs fall to each side of a cut, only their source knows.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fuscoc_runtime.comm.requests import AllGather, Request
from fuscoc_runtime.errors import NativeBuildError
from fuscoc_runtime.plan import native
from fuscoc_runtime.plan.arrays import count, exclusive_cumsum, iota, upload
from fuscoc_runtime.plan.balance import POLICIES
from fuscoc_runtime.plan.census import Census
from fuscoc_runtime.plan.cost import CostModel, oracle, predict_assignment, simplest
from fuscoc_runtime.plan.flows import Assignment, Demand, Int64Array
from fuscoc_runtime.plan.hops import Hops
from fuscoc_runtime.plan.links import cost_model
from fuscoc_runtime.plan.types import PlanContext
from fuscoc_runtime.topology import Topology

EXECUTABLE = ("none", "greedy", "lpt", "split")
"""Policies of which every row is sent by its own source, simplest first."""

SAME_LOCAL_RANK = ("none", "static")
"""Two names of one policy."""

NATIVE_BALANCE = ("lpt", "auto")
NATIVE_SCHEDULE = ("fast", "auto")
"""Policies that need the compiled part of the planner; two nodes have nothing to schedule."""


@dataclass(frozen=True, eq=False)
class Shares:
    """Who forwards how much: ``rows``, int64 [R, R] on the host, network rows by source rank and
    forwarder."""

    demand: Demand
    assignment: Assignment

    @property
    def rows(self) -> Int64Array:
        num_ranks = self.demand.num_ranks
        return self.assignment.share.reshape(num_ranks, num_ranks)


@dataclass(frozen=True, eq=False)
class Forwarding:
    """What a rank leaves to which forwarder.

    ``forwarder``, ``row``, ``position``: int64 [num_remote_pairs], in the order of ``RemotePairs``:
    the rank that serves the pair, the pair's landing row there, and the pair's place among all that
    it serves. ``pairs``: int64 [R, R] on the host, pairs by source rank and forwarder.
    """

    forwarder: Tensor
    row: Tensor
    position: Tensor
    pairs: Tensor


def check_policy(ctx: PlanContext) -> NativeBuildError | None:
    """The error of a rank that cannot compute its forwarders, before the others rely on it."""
    policy, num_nodes = ctx.shuffle.policy, ctx.topology.num_nodes
    balances = num_nodes > 1 and policy.balance in NATIVE_BALANCE
    schedules = num_nodes > 2 and policy.schedule in NATIVE_SCHEDULE
    if not (balances or schedules):
        return None
    try:
        native.load()
    except native.BuildError as error:
        return NativeBuildError(ctx.rank, str(error))
    return None


def share_out(ctx: PlanContext, census: Census) -> Shares:
    """Choose the forwarders; all ranks choose alike."""
    demand = Demand(
        np.ascontiguousarray(census.flows.numpy()), np.ascontiguousarray(census.pairs.numpy())
    )
    model = ctx.model if ctx.model is not None else cost_model(ctx.shuffle)
    return Shares(demand, choose_forwarders(demand, ctx.shuffle.policy.balance, model))


def assign_forwarders(
    ctx: PlanContext, hops: Hops, census: Census, shares: Shares
) -> Generator[Request, Any, Forwarding]:
    """Collective if the policy cuts flows, which all ranks know."""
    num_ranks, m, rows = ctx.topology.num_ranks, ctx.topology.ranks_per_node, shares.rows
    mine = rows[ctx.rank]
    # Rows are ordered by node, and the forwarders of a node take consecutive ones, which land
    # behind those of lower ranks.
    row_forwarder = np.repeat(np.arange(num_ranks), mine)
    landing = rows[: ctx.rank].sum(axis=0) - (np.cumsum(mine) - mine)
    row_landing = np.arange(len(row_forwarder)) + landing[row_forwarder]
    tables = torch.from_numpy(row_forwarder), torch.from_numpy(row_landing)
    forwarder_there, landing_there = upload(tables, ctx.device)
    forwarder = forwarder_there[hops.remote.row]
    if shares.assignment.num_cuts().any():
        pairs = yield AllGather(count(forwarder, num_ranks))
    else:
        per_node = node_pairs(ctx.topology, census).repeat_interleave(m, dim=1)
        pairs = torch.where(torch.from_numpy(rows) > 0, per_node, 0)
    [shift] = upload([pairs[: ctx.rank].sum(0) - exclusive_cumsum(pairs[ctx.rank])], ctx.device)
    return Forwarding(
        forwarder,
        landing_there[hops.remote.row],
        iota(forwarder) + shift[forwarder],
        pairs,
    )


def choose_forwarders(demand: Demand, policy: str, model: CostModel) -> Assignment:
    """The assignment of ``policy``: ``static``, one of ``EXECUTABLE``, or ``auto``.

    ``auto`` takes the simplest of ``EXECUTABLE`` within ``cost.TOLERANCE`` of the best predicted
    completion. Equal demands give equal assignments on every rank.
    """
    if policy in SAME_LOCAL_RANK or demand.num_nodes == 1 or demand.ranks_per_node == 1:
        return POLICIES["none"](demand)
    if policy != "auto":
        return POLICIES[policy](demand)
    return simplest(
        (POLICIES[name](demand) for name in EXECUTABLE),
        lambda each: predict_assignment(demand, each, model).completion,
        oracle(demand, model),
    )


def node_pairs(topology: Topology, census: Census) -> Tensor:
    """Pairs by source rank and destination node: int64 [num_ranks, num_nodes]."""
    shape = topology.num_ranks, topology.num_nodes, topology.ranks_per_node
    return census.pairs.view(shape).sum(2)
