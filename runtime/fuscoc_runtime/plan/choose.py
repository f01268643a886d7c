"""Forwarders and stages of the network hop, by predicted completion.

How long a tile keeps its NICs busy depends on the forwarders, and how long the stages are on the
tiles: forwarders that load every NIC alike in all may need stages of twice the length. So ``auto``
compares forwarders by the stages that follow. ``choose.c`` is the same in C.
"""

from __future__ import annotations

import math
from functools import partial

from fuscoc_runtime.errors import OptionError
from fuscoc_runtime.plan.balance import POLICIES, rebalance
from fuscoc_runtime.plan.cost import (
    CostModel,
    handover_seconds,
    least_of_stages,
    least_seconds,
    simplest,
)
from fuscoc_runtime.plan.flows import Assignment, Demand
from fuscoc_runtime.plan.schedule import KINDS, Schedule, arrange, predict

RULES = {"forwarder": (*POLICIES, "auto"), "schedule": (*KINDS, "auto")}
"""The values of the rules of the network hop that have names."""


def check_rule(name: str, value: object) -> None:
    """Raise OptionError unless there is such a rule of the network hop, and it has that value."""
    if name == "slice_bytes":
        if not isinstance(value, int) or value < 1:
            raise OptionError(name, f"is {value!r}, and must be a number of bytes from 1 on")
    elif name not in RULES:
        known = ", ".join((*RULES, "slice_bytes"))
        raise OptionError(name, f"is no rule of the network hop; there are {known}")
    elif value not in RULES[name]:
        raise OptionError(name, f"is {value!r}, and must be one of {', '.join(RULES[name])}")


def choose_forwarders(demand: Demand, policy: str, kind: str, model: CostModel) -> Assignment:
    """Assign every flow by ``policy``: a key of ``POLICIES``, or ``auto``.

    ``auto`` takes the simplest policy within ``cost.TOLERANCE`` of the best predicted completion,
    with stages of ``kind``: one of ``KINDS``, or ``auto``. Equal demands give equal assignments on
    every rank.
    """
    if demand.num_nodes == 1 or demand.ranks_per_node == 1:
        policy = "static"
    if policy != "auto":
        return POLICIES[policy](demand)
    alone, together = least_seconds(demand, model)
    return simplest(
        [
            (partial(assign, demand), together if assign is rebalance else alone)
            for assign in POLICIES.values()
        ],
        lambda each, limit: staged_seconds(demand, each, kind, model, limit),
    )


def arrange_stages(demand: Demand, assignment: Assignment, kind: str, model: CostModel) -> Schedule:
    """Stages for forwarders that are already chosen; ``auto`` picks by predicted completion."""
    if kind != "auto":
        return arrange(kind, demand, assignment, model)
    if demand.num_nodes == 2:  # two nodes have one thing to do
        return arrange(KINDS[0], demand, assignment, model)
    bound = _least_seconds(assignment, model)
    return simplest(
        [(partial(arrange, each, demand, assignment, model), bound) for each in KINDS],
        lambda each, _: predict(demand, each, model).completion,
    )


def staged_seconds(
    demand: Demand, assignment: Assignment, kind: str, model: CostModel, limit: float = math.inf
) -> float:
    """Predicted completion with the stages of ``kind`` (or ``auto``) that follow; infinite if its
    tiles alone take longer than ``limit``."""
    if _least_seconds(assignment, model) > limit:
        return math.inf
    return predict(demand, arrange_stages(demand, assignment, kind, model), model).completion


def _least_seconds(assignment: Assignment, model: CostModel) -> float:
    return least_of_stages(assignment.tile(), model) + handover_seconds(assignment, model)


def plan_network(
    demand: Demand, model: CostModel, policy: str = "auto", kind: str = "auto"
) -> Schedule:
    """The schedule of the network hop for the policies of a shuffle."""
    assignment = choose_forwarders(demand, policy, kind, model)
    return arrange_stages(demand, assignment, kind, model)
