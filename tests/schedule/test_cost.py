"""The cost model against its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fuscoc_runtime.plan import native
from fuscoc_runtime.plan.balance import POLICIES
from fuscoc_runtime.plan.choose import staged_seconds
from fuscoc_runtime.plan.cost import (
    CostModel,
    Loads,
    oracle,
    predict_assignment,
)
from fuscoc_runtime.plan.flows import Demand
from tests.schedule import oracle as slow
from tests.schedule.strategies import demands, model

policies = st.sampled_from(sorted(POLICIES))


@given(demands(max_nodes=3, max_ranks_per_node=3), policies)
@settings(max_examples=60)
def test_loads_count_rows(demand: Demand, policy: str) -> None:
    assignment = POLICIES[policy](demand)
    loads = Loads.of(demand, assignment)
    m = demand.ranks_per_node
    pairs = assignment.pairs
    sent, received = slow.nic_loads(demand, assignment)
    busiest = np.maximum(sent, received).reshape(-1, m).max(axis=1)
    assert np.array_equal(loads.node_tile, busiest)
    for i in range(demand.num_nodes):
        for q in range(demand.num_nodes):
            tile = pairs[i * m : (i + 1) * m, q * m : (q + 1) * m]
            assert loads.tile[i, q] == max(tile.sum(axis=0).max(), tile.sum(axis=1).max())
            expected = slow.nvlink_loads(demand, assignment, i, q)
            assert loads.balance[i, q] == expected["balance"]
            assert loads.redistribution[i, q] == pytest.approx(float(expected["redistribution"]))
        inside = demand.copies[i * m : (i + 1) * m, i * m : (i + 1) * m].copy()
        np.fill_diagonal(inside, 0)
        assert loads.local[i] == max(inside.sum(axis=0).max(), inside.sum(axis=1).max())


@given(demands(), policies)
def test_a_nodes_load_is_between_its_largest_tile_and_their_sum(
    demand: Demand, policy: str
) -> None:
    loads = Loads.of(demand, POLICIES[policy](demand))
    tiny = 1e-9
    assert (loads.balance.max(axis=1) <= loads.node_balance).all()
    assert (loads.node_balance <= loads.balance.sum(axis=1)).all()
    assert (loads.redistribution.max(axis=0) <= loads.node_redistribution + tiny).all()
    assert (loads.node_redistribution <= loads.redistribution.sum(axis=0) + tiny).all()


@st.composite
def stage_loads(draw: st.DrawFn) -> tuple[np.ndarray, ...]:
    num_stages, num_nodes = draw(st.integers(0, 4)), draw(st.integers(1, 3))
    network = draw(arrays(np.int64, num_stages, elements=st.integers(1, 40)))
    work = arrays(np.float64, (num_stages, num_nodes), elements=st.integers(0, 60).map(float))
    local = draw(arrays(np.int64, num_nodes, elements=st.integers(0, 40)))
    return network, draw(work), draw(work), local


@given(
    stage_loads(),
    st.tuples(st.just(1.0), st.sampled_from([0.1, 1.0]), st.sampled_from([0.0, 3.0])),
    st.integers(1, 50),
)
def test_pipeline_is_the_longest_chain(
    loads: tuple[np.ndarray, ...], wire: tuple[float, float, float], slice_segments: int
) -> None:
    expected = slow.pipeline(*loads, wire, slice_segments)
    assert native.pipeline(*loads, np.array(wire), slice_segments) == pytest.approx(expected)


@given(demands(), policies)
def test_nothing_beats_the_oracle(demand: Demand, policy: str) -> None:
    predicted = predict_assignment(demand, POLICIES[policy](demand), model())
    bound = oracle(demand, model())
    assert predicted.network >= bound * (1 - 1e-12)
    assert predicted.completion >= predicted.network * (1 - 1e-12)


def test_seconds() -> None:
    """Two nodes of two ranks; 10 GB/s NICs, 100 GB/s NVLink, segments of 1 MB, no slicing."""
    copies = np.zeros((4, 4), np.int64)
    copies[0, 1] = 300  # stays inside
    copies[0, 3] = 100  # crosses, to be forwarded by rank 2
    demand = Demand.without_sharing(copies, 2)
    wires = CostModel(10e9, 100e9, 5e-6, 10**6, slice_bytes=10**9)
    assert oracle(demand, wires) == pytest.approx(50 * 1e6 / 10e9)
    plain = predict_assignment(demand, POLICIES["static"](demand), wires)
    assert plain.network == pytest.approx(10e-3 + 5e-6)
    assert plain.local == pytest.approx(3e-3)
    assert plain.balance == 0
    assert plain.redistribution == pytest.approx(1e-3)
    last_slice = 1e-3 / math.ceil(100 / math.ceil(100 / 16))
    assert plain.completion == pytest.approx(10e-3 + 5e-6 + last_slice)


def test_a_thousand_nodes() -> None:
    """Tables of all pairs of nodes are larger than a stack."""
    flows = 1 - np.eye(1000, dtype=np.int64)
    demand = Demand(flows, flows)
    assignment, wires = POLICIES["static"](demand), model(stage_latency=1e-5)
    assert staged_seconds(demand, assignment, "pairwise", wires) >= oracle(demand, wires)


def test_grain_is_what_a_nic_sends_in_a_stages_latency() -> None:
    assert model(stage_latency=0).grain == 1
    assert CostModel(50e9, 450e9, 1e-5, 5000).grain == 100


def test_slices_fill_the_pipeline() -> None:
    wires = CostModel(50e9, 450e9, 1e-5, segment_bytes=1 << 14, slice_bytes=1 << 20)
    assert wires.slice_segments(10**6) == 64
    assert wires.slice_segments(160) == 10
    assert wires.slice_segments(0) == 1
    assert CostModel(50e9, 450e9, 1e-5, 1 << 24).slice_segments(10**6) == 1
