"""The network hop of a plan: who sends and who forwards what, and in which stages it travels.

All ranks know the same counts and choose alike. Where there is a compiler, one call chooses
(``network.c``).
"""

from __future__ import annotations

import numpy as np

from fuscoc_runtime.manifest.program import Rules
from fuscoc_runtime.plan import native
from fuscoc_runtime.plan.balance import same_local_rank
from fuscoc_runtime.plan.census import Census
from fuscoc_runtime.plan.choose import plan_network
from fuscoc_runtime.plan.cost import CostModel
from fuscoc_runtime.plan.flows import Assignment, Demand, Shares
from fuscoc_runtime.plan.links import cost_model
from fuscoc_runtime.plan.schedule import (
    KINDS,
    Schedule,
    Transfers,
    cut,
    pairwise_peers,
    spread_out_peers,
)
from fuscoc_runtime.plan.types import PlanContext
from fuscoc_runtime.plan.wire import Side, Wire

NONE = Transfers(*(np.zeros(0, np.int64) for _ in range(4)))


def plan_network_hop(ctx: PlanContext, census: Census) -> tuple[Shares, Wire]:
    """What all ranks do, by the policies of the shuffle, and what ``ctx.rank`` does; in stages in
    which a rank moves about a slice at most."""
    demand = Demand(np.ascontiguousarray(census.flows), np.ascontiguousarray(census.pairs))
    model = ctx.model if ctx.model is not None else cost_model(ctx.program)
    if not demand.flows.any():
        assignment, num_stages, sent, received = same_local_rank(demand), 0, NONE, NONE
    else:
        stages = plan_stages(demand, ctx.program.exchange, model)
        stages = cut(stages, max(1, model.slice_bytes // ctx.row_bytes))
        assignment, num_stages = stages.assignment, stages.num_stages
        sent, received = stages.sends(ctx.rank), stages.receives(ctx.rank)
    shares = Shares(demand, assignment, assignment.pairs)
    return shares, Wire(
        num_stages,
        Side(sent, tuple(shares.sent[ctx.rank].tolist())),
        Side(received, tuple(shares.sent[:, ctx.rank].tolist())),
        shares.hands_over,
    )


def plan_stages(demand: Demand, rules: Rules, model: CostModel) -> Schedule:
    """The stages of the network hop, by the policies of a shuffle; of some rows at least."""
    if not is_native(rules):
        return plan_network(demand, model, rules.forwarder, rules.schedule)
    found = choose_natively(demand, rules, model)
    assignment = Assignment.summed(found.share, found.carried, found.pairs)
    return Schedule(KINDS[found.kind], assignment, found.tile, *found.stages)


def is_native(rules: Rules) -> bool:
    """Whether ``native.network`` knows such policies, and is there."""
    known = rules.forwarder in native.FORWARDERS and rules.schedule in native.SCHEDULES
    return known and native.is_there()


def choose_natively(demand: Demand, rules: Rules, model: CostModel) -> native.NetworkArrays:
    """``native.network`` for the policies of a shuffle."""
    n = demand.num_nodes
    return native.network(
        demand,
        native.FORWARDERS.index(rules.forwarder),
        native.SCHEDULES.index(rules.schedule),
        (pairwise_peers(n), spread_out_peers(n)),
        model.speeds,
        np.array([model.segment_bytes, model.slice_bytes]),
    )
