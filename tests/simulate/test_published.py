"""The traffic that published tables are compared with: what their papers say of it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.simulation_published import unshared
from benchmarks.simulation_routings import routing
from benchmarks.traffic import LARGEST, zipf
from fuscoc.simulate.counts import Sharing, count
from fuscoc_runtime.topology import Topology
from tests.simulate.small import cluster

TOPOLOGY, EXPERTS, TOPK = Topology(8, 8), 256, 8


def nodes_of(kind: str, rank: int, tokens: int = 200) -> np.ndarray:
    """The node of every expert that a rank's tokens chose, sorted."""
    experts = routing(kind, tokens, EXPERTS, TOPK, TOPOLOGY, rank).numpy()
    assert all(len(set(each)) == TOPK for each in experts.tolist())
    return np.sort(experts // (EXPERTS // 8), axis=1)


@pytest.mark.parametrize(("kind", "most"), [("real-world", 4), ("single-node", 1)])
def test_tokens_go_to_so_many_nodes(kind: str, most: int) -> None:
    nodes = nodes_of(kind, 9)
    counts = [len(set(each)) for each in nodes.tolist()]
    assert max(counts) == most
    assert len(np.unique(nodes)) == 8


@pytest.mark.parametrize("kind", ["imbalanced nodes", "imbalanced GPUs"])
def test_one_half_sends_everything(kind: str) -> None:
    tokens = np.array([len(nodes_of(kind, rank, 20)) for rank in range(64)]).reshape(8, 8)
    assert sorted(tokens.ravel()) == [0] * 32 + [40] * 32
    by_node = sorted(tokens.sum(axis=1))
    assert (by_node == [0] * 4 + [320] * 4) == (kind == "imbalanced nodes")


@pytest.mark.parametrize("exponent", [0.0, 0.8])
def test_amounts_are_drawn_from_a_zipf_distribution(exponent: float) -> None:
    demand = zipf(12, 8, exponent, seed=3, mean=10_000)
    off = demand.copies[~np.eye(96, dtype=bool)]
    assert (demand.copies.diagonal() == 0).all()
    assert off.mean() == pytest.approx(10_000, rel=1e-3)
    sizes = np.arange(1, LARGEST + 1)
    odds = sizes**-exponent / (sizes**-exponent).sum()
    mean = (odds * sizes).sum()
    for quantile in (0.25, 0.5, 0.9):
        size = sizes[np.searchsorted(odds.cumsum(), quantile)]
        assert np.quantile(off, quantile) == pytest.approx(10_000 * size / mean, rel=0.1)


def test_a_demand_is_counted_as_its_rows_would_be() -> None:
    """Row by row, each to one rank."""
    topology = Topology(3, 2)
    demand = zipf(3, 2, 0.8, seed=1, mean=20)
    rows = [np.repeat(np.arange(6), copies)[:, None] for copies in demand.copies]
    sharing = Sharing(once_per_rank=False, once_per_node=False)
    expected = count(rows, topology, [sharing])[sharing]
    found = unshared(demand, cluster(3, 2))
    for name in ("points", "pairs", "shared", "flows", "sources", "near"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
