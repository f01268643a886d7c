"""A routing's plan: points by the oracle, lists by the planner."""

from __future__ import annotations

from dataclasses import replace

from fuscoc.planning.files import Routing
from fuscoc.testing.invariants import check_plan
from fuscoc.testing.points import points_of
from fuscoc.testing.spec import Spec
from fuscoc_runtime.plan import Plan, plan_all


def plan_of(spec: Spec, routing: Routing, *, schedule: str | None = None) -> Plan:
    """Plan all ranks of a routing in one process, by the spec's policy.

    ``schedule``: stages for the network hop, as in ``fuscoc_runtime.plan.plan_all``.

    The relation is evaluated by ``points_of``, so no artifact and no kernels are needed.
    """
    shuffle, topology = spec.shuffle, routing.topology
    points = points_of(shuffle, topology, routing.ranks)
    return plan_all(shuffle, topology, points, schedule=schedule)


def check_planning(spec: Spec, routing: Routing, *, schedule: str | None = None) -> None:
    """Plan a routing and check every invariant, also of its reply; raises ``PlanViolation``."""
    check_plan(plan_of(spec, routing, schedule=schedule), routing)
    reply = spec.shuffle.reply
    if reply is not None:
        answer = replace(routing, shuffle=reply.name)
        check_planning(Spec(spec.text, reply), answer, schedule=schedule)
