"""Forwarders: every policy conserves every flow and keeps its own promise."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.traffic import uniform
from fuscoc_runtime.plan.balance import POLICIES, communication_groups
from fuscoc_runtime.plan.choose import choose_forwarders, plan_network, staged_seconds
from fuscoc_runtime.plan.cost import (
    TOLERANCE,
    CostModel,
    least_seconds,
    predict_assignment,
)
from fuscoc_runtime.plan.flows import Demand
from fuscoc_runtime.plan.schedule import KINDS, predict
from tests.schedule import oracle
from tests.schedule.strategies import corpus, demands, model, models

policies = st.sampled_from(sorted(POLICIES))
kinds = st.sampled_from([*KINDS, "auto"])


def two_nodes_loaded(loads: list[int]) -> Demand:
    """Two nodes; local rank ``l`` of each sends ``loads[l]`` to the other node."""
    m = len(loads)
    copies = np.zeros((2 * m, 2 * m), np.int64)
    copies[:m, m] = copies[m:, 0] = loads
    return Demand.without_sharing(copies, m)


@given(demands(), policies)
def test_every_flow_is_conserved(demand: Demand, policy: str) -> None:
    share = POLICIES[policy](demand).share
    assert (share >= 0).all()
    assert np.array_equal(share.sum(axis=2), demand.flows)


@given(demands(), policies)
def test_equal_demands_get_equal_assignments(demand: Demand, policy: str) -> None:
    again = Demand(demand.flows.copy(), demand.copies.copy())
    assert np.array_equal(POLICIES[policy](demand).share, POLICIES[policy](again).share)


@given(demands())
def test_static_keeps_the_local_rank(demand: Demand) -> None:
    m = demand.ranks_per_node
    rank = np.arange(demand.num_ranks)[:, None]
    expected = np.arange(demand.num_nodes) * m + rank % m
    expected = np.where(demand.flows > 0, expected, -1)
    assert np.array_equal(POLICIES["static"](demand).forwarder(), expected)


@given(demands())
def test_greedy_groups_hold_one_rank_of_each_node(demand: Demand) -> None:
    groups = communication_groups(demand)
    assert np.array_equal(np.sort(groups, axis=None), np.arange(demand.num_ranks))
    assert (groups // demand.ranks_per_node == np.arange(demand.num_nodes)).all()
    forwarder = POLICIES["greedy"](demand).forwarder()
    for group in groups.tolist():
        for source in group:
            for node, receiver in enumerate(group):
                assert forwarder[source, node] in (receiver, -1)


@given(demands())
def test_greedy_is_algorithm_1(demand: Demand) -> None:
    """Sort by load, rotate node i by i, take position g everywhere; written as in the paper."""
    m = demand.ranks_per_node
    shifted = []
    for node in range(demand.num_nodes):
        ranks = range(node * m, (node + 1) * m)
        order = sorted(ranks, key=lambda rank: (-demand.flows[rank].sum(), rank))
        by = node % m
        shifted.append(order[by:] + order[:by])
    expected = [[shifted[node][g] for node in range(demand.num_nodes)] for g in range(m)]
    assert communication_groups(demand).tolist() == expected


def test_greedy_puts_the_heaviest_ranks_in_different_groups() -> None:
    rng = np.random.default_rng(0)
    demand = Demand.without_sharing(rng.integers(1, 100, (32, 32)), 8)
    heaviest = demand.flows.sum(axis=1).reshape(4, 8).argmax(axis=1) + np.arange(4) * 8
    group_of = {rank: g for g, group in enumerate(communication_groups(demand)) for rank in group}
    assert len({group_of[rank] for rank in heaviest}) == 4


def test_two_nodes_loaded_8_to_1() -> None:
    """Greedy's worst group carries 15, where reverse pairing has 9; split is ideal."""
    loads = list(range(8, 0, -1))
    demand = two_nodes_loaded(loads)
    carried = demand.flows.sum(axis=1)[communication_groups(demand)].sum(axis=1)
    assert carried.max() == 15
    assert {a + b for a, b in zip(loads, reversed(loads), strict=True)} == {9}
    for policy, most in (("static", 8), ("greedy", 8), ("lpt", 8), ("split", 5), ("rebalance", 5)):
        _, received = oracle.nic_loads(demand, POLICIES[policy](demand))
        assert received.max() == most, policy
    sent, _ = oracle.nic_loads(demand, POLICIES["rebalance"](demand))
    assert sorted(sent.tolist()) == [4] * 8 + [5] * 8


@given(demands(max_nodes=3, max_ranks_per_node=3))
@settings(max_examples=50)
def test_lpt_is_within_grahams_bound(demand: Demand) -> None:
    m = demand.ranks_per_node
    received = POLICIES["lpt"](demand).share.sum(axis=0)
    for node in range(demand.num_nodes):
        flows = [int(flow) for flow in demand.flows[:, node] if flow]
        best = oracle.fewest_on_busiest(sorted(flows, reverse=True), m)
        assert received[node].max() <= (Fraction(4, 3) - Fraction(1, 3 * m)) * best


@given(demands())
def test_lpt_places_each_flow_on_the_least_loaded(demand: Demand) -> None:
    m = demand.ranks_per_node
    forwarder = POLICIES["lpt"](demand).forwarder()
    for node in range(demand.num_nodes):
        loads = [0] * m
        for source in sorted(range(demand.num_ranks), key=lambda s: (-demand.flows[s, node], s)):
            if demand.flows[source, node]:
                least = loads.index(min(loads))
                assert forwarder[source, node] == node * m + least
                loads[least] += int(demand.flows[source, node])


@given(demands())
def test_split_balances_receivers_exactly_with_few_cuts(demand: Demand) -> None:
    assignment = POLICIES["split"](demand)
    received = assignment.share.sum(axis=0)
    assert (received.max(axis=1) - received.min(axis=1) <= 1).all()
    assert (assignment.num_cuts() <= demand.ranks_per_node - 1).all()


@given(demands())
def test_rebalancing_levels_every_tile(demand: Demand) -> None:
    n, m = demand.num_nodes, demand.ranks_per_node
    assignment = POLICIES["rebalance"](demand)
    share = assignment.share.reshape(n, m, n, m)
    handed = assignment.handed.reshape(n, m, n, m)
    before = demand.flows.reshape(n, m, n)
    for i in range(n):
        for q in range(n):
            flow, carried = before[i, :, q], share[i, :, q, :].sum(axis=0)
            total = int(flow.sum())
            assert carried.max() - carried.min() <= 1
            assert carried.max() <= flow.max()
            # Moved over NVLink: only what exceeds the quotas, with the odd segments left in place.
            quota, odd = divmod(total, m)
            excess = np.maximum(flow - quota, 0).sum() - min(odd, int((flow > quota).sum()))
            moved = share[i, :, q, :].sum() - np.trace(share[i, :, q, :])
            assert moved == excess
            giving = share[i, :, q, :].sum(axis=1) > np.diag(share[i, :, q, :])
            taking = carried > np.diag(share[i, :, q, :])
            assert not (giving & taking).any()
        expected = share[i].sum(axis=1) * (1 - np.eye(m, dtype=np.int64))
        assert np.array_equal(handed[i, :, i], expected)
    assert handed.sum() == sum(handed[i, :, i].sum() for i in range(n))
    assert assignment.pairs.sum() == demand.flows.sum()


def test_the_tile_of_the_paper() -> None:
    """A -> B [[1,1],[3,1]]: senders 2 and 4 become 3 and 3, packed as diag(3, 3)."""
    copies = np.zeros((4, 4), np.int64)
    copies[:2, 2:] = [[1, 1], [3, 1]]
    demand = Demand.without_sharing(copies, 2)
    assert demand.flows[:2, 1].tolist() == [2, 4]
    assert POLICIES["rebalance"](demand).pairs[:2, 2:].tolist() == [[3, 0], [0, 3]]


@given(demands(max_ranks_per_node=3), kinds, models)
def test_auto_is_as_good_as_the_best_policy(demand: Demand, kind: str, wires: CostModel) -> None:
    assert_as_good_as_the_best_policy(demand, kind, wires)


@pytest.mark.parametrize("nvlink_to_nic", [0.5, 2.0, 9.0])
def test_auto_is_as_good_as_the_best_policy_on_the_corpus(nvlink_to_nic: float) -> None:
    wires = model(nvlink_to_nic, stage_latency=1e-5)
    for demand in corpus():
        assert_as_good_as_the_best_policy(demand, "auto", wires)


def assert_as_good_as_the_best_policy(demand: Demand, kind: str, wires: CostModel) -> None:
    """With the stages that follow, not only while every node sends at once."""
    best = min(staged_seconds(demand, each(demand), kind, wires) for each in POLICIES.values())
    schedule = plan_network(demand, wires, "auto", kind)
    assert predict(demand, schedule, wires).completion <= (1 + TOLERANCE) * best * (1 + 1e-9)


def test_forwarders_that_even_the_nics_out_may_need_long_stages() -> None:
    """Random traffic: ``lpt`` has the evenest NICs, and tiles of more than twice the length."""
    demand, wires = uniform(8, 8, 0, 300), CostModel(50e9, 450e9, 1e-5, 14336)
    static, lpt = (POLICIES[each](demand) for each in ("static", "lpt"))
    at_once = [predict_assignment(demand, each, wires).completion for each in (static, lpt)]
    assert at_once[1] < at_once[0]
    seconds = [staged_seconds(demand, each, "auto", wires) for each in (static, lpt)]
    assert seconds[1] > 2 * seconds[0]
    wires = replace(wires, handover_latency=1e-2)
    assert np.array_equal(choose_forwarders(demand, "auto", "auto", wires).share, static.share)


@given(demands())
def test_no_forwarders_make_shorter_tiles_than_none(demand: Demand) -> None:
    """If every rank sends for itself, ``none`` has the shortest of all tiles."""
    shortest = POLICIES["static"](demand).tile()
    for name in ("greedy", "lpt", "split"):
        assert (POLICIES[name](demand).tile() >= shortest).all()


@given(demands(max_nodes=4, max_ranks_per_node=4), kinds, models, st.floats(0, 1e-2))
def test_no_policy_is_faster_than_its_bound(
    demand: Demand, kind: str, wires: CostModel, handover: float
) -> None:
    wires = replace(wires, handover_latency=handover)
    alone, together = least_seconds(demand, wires)
    for name, assign in POLICIES.items():
        seconds = staged_seconds(demand, assign(demand), kind, wires)
        assert seconds >= (together if name == "rebalance" else alone) * (1 - 1e-9)


@given(demands(max_nodes=2), policies, st.sampled_from(KINDS), models)
def test_two_nodes_have_one_stage(demand: Demand, policy: str, kind: str, wires: CostModel) -> None:
    assignment = POLICIES[policy](demand)
    at_once = predict_assignment(demand, assignment, wires).completion
    assert staged_seconds(demand, assignment, kind, wires) == at_once


def test_auto_moves_rows_over_nvlink_only_if_that_pays() -> None:
    demand = two_nodes_loaded([4000] + [0] * 7)
    assert choose_forwarders(demand, "auto", "auto", model(nvlink_to_nic=9.0)).carried
    assert not choose_forwarders(demand, "auto", "auto", model(nvlink_to_nic=0.5)).carried


def test_auto_leaves_even_traffic_alone() -> None:
    demand = Demand.without_sharing(np.full((16, 16), 100, np.int64), 4)
    expected = POLICIES["static"](demand).share
    assert np.array_equal(choose_forwarders(demand, "auto", "auto", model()).share, expected)


@pytest.mark.parametrize("policy", [*sorted(POLICIES), "auto"])
@pytest.mark.parametrize(("num_nodes", "ranks_per_node"), [(1, 1), (1, 4), (3, 1), (2, 3)])
def test_nothing_to_send(policy: str, num_nodes: int, ranks_per_node: int) -> None:
    num_ranks = num_nodes * ranks_per_node
    demand = Demand.without_sharing(np.zeros((num_ranks, num_ranks), np.int64), ranks_per_node)
    assignment = choose_forwarders(demand, policy, "auto", model())
    assert not assignment.share.any()
    assert predict_assignment(demand, assignment, model()).completion == 0
