"""Properties of whole calls: of programs of every kind, on clusters of every shape."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc.simulate.clusters import Cluster
from fuscoc.simulate.contenders import AUTO, CONTENDERS, Contender, Rewrite, ablated
from fuscoc.simulate.counts import Counts
from fuscoc.simulate.events import run
from fuscoc.simulate.hop import plan_network
from fuscoc.simulate.legs import build
from fuscoc.simulate.runs import simulate
from fuscoc_runtime.manifest.program import Program
from fuscoc_runtime.topology import Topology
from tests.simulate.small import cluster, counted, made, opened

REWRITES = {**CONTENDERS, **ablated(AUTO)}
SHAPES = [(1, 4), (2, 2), (3, 1), (4, 2)]

cases = st.tuples(
    st.sampled_from(sorted(REWRITES)),
    st.sampled_from(SHAPES),
    st.integers(0, 99),
    st.integers(0, 60),
)
few = settings(max_examples=12, deadline=None)


def case(given: tuple[str, tuple[int, int], int, int]) -> tuple[Contender, Counts, Cluster]:
    name, shape, seed, tokens = given
    contender = made(REWRITES[name])
    return contender, counted(contender, Topology(*shape), tokens, seed), cluster(*shape)


@given(cases)
@few
def test_no_call_is_faster_than_a_bound(given: Any) -> None:
    found = simulate(*case(given))
    for leg in (found.dispatch, found.combine):
        assert leg is not None
        assert all(leg.seconds >= bound.seconds * (1 - 1e-6) for bound in leg.bounds)
        assert leg.load is None or (leg.load.busy <= 1 + 1e-6).all()


RATES = ("nic", "nvlink", "hbm")


@given(cases, st.floats(1, 8))
@few
def test_a_faster_cluster_takes_less_in_proportion(given: Any, factor: float) -> None:
    """Same plan, all rates by a factor and all times by its inverse."""
    contender, counts, here = case(given)
    plan = plan_network(contender, counts, here)
    costs = here.costs
    times = (
        "node_dispatch",
        "node_combine",
        "plan",
        "handover",
        "describe",
        "layout",
        "launch",
        "collective",
        "slab_kernel",
    )
    faster = replace(
        here,
        latency=here.latency / factor,
        costs=replace(costs, **{name: getattr(costs, name) / factor for name in times}),
        **{rate: getattr(here, rate) * factor for rate in RATES},
    )
    before, after = (_seconds(contender, counts, plan, each, here) for each in (here, faster))
    assert after * factor == pytest.approx(before, rel=1e-6)


@given(cases, st.sampled_from(RATES), st.floats(1, 8))
@few
def test_a_faster_link_hardly_ever_hurts(given: Any, rate: str, factor: float) -> None:
    """Shared links and precedence allow anomalies (``test_events``); a tenth was never seen."""
    contender, counts, here = case(given)
    plan = plan_network(contender, counts, here)
    faster = replace(here, **{rate: getattr(here, rate) * factor})
    before, after = (_seconds(contender, counts, plan, each, here) for each in (here, faster))
    assert after <= before * 1.1


def _seconds(
    contender: Contender, counts: Counts, plan: Any, there: Cluster, planned: Cluster
) -> float:
    # Lanes and slots of rings are those of the cluster that was planned for.
    tasks = build(contender, contender.program.dispatch, counts, plan, there)
    assert there.lanes == planned.lanes
    return run(tasks, there.links().bandwidth, 0.0).seconds


@given(cases)
@few
def test_links_carry_what_the_plan_says(given: Any) -> None:
    """Bytes are conserved: NICs out and in, NVLink out and in, and the network rows of the plan."""
    contender, counts, here = case(given)
    plan = plan_network(contender, counts, here)
    links = here.links()
    for path in (contender.program.dispatch, contender.program.combine):
        assert path is not None
        tasks = build(contender, path, counts, plan, here)
        moved = np.bincount(tasks.links.items, tasks.bytes, len(links.kind))
        kinds = np.array(links.kind)
        for out, into in (("nic_out", "nic_in"), ("nvlink_out", "nvlink_in")):
            assert moved[kinds == out].sum() == pytest.approx(moved[kinds == into].sum())
        crossing = plan.assignment.pairs.sum() * 512 * 2
        if contender.rewrite.execution == "slabs" and here.nodes > 1:  # a place for every segment
            assert moved[kinds == "nic_out"].sum() >= crossing
        else:
            assert moved[kinds == "nic_out"].sum() == pytest.approx(crossing)


@pytest.mark.parametrize("pxn", [False, True])
def test_pxn_sends_by_the_rail_of_the_receiver(pxn: bool) -> None:
    contender, here = made(CONTENDERS["naive"]), cluster(3, 4, pxn=pxn)
    counts = counted(contender, Topology(3, 4), 50, 3)
    plan = plan_network(contender, counts, here)
    tasks = build(contender, contender.program.dispatch, counts, plan, here)
    links = here.links()
    moved = np.bincount(tasks.links.items, tasks.bytes, len(links.kind))
    nic, nvlink = np.zeros(12), np.zeros(12)
    for rank, peer in np.ndindex(12, 12):
        size = counts.pairs[rank, peer] * 512 * 2
        leaves = rank // 4 != peer // 4
        sender = rank // 4 * 4 + peer % 4 if leaves and pxn else rank
        nic[sender] += size * leaves
        nvlink[rank] += size * (sender != rank or (not leaves and rank != peer))
    kinds = np.array(links.kind)
    np.testing.assert_allclose(moved[kinds == "nic_out"], nic)
    np.testing.assert_allclose(moved[kinds == "nvlink_out"] * here.costs.collective_nvlink, nvlink)


@pytest.mark.parametrize(("name", "part"), [("fusco", "hop_nic"), ("naive", "collective_nic")])
def test_a_collective_gets_its_part_of_a_nic(name: str, part: str) -> None:
    """Which part hangs on its peers: one a node, or all ranks."""
    contender, here = made(CONTENDERS[name]), cluster(3, 2)
    counts = counted(contender, Topology(3, 2), 50, 3)
    plan = plan_network(contender, counts, here)
    moved = []
    for costs in (here.costs, replace(here.costs, **{part: 0.5})):
        there = replace(here, costs=costs)
        tasks = build(contender, contender.program.dispatch, counts, plan, there)
        links = there.links()
        by_link = np.bincount(tasks.links.items, tasks.bytes, len(links.kind))
        moved.append(by_link[np.array(links.kind) == "nic_out"])
    np.testing.assert_allclose(moved[1], 2 * moved[0])


@pytest.mark.parametrize(
    ("name", "before"),
    [("fused copies", ("plan", "describe")), ("naive", ("layout",))],
)
def test_separate_steps_come_behind_their_layouts(name: str, before: tuple[str, ...]) -> None:
    here = cluster(2, 2)
    here = replace(here, costs=replace(here.costs, layout=3e-3, handover=0.0))
    rewrite = REWRITES[name]
    planned, known = made(rewrite), made(replace(rewrite, reuses_plan=True))
    first, again = (
        simulate(each, counted(each, Topology(2, 2), 40, 1), here) for each in (planned, known)
    )
    late = sum(getattr(here.costs, each) for each in before)
    assert first.dispatch.seconds - again.dispatch.seconds == pytest.approx(late)
    assert first.combine is not None
    assert again.combine is not None
    assert first.combine.seconds == again.combine.seconds


def test_of_too_many_spans_the_last_and_the_first_to_finish_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contender, here = made(CONTENDERS["fuscoc"]), cluster(4, 2)
    counts = counted(contender, Topology(4, 2), 60, 5)
    every = simulate(contender, counts, here).dispatch.spans
    monkeypatch.setattr("fuscoc.simulate.legs.MOST_SPANS", len(every.rank) // 2)
    some = simulate(contender, counts, here).dispatch.spans
    assert len(some.rank) <= len(every.rank) // 2
    assert 3 <= len(some.ranks) < len(every.ranks) == 8
    ends = [every.end[every.rank == rank].max() for rank in range(8)]
    assert {int(np.argmax(ends)), int(np.argmin(ends))} <= set(some.ranks.tolist())
    for rank in some.ranks:
        assert (some.end[some.rank == rank] == every.end[every.rank == rank]).all()


@pytest.mark.parametrize(
    ("options", "rewrite"),
    [
        ("dedup(none)", Rewrite(dedup=())),
        ("dedup(rank) balance greedy", Rewrite(dedup=("rank",), balance="greedy")),
        ("balance rebalance schedule fast", Rewrite(balance="rebalance", schedule="fast")),
    ],
)
def test_a_rewritten_program_is_the_compiled_one(options: str, rewrite: Rewrite) -> None:
    text = options if "dedup" in options else f"dedup(node, rank) {options}"
    assert _shape(made(rewrite).program) == _shape(opened(text)[0].program)


def _shape(program: Program) -> Any:
    """All of it but the names of kernels."""
    assert program.combine is not None
    return [
        [
            path.lists,
            [
                replace(step, **({"kernel": ""} if step.op == "launch" else {}))
                for step in path.steps
            ],
        ]
        for path in (program.dispatch, program.combine)
    ], program.buffers
