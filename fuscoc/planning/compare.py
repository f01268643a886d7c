"""The other choices for one demand: every policy, every kind of schedule, and their predictions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuscoc_runtime.plan import Plan
from fuscoc_runtime.plan.balance import POLICIES
from fuscoc_runtime.plan.cost import predict_assignment
from fuscoc_runtime.plan.flows import Assignment
from fuscoc_runtime.plan.forwarders import EXECUTABLE
from fuscoc_runtime.plan.schedule import KINDS, Schedule, arrange, fast, predict


@dataclass(frozen=True)
class PolicyRow:
    """``busiest_nic``: rows; ``seconds``: predicted, all nodes sending at once.

    ``executable``: every row is sent by its own source, as this runtime does it.
    """

    policy: str
    busiest_nic: int
    cuts: int
    seconds: float
    chosen: bool
    executable: bool


@dataclass(frozen=True)
class ScheduleRow:
    """``seconds``: predicted, stage after stage."""

    kind: str
    num_stages: int
    seconds: float
    chosen: bool
    executable: bool


def compare_policies(plan: Plan) -> list[PolicyRow]:
    """Every balance policy on the plan's demand, simplest first."""
    demand, forwarders = plan.traffic.demand, plan.forwarders.share
    rows, found = [], False
    for name, assign in POLICIES.items():
        assignment = assign(demand)
        executable = name in EXECUTABLE
        chosen = executable and not found and np.array_equal(assignment.share, forwarders)
        found = found or chosen
        rows.append(
            PolicyRow(
                name,
                busiest_nic(assignment),
                int(assignment.num_cuts().sum()),
                predict_assignment(demand, assignment, plan.model).completion,
                chosen,
                executable,
            )
        )
    return rows


def compare_schedules(plan: Plan) -> list[ScheduleRow]:
    """Every kind of stages for the plan's forwarders, and FAST with its own balancing."""
    demand = plan.traffic.demand

    def row(name: str, schedule: Schedule, executable: bool) -> ScheduleRow:
        chosen = executable and plan.schedule is not None and plan.schedule.kind == schedule.kind
        seconds = predict(demand, schedule, plan.model).completion
        return ScheduleRow(name, schedule.num_stages, seconds, chosen, executable)

    rows = [row(k, arrange(k, demand, plan.forwarders, plan.model), True) for k in KINDS]
    return [*rows, row("fast, rebalanced", fast(demand, plan.model), False)]


def busiest_nic(assignment: Assignment) -> int:
    """Rows that the busiest NIC sends or receives."""
    pairs = assignment.pairs
    return int(max(pairs.sum(axis=0).max(), pairs.sum(axis=1).max()))
