"""Demands, cost models and routings for property tests."""

from __future__ import annotations

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmarks.traffic import one_to_one, uniform, zipf
from fuscoc_runtime.plan.balance import POLICIES
from fuscoc_runtime.plan.choose import arrange_stages
from fuscoc_runtime.plan.cost import CostModel
from fuscoc_runtime.plan.flows import Demand
from fuscoc_runtime.plan.schedule import KINDS, Schedule

SEGMENT_BYTES = 1 << 14


def model(
    nvlink_to_nic: float = 9.0, stage_latency: float = 0.0, segment_bytes: int = SEGMENT_BYTES
) -> CostModel:
    return CostModel(50e9, nvlink_to_nic * 50e9, stage_latency, segment_bytes)


models = st.builds(
    model,
    nvlink_to_nic=st.sampled_from([0.5, 2.0, 9.0, 35.0]),
    stage_latency=st.sampled_from([0.0, 1e-6, 2e-5]),
)


@st.composite
def copies(
    draw: st.DrawFn, max_nodes: int = 5, max_ranks_per_node: int = 4, most: int = 60
) -> tuple[np.ndarray, int]:
    """Copies between all ranks, many of them 0 and some large, and the ranks of a node."""
    num_nodes = draw(st.integers(1, max_nodes))
    ranks_per_node = draw(st.integers(1, max_ranks_per_node))
    num_ranks = num_nodes * ranks_per_node
    amounts = st.one_of(st.just(0), st.integers(0, 3), st.integers(0, most))
    return draw(arrays(np.int64, (num_ranks, num_ranks), elements=amounts)), ranks_per_node


@st.composite
def demands(draw: st.DrawFn, max_nodes: int = 5, max_ranks_per_node: int = 4) -> Demand:
    """Deduplicated demand: flows anywhere between no sharing and the most that is possible."""
    amounts, ranks_per_node = draw(copies(max_nodes, max_ranks_per_node))
    plain = Demand.without_sharing(amounts, ranks_per_node)
    by_node = amounts.reshape(plain.num_ranks, plain.num_nodes, ranks_per_node)
    most_shared = np.minimum(by_node.max(axis=2), plain.flows)
    sharing = draw(st.integers(0, 4))
    demand = Demand(plain.flows - (plain.flows - most_shared) * sharing // 4, plain.copies)
    demand.check()
    return demand


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Any demand, forwarders and order of the nodes, of two nodes and more."""
    amounts, m = draw(copies(max_ranks_per_node=2, most=40))
    assume(len(amounts) > m)
    demand = Demand.without_sharing(amounts, m)
    assignment = POLICIES[draw(st.sampled_from(sorted(POLICIES)))](demand)
    kind = draw(st.sampled_from([*KINDS, "auto"]))
    return arrange_stages(demand, assignment, kind, model(stage_latency=1e-5, segment_bytes=1000))


def corpus() -> list[Demand]:
    """Small and middling clusters, even, skewed and adversarial traffic."""
    shapes = [(1, 4), (2, 2), (2, 8), (3, 4), (4, 8), (8, 4)]
    made = [zipf(n, m, skew, 1, 300) for n, m in shapes for skew in (0.4, 0.8, 1.2)]
    made += [uniform(n, m, 2, 300) for n, m in shapes]
    made += [one_to_one(n, m, 4000) for n, m in shapes]
    return made
