"""A plan's record against the plan itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc.planning.compare import compare_policies, compare_schedules
from fuscoc.planning.record import nvlink_rows, plan_record
from fuscoc_runtime.plan.balance import POLICIES, same_local_rank
from fuscoc_runtime.plan.links import segment_bytes
from tests.drawn import at_night
from tests.plan.test_plan_object import Case, cases, plan_case


@given(cases, st.sampled_from([None, "pairwise", "fast"]))
@settings(max_examples=25, deadline=None)
def test_the_plan_is_the_first_run(case: Case, schedule: str | None) -> None:
    plan = plan_case(case, schedule)
    record = plan_record(plan, "a routing")
    run, size, traffic = record.runs[0], segment_bytes(plan.shuffle.program), plan.traffic
    links = record.cluster.links
    assert run.seconds == run.dispatch.seconds == plan.predicted.completion
    wire = traffic.nvlink - np.diag(np.diag(traffic.nvlink)) + traffic.handed
    expected = {
        "nvlink_out": wire.sum(axis=1), "nvlink_in": wire.sum(axis=0),
        "nic_out": traffic.network.sum(axis=1), "nic_in": traffic.network.sum(axis=0),
    }  # fmt: skip
    for kind in dict.fromkeys(links.kind):
        mine = [number for number, each in enumerate(links.kind) if each == kind]
        assert links.owner[mine].tolist() == list(range(plan.topology.num_ranks))
        assert run.dispatch.bytes[mine].tolist() == (expected[kind] * size).tolist()
        slowest = float((expected[kind] * size / links.bandwidth[mine]).max())
        assert slowest in [each.seconds for each in run.dispatch.bounds if each.resource == kind]
    assert ("nic_out" in links.kind) == (plan.topology.num_nodes > 1)
    every = traffic.network + traffic.nvlink + traffic.handed
    assert run.traffic.rank_after.tolist() == (every * size).tolist()
    assert run.traffic.rank_before.tolist() == (traffic.points * size).tolist()
    assert run.traffic.node_after.tolist() == (traffic.by_node(every) * size).tolist()
    if plan.schedule is not None:
        sent = sum(stage.bytes for stage in run.stages)
        assert np.all(sent == traffic.by_node(traffic.network) * size)
        assert len(run.stages) == plan.schedule.num_stages
        assert run.dispatch.spans.end.max(initial=0) <= plan.predicted.network * (1 + 1e-9)


@given(cases)
@settings(max_examples=15, deadline=None)
def test_other_choices_follow(case: Case) -> None:
    plan = plan_case(case, "pairwise")
    runs = plan_record(plan, "a routing").runs[1:]
    if plan.topology.num_nodes == 1:
        assert not runs
        return
    seconds = [row.seconds for row in compare_policies(plan)]
    seconds += [row.seconds for row in compare_schedules(plan) if not row.chosen]
    assert [run.seconds for run in runs] == seconds
    moved = plan.traffic.network.sum() * segment_bytes(plan.shuffle.program)
    for run in runs:
        across = run.traffic.node_after.sum() - run.traffic.node_after.trace()
        assert across == pytest.approx(moved)


@given(cases)
@settings(max_examples=at_night(25), deadline=None)
def test_rows_over_nvlink(case: Case) -> None:
    """Exact where no flow is cut; of any policy, every copy reaches its destination once."""
    plan = plan_case(case)
    demand = plan.traffic.demand
    uncut = nvlink_rows(demand, same_local_rank(demand))
    np.testing.assert_allclose(uncut, plan.traffic.unbalanced().nvlink, atol=1e-9)
    for assign in POLICIES.values():
        assignment = assign(demand)
        rows = nvlink_rows(demand, assignment) - assignment.handed
        np.testing.assert_allclose(rows.sum(axis=0), demand.copies.sum(axis=0), atol=1e-9)
