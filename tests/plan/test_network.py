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
from fuscoc_runtime.plan.schedule import KINDS
from tests.schedule.strategies import demands, models

models_of_clusters = st.builds(
    replace,
    models,
    handover_latency=st.sampled_from([0.0, 1e-6, 1e-3]),
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
)
def test_c_and_numpy_choose_alike(demand: Demand, policy: str, kind: str, model: CostModel) -> None:
    """One rank may have a compiler where another has none."""
    rules = Rules(policy, kind, model.slice_bytes)
    found = choose_natively(demand, rules, model)
    assignment = choose_forwarders(demand, policy, kind, model)
    np.testing.assert_array_equal(found.share, assignment.share)
    assert found.carried == assignment.carried
    np.testing.assert_array_equal(found.pairs, assignment.pairs)
    if not assignment.pairs.any():
        assert found.stages.shape[1] == 0
        return
    stages = arrange_stages(demand, assignment, kind, model)
    assert KINDS[found.kind] == stages.kind
    np.testing.assert_array_equal(found.tile, stages.tile)
    for mine, theirs in zip(found.stages, (stages.peer, stages.begin, stages.end), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("kind", ["pairwise", "spread-out"])
def test_many_nodes_take_little_memory(kind: str) -> None:
    """A fixed order has as many stages as nodes; ``fast`` may have their square."""
    demand = uniform(500, 1, 1, 500)
    tracemalloc.start()
    try:
        model = CostModel(50e9, 450e9, 1e-5, 1 << 14)
        rules = Rules("static", kind, model.slice_bytes)
        found = choose_natively(demand, rules, model)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.stages.shape[1] == 499
    assert most < 40 << 20
