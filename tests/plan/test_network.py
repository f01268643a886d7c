"""The network hop in one call of C: choice by choice what numpy says."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.traffic import uniform
from fuscoc_runtime.manifest.program import Rules
from fuscoc_runtime.plan.balance import POLICIES
from fuscoc_runtime.plan.choose import arrange_stages, choose_forwarders
from fuscoc_runtime.plan.cost import CostModel
from fuscoc_runtime.plan.flows import Demand
from fuscoc_runtime.plan.network import choose_natively
from fuscoc_runtime.plan.rounds import slice_rows, slices
from fuscoc_runtime.plan.schedule import KINDS
from tests.schedule.strategies import demands, models

models_of_clusters = st.builds(
    replace,
    models,
    handover_latency=st.sampled_from([0.0, 1e-6, 1e-3]),
    num_lanes=st.integers(1, 8),
    slice_bytes=st.sampled_from([1, 1 << 16, 8 << 20]),
    segment_bytes=st.sampled_from([1, 1000, 1 << 14]),
)
balances = st.sampled_from([*POLICIES, "auto"])
schedules = st.sampled_from([*KINDS, "auto"])


@given(
    demands(),
    balances,
    schedules,
    models_of_clusters,
    st.sampled_from([1, 1000, 1 << 14]),
    st.integers(0, 99),
    st.sampled_from([1, 256]),
)
def test_c_and_numpy_choose_alike(
    demand: Demand,
    policy: str,
    kind: str,
    model: CostModel,
    row_bytes: int,
    number: int,
    room: int,
) -> None:
    """One rank may have a compiler where another has none."""
    rank = number % demand.num_ranks
    rules = Rules(policy, kind, model.slice_bytes)
    found = choose_natively(demand, rules, model, row_bytes, rank, room)
    assignment = choose_forwarders(demand, policy, kind, model)
    np.testing.assert_array_equal(found.share, assignment.share)
    np.testing.assert_array_equal(found.pairs, assignment.pairs)
    assert found.carried == assignment.carried
    busiest = int(max(assignment.pairs.sum(axis=0).max(), assignment.pairs.sum(axis=1).max()))
    if busiest == 0:
        assert found.num_rounds == 0
        return
    stages = arrange_stages(demand, assignment, kind, model)
    assert KINDS[found.kind] == stages.kind
    np.testing.assert_array_equal(found.tile, stages.tile)
    for mine, theirs in zip(found.stages, (stages.peer, stages.begin, stages.end), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert found.slice_rows == slice_rows(busiest, row_bytes, model.slice_bytes, model)
    num_rounds, *sides = slices(stages, found.slice_rows, rank)
    assert found.num_rounds == num_rounds
    for mine, transfers in zip((found.sent, found.received), sides, strict=True):
        np.testing.assert_array_equal(mine, list(vars(transfers).values()))


@pytest.mark.parametrize("kind", ["pairwise", "spread-out"])
def test_many_nodes_take_little_memory(kind: str) -> None:
    """A fixed order has as many stages as nodes; ``fast`` may have their square."""
    demand = uniform(500, 1, 1, 500)
    tracemalloc.start()
    try:
        model = CostModel(50e9, 450e9, 1e-5, 1 << 14)
        rules = Rules("static", kind, model.slice_bytes)
        found = choose_natively(demand, rules, model, 1 << 14, 7, 1000)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.stages.shape[1] == 499
    assert most < 40 << 20
