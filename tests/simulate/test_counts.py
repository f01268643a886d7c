"""Counts and the network hop against the planner, which lists every row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc.planning.points import points_of
from fuscoc.planning.routing import make_routing
from fuscoc.simulate.amounts import ALL, ListAmounts
from fuscoc.simulate.contenders import AUTO, Rewrite
from fuscoc.simulate.counts import Sharing, count
from fuscoc.simulate.hop import cost_model, plan_network, slices_of
from fuscoc_runtime.plan import plan_all
from fuscoc_runtime.plan.links import network_row_bytes
from fuscoc_runtime.plan.schedule import cut
from fuscoc_runtime.topology import Topology
from tests.simulate.small import TOPK, cluster, counted, made, opened

REWRITES = [
    AUTO,
    Rewrite(dedup=(), balance="split", schedule="pairwise"),
    Rewrite(dedup=("rank",), balance="greedy", schedule="auto"),
    Rewrite(dedup=("node",), balance="rebalance", schedule="fast"),
    Rewrite(dedup=("node", "rank"), balance="rebalance", schedule="fast"),
]


@pytest.mark.parametrize("rewrite", REWRITES, ids=lambda each: each.words)
@pytest.mark.parametrize("kind", ["zipf:1.0", "imbalanced"])
def test_counts_and_slices_are_the_planner_s(rewrite: Rewrite, kind: str) -> None:
    shuffle, module = opened()
    contender, topology, here = made(rewrite), Topology(3, 2), cluster(3, 2)
    inputs = make_routing(shuffle, topology, kind, 60, 0)
    points = points_of(module, shuffle, topology, inputs)
    destinations = (each.columns["rank"].reshape(-1, TOPK) for each in points)
    sharing = Sharing.of(contender.program)
    counts = count(destinations, topology, [sharing])[sharing]
    model = replace(cost_model(contender, here), slice_bytes=4096)
    spec = replace(shuffle, program=contender.program.with_rules(slice_bytes=4096))
    plan = plan_all(spec, topology, points, model)
    np.testing.assert_array_equal(counts.points, plan.traffic.points)
    np.testing.assert_array_equal(counts.pairs, plan.traffic.pairs)
    np.testing.assert_array_equal(counts.flows, plan.traffic.demand.flows)

    contender = replace(contender, program=spec.program)
    found = plan_network(contender, counts, here)
    amounts = ListAmounts(counts, found, compact=False)
    assert found.num_rounds > 1
    assert found.stages is not None
    rows = 4096 // network_row_bytes(spec.program)
    whole = slices_of(cut(found.stages, rows))
    for rank, each in enumerate(plan.ranks):
        assert each.wire.num_stages == whole.round.max() + 1
        mine, sent = whole.sender == rank, each.wire.send.transfers
        assert sorted(
            zip(whole.round[mine], whole.receiver[mine], whole.rows[mine], strict=True)
        ) == sorted(zip(sent.stage, sent.peer, sent.end - sent.begin, strict=True))
        mine = found.slices.sender == rank
        rounds = np.bincount(found.slices.round[mine], found.slices.rows[mine], found.num_rounds)
        listed = np.zeros(found.num_rounds)
        for name, columns in each.lists.items():
            of_list = amounts.of(name)
            at_rank = of_list.rank == rank
            total = len(next(iter(columns.values())))
            # Of a flow that is cut, rows are taken to be alike, which they nearly are.
            is_cut = found.assignment.num_cuts().any()
            near = pytest.approx(total, rel=0.1 if is_cut else 1e-6, abs=1)
            assert of_list.entries[at_rank].sum() == near, name
            if name in ("net_send", "carried", "hand_back"):
                by_round = np.bincount(
                    of_list.round[at_rank], of_list.entries[at_rank], found.num_rounds
                )
                if name == "hand_back":
                    assert by_round == pytest.approx(rounds)
                else:
                    listed += by_round
        assert listed == pytest.approx(rounds)


@given(st.sampled_from(REWRITES), st.integers(0, 1000), st.integers(1, 40))
@settings(max_examples=15, deadline=None)
def test_nothing_is_lost_from_list_to_list(rewrite: Rewrite, seed: int, tokens: int) -> None:
    """Every remote pair is served once, and read once on the way back."""
    topology = Topology(3, 2)
    contender = made(rewrite)
    counts = counted(contender, topology, tokens, seed)
    amounts = ListAmounts(counts, plan_network(contender, counts, cluster(3, 2)), compact=False)
    away = ~counts.same_node
    forward, back = amounts.of("forward"), amounts.of("reduce_forward")
    for each, rank in ((forward, forward.peer), (back, back.rank)):
        served = np.bincount(rank, each.entries, topology.num_ranks)
        assert served == pytest.approx((counts.pairs * away).sum(axis=0))
    points = np.bincount(back.rank, back.terms, topology.num_ranks)
    assert points == pytest.approx((counts.points * away).sum(axis=0))
    local = amounts.of("local")
    assert local.entries.sum() == pytest.approx((counts.points - counts.pairs).sum())
    assert (local.round >= ALL).all()
