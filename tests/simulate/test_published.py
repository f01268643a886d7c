"""The traffic that published tables are compared with: what their papers say of it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.simulation_cases import open_shape
from benchmarks.simulation_fusco import FUSCO, SHAPE, TOKENS, counts
from benchmarks.simulation_published import unshared
from benchmarks.simulation_routings import BUSY, routing
from benchmarks.traffic import LARGEST, zipf
from fuscoc.simulate.contenders import contender
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


def test_where_the_load_is_imbalanced_a_rank_sends_all_or_nothing() -> None:
    away = [nodes_of("imbalanced", rank, 20) != rank // 8 for rank in range(64)]
    busy = np.array([each.all() for each in away])
    assert all(is_busy or not each.any() for is_busy, each in zip(busy, away, strict=True))
    assert sorted(busy.reshape(8, 8).sum(axis=1), reverse=True) == list(BUSY)


def test_ranks_of_a_local_index_prefer_alike() -> None:
    here, there, other = (
        np.bincount(nodes_of("real-world", rank, 4000).ravel(), minlength=8) for rank in (1, 57, 2)
    )
    assert abs(here - there).sum() < 0.5 * abs(here - other).sum()


def test_experts_are_drawn_by_weight_without_replacement() -> None:
    """The second of two, given the first, is by the weights of those that are left."""
    tokens = 40_000
    drawn = routing("single-node", tokens, 5, 2, Topology(1, 2), 0).numpy()
    weight = np.bincount(drawn[:, 0], minlength=5) / tokens
    pairs = np.zeros((5, 5))
    np.add.at(pairs, (drawn[:, 0], drawn[:, 1]), 1 / tokens)
    expected = weight[:, None] * weight / (1 - weight[:, None])
    np.fill_diagonal(expected, 0)
    np.testing.assert_allclose(pairs, expected, atol=4 * (0.25 / tokens) ** 0.5)


def test_longer_inputs_are_routed_as_shorter_ones() -> None:
    few, many = (
        counts("single-node", tokens, contender("", FUSCO, open_shape(SHAPE)[1]))
        for tokens in TOKENS[:2]
    )
    np.testing.assert_array_equal(many.flows, 2 * few.flows)
    assert (many.sources == TOKENS[1]).all()
    np.testing.assert_array_equal(many.flows.sum(axis=1) + many.near, many.sources)


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
