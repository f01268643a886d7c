"""The network hop of a plan: who sends and who forwards what, and in which rounds it travels.

All ranks know the same counts and choose alike; none can send before it has. So where there is a
compiler, one call does it all (``network.c``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuscoc_runtime.manifest.program import Rules
from fuscoc_runtime.plan import native
from fuscoc_runtime.plan.census import Census
from fuscoc_runtime.plan.choose import arrange_stages, choose_forwarders, plan_network
from fuscoc_runtime.plan.cost import CostModel
from fuscoc_runtime.plan.flows import Assignment, Demand, Int64Array, Shares
from fuscoc_runtime.plan.links import cost_model
from fuscoc_runtime.plan.rounds import (
    NO_TRANSFERS,
    Rounds,
    Side,
    slice_rows,
    slices,
)
from fuscoc_runtime.plan.schedule import (
    KINDS,
    Schedule,
    Transfers,
    pairwise_peers,
    spread_out_peers,
)
from fuscoc_runtime.plan.types import PlanContext


@dataclass(frozen=True, eq=False)
class NetworkHop:
    """What all ranks do, and what one sends and receives in which of ``num_rounds`` rounds.
    ``rounds``: ``None`` if nobody sends for another rank."""

    shares: Shares
    rounds: Rounds | None
    num_rounds: int
    send: Side
    receive: Side


def plan_network_hop(ctx: PlanContext, census: Census) -> NetworkHop:
    """The part of ``ctx.rank``, by the policies of its shuffle."""
    demand = Demand(np.ascontiguousarray(census.flows), np.ascontiguousarray(census.pairs))
    plan = _natively if is_native(ctx.program.exchange) else _by_numpy
    return plan(ctx, demand, ctx.model if ctx.model is not None else cost_model(ctx.program))


def plan_stages(demand: Demand, rules: Rules, model: CostModel, rank: int) -> native.Stages:
    """The stages of the network hop, by the policies of a shuffle; of some rows at least."""
    if is_native(rules):
        found = choose_natively(demand, rules, model, model.segment_bytes, rank)
        return native.Stages(found.share, found.carried, found.pairs, found.tile, *found.stages)
    stages = plan_network(demand, model, rules.forwarder, rules.schedule)
    made = stages.assignment
    ranges = (np.ascontiguousarray(each) for each in (stages.peer, stages.begin, stages.end))
    return native.Stages(made.share, made.carried, made.pairs, stages.tile, *ranges)


def is_native(rules: Rules) -> bool:
    """Whether ``native.network`` knows such policies, and is there."""
    known = rules.forwarder in native.FORWARDERS and rules.schedule in native.SCHEDULES
    return known and native.is_there()


def choose_natively(
    demand: Demand,
    rules: Rules,
    model: CostModel,
    row_bytes: int,
    rank: int,
    room: int = 256,
) -> native.NetworkArrays:
    """``native.network`` for the policies of a shuffle."""
    n = demand.num_nodes
    return native.network(
        demand,
        native.FORWARDERS.index(rules.forwarder),
        native.SCHEDULES.index(rules.schedule),
        (pairwise_peers(n), spread_out_peers(n)),
        model.speeds,
        np.array([model.segment_bytes, model.slice_bytes, row_bytes, model.num_lanes]),
        rank,
        room,
    )


def _natively(ctx: PlanContext, demand: Demand, model: CostModel) -> NetworkHop:
    rules = ctx.program.exchange
    found = choose_natively(demand, rules, model, ctx.row_bytes, ctx.rank)
    assignment = Assignment(found.share, found.carried)
    shares, rounds = Shares(demand, assignment, found.pairs), None
    sent, received = NO_TRANSFERS, NO_TRANSFERS
    if found.num_rounds:
        sent, received = Transfers(*found.sent), Transfers(*found.received)
    if shares.hands_over:
        stages = Schedule(KINDS[found.kind], assignment, found.tile, *found.stages)
        rounds = Rounds(stages, found.slice_rows)
    sides = _sides(found.pairs, ctx.rank, sent, received)
    return NetworkHop(shares, rounds, found.num_rounds, *sides)


def _by_numpy(ctx: PlanContext, demand: Demand, model: CostModel) -> NetworkHop:
    rules, rank = ctx.program.exchange, ctx.rank
    assignment = choose_forwarders(demand, rules.forwarder, rules.schedule, model)
    pairs = assignment.pairs
    busiest = int(max(pairs.sum(axis=0).max(), pairs.sum(axis=1).max()))
    shares = Shares(demand, assignment, pairs)
    if busiest == 0:
        return NetworkHop(shares, None, 0, *_sides(pairs, rank, NO_TRANSFERS, NO_TRANSFERS))
    stages = arrange_stages(demand, assignment, rules.schedule, model)
    rows = slice_rows(busiest, ctx.row_bytes, model.slice_bytes, model)
    num_rounds, *transfers = slices(stages, rows, rank)
    sides = _sides(pairs, rank, *transfers)
    rounds = Rounds(stages, rows) if shares.hands_over else None
    return NetworkHop(shares, rounds, num_rounds, *sides)


def _sides(pairs: Int64Array, rank: int, sent: Transfers, received: Transfers) -> tuple[Side, Side]:
    """With the rows to and from every rank."""
    to, source = tuple(pairs[rank].tolist()), tuple(pairs[:, rank].tolist())
    return Side(sent, to), Side(received, source)
