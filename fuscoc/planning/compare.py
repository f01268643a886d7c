"""The other choices for one demand: every policy, every kind of schedule, and their predictions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuscoc_runtime.plan import Plan
from fuscoc_runtime.plan.balance import POLICIES
from fuscoc_runtime.plan.choose import staged_seconds
from fuscoc_runtime.plan.cost import predict_assignment
from fuscoc_runtime.plan.flows import Assignment
from fuscoc_runtime.plan.schedule import KINDS, Schedule, arrange, fast, predict


@dataclass(frozen=True)
class PolicyRow:
    """``busiest_nic``: rows; ``handed``: rows that another rank than their source sends;
    ``seconds``: predicted, all nodes sending at once; ``staged``: in the stages that the shuffle's
    rule makes of it, which is what ``auto`` compares."""

    policy: str
    assignment: Assignment
    busiest_nic: int
    cuts: int
    handed: int
    seconds: float
    staged: float
    chosen: bool


@dataclass(frozen=True)
class ScheduleRow:
    """``seconds``: predicted, stage after stage."""

    kind: str
    schedule: Schedule
    seconds: float
    chosen: bool


def compare_policies(plan: Plan) -> list[PolicyRow]:
    """Every balance policy on the plan's demand, simplest first."""
    demand, planned = plan.traffic.demand, plan.forwarders
    rows, found = [], False
    for name, assign in POLICIES.items():
        assignment = assign(demand)
        chosen = (
            not found
            and np.array_equal(assignment.share, planned.share)
            and assignment.hands_over == planned.hands_over
        )
        found = found or chosen
        rows.append(
            PolicyRow(
                name,
                assignment,
                busiest_nic(assignment),
                int(assignment.num_cuts().sum()),
                int(assignment.handed.sum()),
                predict_assignment(demand, assignment, plan.model).completion,
                staged_seconds(demand, assignment, plan.rules.schedule, plan.model),
                chosen,
            )
        )
    return rows


def compare_schedules(plan: Plan) -> list[ScheduleRow]:
    """Every kind of stages for the plan's forwarders, and FAST with its own balancing."""
    demand, kind = plan.traffic.demand, plan.schedule.kind if plan.schedule is not None else None

    def row(name: str, schedule: Schedule) -> ScheduleRow:
        seconds = predict(demand, schedule, plan.model).completion
        return ScheduleRow(name, schedule, seconds, name == kind)

    rows = [row(k, arrange(k, demand, plan.forwarders, plan.model)) for k in KINDS]
    if plan.forwarders.carried:  # then `fast` is just that
        return rows
    return [*rows, row("fast, balance rebalance", fast(demand, plan.model))]


def busiest_nic(assignment: Assignment) -> int:
    """Rows that the busiest NIC sends or receives."""
    pairs = assignment.pairs
    return int(max(pairs.sum(axis=0).max(), pairs.sum(axis=1).max()))
