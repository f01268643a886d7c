"""Stages: partial permutations that deliver every row once, as fast as promised."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmarks.traffic import one_to_one, zipf
from fuscoc_runtime.plan import native
from fuscoc_runtime.plan.balance import POLICIES
from fuscoc_runtime.plan.choose import plan_network
from fuscoc_runtime.plan.cost import TOLERANCE, CostModel, Loads, oracle
from fuscoc_runtime.plan.flows import Demand
from fuscoc_runtime.plan.schedule import (
    KINDS,
    Schedule,
    arrange,
    fast,
    pairwise_peers,
    predict,
    spread_out_peers,
)
from tests.schedule import oracle as slow
from tests.schedule.strategies import corpus, demands, model, models

kinds = st.sampled_from(KINDS)
policies = st.sampled_from(sorted(POLICIES))


def assert_incast_free(schedule: Schedule) -> None:
    num_nodes = len(schedule.tile)
    for stage in schedule.stages:
        senders = np.flatnonzero(stage.peer >= 0)
        receivers = stage.peer[senders]
        assert len(senders)
        assert (receivers < num_nodes).all()
        assert (receivers != senders).all()
        assert len(set(receivers.tolist())) == len(receivers)
        assert (stage.end[senders] > stage.begin[senders]).all()
        idle = stage.peer < 0
        assert not stage.begin[idle].any()
        assert not stage.end[idle].any()


def assert_tiles_covered(schedule: Schedule) -> None:
    """The ranges of every tile follow one another from 0 to its size."""
    sent = np.zeros_like(schedule.tile)
    for stage in schedule.stages:
        for i, j in enumerate(stage.peer):
            if j >= 0:
                assert stage.begin[i] == sent[i, j]
                sent[i, j] = stage.end[i]
    assert np.array_equal(sent, schedule.tile)


def total(schedule: Schedule) -> int:
    return sum(stage.length for stage in schedule.stages)


def largest_sum(matrix: np.ndarray) -> int:
    return int(max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max()))


@given(demands(), kinds, policies, models)
def test_stages_are_partial_permutations_that_cover_every_tile(
    demand: Demand, kind: str, policy: str, wires: CostModel
) -> None:
    schedule = arrange(kind, demand, POLICIES[policy](demand), wires)
    assert_incast_free(schedule)
    assert_tiles_covered(schedule)


@given(demands(max_nodes=4, max_ranks_per_node=3), kinds, policies, models)
@settings(max_examples=60)
def test_every_row_is_delivered_once(
    demand: Demand, kind: str, policy: str, wires: CostModel
) -> None:
    schedule = arrange(kind, demand, POLICIES[policy](demand), wires)
    assert sorted(slow.delivered(demand, schedule)) == sorted(slow.rows(demand))


@given(demands(), kinds, policies)
def test_sends_and_receives_match(demand: Demand, kind: str, policy: str) -> None:
    schedule = arrange(kind, demand, POLICIES[policy](demand), model())
    sent, received = set(), set()
    for rank in range(demand.num_ranks):
        out, incoming = schedule.sends(rank), schedule.receives(rank)
        assert (np.diff(out.stage) >= 0).all()
        assert (np.diff(incoming.stage) >= 0).all()
        for stage, peer, begin, end in zip(out.stage, out.peer, out.begin, out.end, strict=True):
            sent.add((stage, rank, peer, begin, end))
        for stage, peer, begin, end in zip(
            incoming.stage, incoming.peer, incoming.begin, incoming.end, strict=True
        ):
            received.add((stage, peer, rank, begin, end))
    assert sent == received


@given(demands(), models)
def test_no_stage_of_fast_is_longer_than_its_range(demand: Demand, wires: CostModel) -> None:
    """Rank k talks to rank k only, and a stage's length is what its busiest rank sends."""
    schedule = fast(demand, wires)
    for rank in range(demand.num_ranks):
        moves = schedule.sends(rank)
        assert (moves.peer % demand.ranks_per_node == rank % demand.ranks_per_node).all()
        assert len(set(moves.stage.tolist())) == len(moves.stage)
        for stage, begin, end in zip(moves.stage, moves.begin, moves.end, strict=True):
            assert end - begin <= schedule.stages[stage].length


@given(demands())
def test_fast_takes_the_largest_sum(demand: Demand) -> None:
    schedule = fast(demand, model())
    assert np.array_equal(schedule.tile, -(-demand.node_flows // demand.ranks_per_node))
    assert total(schedule) == largest_sum(schedule.tile)


square = st.integers(1, 5).flatmap(
    lambda n: arrays(np.int64, (n, n), elements=st.one_of(st.just(0), st.integers(0, 50)))
)


@given(square)
@settings(max_examples=60)
def test_decomposition_is_as_short_as_the_textbooks(matrix: np.ndarray) -> None:
    peer, begin, end = native.decompose(matrix, 1)
    textbook = slow.birkhoff(matrix)
    assert (end - begin).max(axis=1, initial=0).sum() == sum(weight for weight, _ in textbook)
    assert len(peer) <= (len(matrix) - 1) ** 2 + 1


@given(square, st.integers(1, 60))
def test_grains_bound_the_rounding(matrix: np.ndarray, grain: int) -> None:
    n = len(matrix)
    peer, begin, end = native.decompose(matrix, grain)
    lengths = (end - begin).max(axis=1, initial=0)
    grains = largest_sum(-(-matrix // grain))
    assert lengths.sum() <= grains * grain <= largest_sum(matrix) + n * grain
    assert len(peer) <= min((n - 1) ** 2 + 1, grains)


@pytest.mark.parametrize("num_nodes", [12, 40, 63, 64, 65, 130])
def test_stage_count_is_bounded_for_many_nodes(num_nodes: int) -> None:
    demand = zipf(num_nodes, 1, 0.8, seed=num_nodes, mean=5000)
    schedule = fast(demand, model())
    assert_incast_free(schedule)
    assert_tiles_covered(schedule)
    assert total(schedule) == largest_sum(schedule.tile)
    assert schedule.num_stages <= num_nodes**2 - 2 * num_nodes + 2
    coarse = fast(demand, model(stage_latency=1e-4))
    assert coarse.num_stages < schedule.num_stages


def test_large_stages_come_first() -> None:
    lengths = [stage.length for stage in fast(zipf(12, 8, 0.8, 0, 300), model()).stages]
    for earlier, later in pairwise(lengths):
        assert later <= earlier * 8 / 7 + 1  # equal but for the steps of the threshold


@given(demands(), kinds, models)
def test_equal_demands_get_equal_schedules(demand: Demand, kind: str, wires: CostModel) -> None:
    again = Demand(demand.flows.copy(), demand.copies.copy())
    first = plan_network(demand, wires, "auto", kind)
    second = plan_network(again, wires, "auto", kind)
    for name in ("peer", "begin", "end", "tile"):
        assert np.array_equal(getattr(first, name), getattr(second, name))


def test_worked_example_of_four_servers() -> None:
    """Stages of 3, 2 and 4 units, where spread-out takes 7 + 5 + 3."""
    matrix = np.array([[0, 0, 3, 2], [5, 0, 0, 4], [4, 2, 0, 3], [0, 7, 2, 0]])
    demand = Demand.without_sharing(matrix, 1)
    schedule = fast(demand, model())
    assert sorted(stage.length for stage in schedule.stages) == [2, 3, 4]
    spread = arrange("spread-out", demand, POLICIES["static"](demand), model())
    assert sorted(stage.length for stage in spread.stages) == [3, 5, 7]
    assert oracle(demand, model()) == pytest.approx(model().nic_seconds(9))


def test_worked_example_of_three_servers() -> None:
    """Largest sum of a GPU 10 before balancing, 8 after; the stages take 8."""
    copies = np.zeros((6, 6), np.int64)
    copies[0:2, 2:4] = [[6, 1], [1, 4]]
    copies[0:2, 4:6] = [[1, 0], [1, 2]]
    copies[2:4, 0:2] = [[0, 1], [0, 3]]
    copies[2:4, 4:6] = [[2, 1], [5, 2]]
    copies[4:6, 0:2] = [[4, 2], [3, 3]]
    copies[4:6, 2:4] = [[2, 0], [1, 1]]
    assert largest_sum(copies) == 10
    demand = Demand.without_sharing(copies, 2)
    schedule = fast(demand, model())
    assert schedule.tile.tolist() == [[0, 6, 2], [2, 0, 5], [6, 2, 0]]
    assert largest_sum(schedule.assignment.pairs) == 8
    assert total(schedule) == 8
    assert schedule.num_stages <= 3


@pytest.mark.parametrize("num_nodes", range(1, 10))
def test_fixed_orders_meet_every_pair_once(num_nodes: int) -> None:
    node = np.arange(num_nodes)
    for peers in (spread_out_peers(num_nodes), pairwise_peers(num_nodes)):
        assert (np.sort(peers, axis=1) == node).all()
        met = [(i, j) for row in peers.tolist() for i, j in enumerate(row) if i != j]
        assert len(met) == len(set(met)) == num_nodes * (num_nodes - 1)
    pairs = pairwise_peers(num_nodes)
    assert (np.take_along_axis(pairs, pairs, axis=1) == node).all()
    assert len(pairs) == num_nodes - 1 + num_nodes % 2


@given(demands(max_nodes=4, max_ranks_per_node=3), kinds, policies, models)
@settings(max_examples=60)
def test_prediction_gathers_the_loads_of_every_stage(
    demand: Demand, kind: str, policy: str, wires: CostModel
) -> None:
    schedule = arrange(kind, demand, POLICIES[policy](demand), wires)
    loads = Loads.of(demand, schedule.assignment)
    shape = (schedule.num_stages, demand.num_nodes)
    balance, redistribution = np.zeros(shape), np.zeros(shape)
    for k, stage in enumerate(schedule.stages):
        for i, j in enumerate(stage.peer):
            if j >= 0:
                part = (stage.end[i] - stage.begin[i]) / schedule.tile[i, j]
                balance[k, i] = part * loads.balance[i, j]
                redistribution[k, j] = part * loads.redistribution[i, j]
    network = np.array([stage.length for stage in schedule.stages], np.int64)
    wire = (wires.nic_seconds(1), wires.nvlink_seconds(1), wires.stage_latency)
    pace = wires.slice_segments(int(network.sum()))
    expected = slow.pipeline(network, balance, redistribution, loads.local, wire, pace)
    predicted = predict(demand, schedule, wires)
    assert predicted.completion == pytest.approx(expected)
    assert predicted.network == pytest.approx(
        wires.nic_seconds(int(network.sum())) + schedule.num_stages * wires.stage_latency
    )


@st.composite
def loaded_clusters(draw: st.DrawFn) -> Demand:
    """Many segments on few pairs; inside a node two ranks exchange all that theorem 2 allows.

    Amounts are large and divide evenly: the theorem knows no whole segments.
    """
    n, m = draw(st.integers(2, 4)), draw(st.sampled_from([2, 4, 8]))
    scale = st.sampled_from([0, 0, 0, 1, 2, 7])
    copies = draw(arrays(np.int64, (n * m, n * m), elements=scale)) * (16 * m)
    for i in range(n):
        node = slice(i * m, (i + 1) * m)
        copies[node, node] = 0
        copies[i * m, i * m + 1] = copies[node].sum() // n * draw(st.booleans())
    return Demand.without_sharing(copies, m)


def guarantee(demand: Demand, nvlink_to_nic: float) -> float:
    m = demand.ranks_per_node
    return 1 + (m + m / demand.num_nodes) / nvlink_to_nic


@given(loaded_clusters())
@settings(max_examples=200)
def test_fast_keeps_its_guarantee(demand: Demand) -> None:
    wires = model(nvlink_to_nic=9.0)
    completion = predict(demand, fast(demand, wires), wires).completion
    assert completion <= guarantee(demand, 9.0) * oracle(demand, wires)


@pytest.mark.parametrize(("num_nodes", "bound"), [(2, 2.1), (3, 1.9), (4, 1.8), (12, 1.8)])
def test_adversary_stays_below_the_guarantee(num_nodes: int, bound: float) -> None:
    wires = model(nvlink_to_nic=9.0)
    demand = one_to_one(num_nodes, 8, 16000)
    ratio = predict(demand, fast(demand, wires), wires).completion / oracle(demand, wires)
    assert ratio <= bound <= guarantee(demand, 9.0)


@pytest.mark.parametrize(("num_nodes", "bound"), [(4, 1.05), (8, 1.05), (12, 1.05), (40, 1.05)])
def test_zipf_comes_close_to_the_oracle(num_nodes: int, bound: float) -> None:
    wires = model(nvlink_to_nic=9.0)
    demand = zipf(num_nodes, 8, 0.8, seed=0, mean=200)
    completion = predict(demand, fast(demand, wires), wires).completion
    assert completion <= bound * oracle(demand, wires)


@given(demands(max_nodes=4), models)
@settings(max_examples=50)
def test_auto_is_as_good_as_every_schedule_it_may_choose(demand: Demand, wires: CostModel) -> None:
    chosen = predict(demand, plan_network(demand, wires), wires).completion
    for kind in KINDS:
        single = predict(demand, plan_network(demand, wires, "auto", kind), wires).completion
        assert chosen <= (1 + TOLERANCE) ** 2 * single * (1 + 1e-9)


def test_auto_is_as_good_as_every_schedule_on_the_corpus() -> None:
    wires = model(nvlink_to_nic=9.0, stage_latency=1e-5)
    for demand in corpus():
        chosen = predict(demand, plan_network(demand, wires), wires).completion
        for kind in KINDS:
            single = predict(demand, plan_network(demand, wires, "auto", kind), wires).completion
            assert chosen <= (1 + TOLERANCE) ** 2 * single * (1 + 1e-9)


def test_auto_stages_skewed_traffic_and_not_even_traffic() -> None:
    wires = model(nvlink_to_nic=9.0, stage_latency=1e-5)
    assert plan_network(zipf(8, 8, 0.8, 0, 400), wires).kind == "fast"
    even = Demand.without_sharing(np.full((32, 32), 100, np.int64), 8)
    schedule = plan_network(even, wires)
    assert (schedule.kind, schedule.assignment.carried) == ("pairwise", False)


@pytest.mark.parametrize("policy", [*sorted(POLICIES), "auto"])
@pytest.mark.parametrize("kind", [*KINDS, "auto"])
@pytest.mark.parametrize(("num_nodes", "ranks_per_node"), [(1, 1), (1, 4), (3, 1), (2, 3)])
def test_nothing_to_send(policy: str, kind: str, num_nodes: int, ranks_per_node: int) -> None:
    num_ranks = num_nodes * ranks_per_node
    demand = Demand.without_sharing(np.zeros((num_ranks, num_ranks), np.int64), ranks_per_node)
    schedule = plan_network(demand, model(), policy, kind)
    assert schedule.num_stages == 0
    assert predict(demand, schedule, model()).completion == 0
    assert not len(schedule.sends(0).stage)


def test_one_node_only_pays_for_its_local_part() -> None:
    copies = np.full((4, 4), 10, np.int64)
    demand = Demand.without_sharing(copies, 4)
    schedule = plan_network(demand, model())
    assert schedule.num_stages == 0
    assert predict(demand, schedule, model()).completion == model().nvlink_seconds(30)
