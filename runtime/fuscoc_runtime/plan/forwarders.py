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
from fuscoc_runtime.plan.arrays import count, exclusive_cumsum, iota
from fuscoc_runtime.plan.balance import POLICIES
from fuscoc_runtime.plan.census import Census
from fuscoc_runtime.plan.cost import CostModel, oracle, predict_assignment, simplest
from fuscoc_runtime.plan.flows import Assignment, Demand
from fuscoc_runtime.plan.hops import Hops
from fuscoc_runtime.plan.links import cost_model
from fuscoc_runtime.plan.types import PlanContext
from fuscoc_runtime.topology import Topology

EXECUTABLE = ("none", "greedy", "lpt", "split")
"""Policies of which every row is sent by its own source, simplest first."""

SAME_LOCAL_RANK = ("none", "static")
"""Two names of one policy."""

NATIVE = ("lpt", "auto")
"""Policies that need the compiled part of the planner."""


@dataclass(frozen=True, eq=False)
class Forwarding:
    """What a rank leaves to which forwarder, and how much all ranks do.

    ``forwarder``, ``row``, ``position``: int64 [num_remote_pairs], in the order of ``RemotePairs``:
    the rank that serves the pair, the pair's row among the rows that this rank sends there, and
    the pair's place among the pairs that this rank leaves there. ``rows``, ``pairs``: int64
    [R, R] on the host, network rows and pairs, source rank x forwarder.
    """

    forwarder: Tensor
    row: Tensor
    position: Tensor
    rows: Tensor
    pairs: Tensor


def check_policy(ctx: PlanContext) -> NativeBuildError | None:
    """The error of a rank that cannot compute its forwarders, before the others rely on it."""
    if ctx.shuffle.policy.balance not in NATIVE or ctx.topology.num_nodes == 1:
        return None
    try:
        native.build()
    except native.BuildError as error:
        return NativeBuildError(ctx.rank, str(error))
    return None


def assign_forwarders(
    ctx: PlanContext, hops: Hops, census: Census
) -> Generator[Request, Any, Forwarding]:
    """Collective if the policy cuts flows, which all ranks know."""
    num_ranks, m = ctx.topology.num_ranks, ctx.topology.ranks_per_node
    demand = Demand(
        np.ascontiguousarray(census.flows.numpy()), np.ascontiguousarray(census.pairs.numpy())
    )
    model = ctx.model if ctx.model is not None else cost_model(ctx.shuffle)
    assignment = choose_forwarders(demand, ctx.shuffle.policy.balance, model)
    rows = torch.from_numpy(assignment.share).view(num_ranks, num_ranks)

    mine = rows[ctx.rank].to(ctx.device)
    ranks = torch.arange(num_ranks, device=ctx.device)
    # Rows are ordered by node, and the forwarders of a node take consecutive ones.
    row_forwarder = torch.repeat_interleave(ranks, mine, output_size=len(hops.rows.source))
    forwarder = row_forwarder[hops.remote.row]
    if assignment.num_cuts().any():
        pairs = (yield AllGather(count(forwarder, num_ranks))).cpu()
    else:
        per_node = node_pairs(ctx.topology, census).repeat_interleave(m, dim=1)
        pairs = torch.where(rows > 0, per_node, 0)
    before = exclusive_cumsum(pairs[ctx.rank]).to(ctx.device)
    return Forwarding(
        forwarder,
        hops.remote.row - exclusive_cumsum(mine)[forwarder],
        iota(forwarder) - before[forwarder],
        rows,
        pairs,
    )


def choose_forwarders(demand: Demand, policy: str, model: CostModel) -> Assignment:
    """The assignment of ``policy``: ``static``, one of ``EXECUTABLE``, or ``auto``.

    ``auto`` takes the simplest of ``EXECUTABLE`` within ``cost.TOLERANCE`` of the best predicted
    completion. Equal demands give equal assignments on every rank.
    """
    if policy in SAME_LOCAL_RANK or demand.num_nodes == 1:
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
