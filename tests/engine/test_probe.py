"""Measuring the network: what two messages tell, and that all ranks come to the same numbers."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuscoc_runtime.comm.lockstep import run_lockstep
from fuscoc_runtime.comm.requests import StartRound
from fuscoc_runtime.engine import probe
from fuscoc_runtime.engine.machine import RING_SLOTS
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.plan.cost import CostModel
from fuscoc_runtime.plan.links import LEAST_LATENCY, Link
from fuscoc_runtime.topology import Topology
from tests.engine import specs

bandwidths = st.floats(1e8, 1e12)
latencies = st.floats(2e-6, 1e-2)
NAMES = ("bandwidth", "latency")


@given(bandwidths, latencies, st.integers(1, 1 << 20), st.integers(1 << 22, 1 << 28))
def test_two_messages_tell_a_line(bandwidth: float, latency: float, small: int, large: int) -> None:
    times = [(size, latency + size / bandwidth) for size in (small, large)]
    link = Link.through(times[0], times[1])
    assert math.isclose(link.bandwidth, bandwidth, rel_tol=1e-3)
    assert math.isclose(link.latency, latency, rel_tol=0.05, abs_tol=large / bandwidth * 1e-3)


@given(st.floats(1e-6, 1.0), st.floats(1e-6, 1.0))
def test_whatever_is_measured_is_a_network(first: float, second: float) -> None:
    """Also where the larger message was the faster one."""
    link = Link.through((1 << 18, first), (1 << 24, second))
    assert link.bandwidth > 0
    assert link.latency >= LEAST_LATENCY


@given(st.lists(st.floats(1e8, 2e10), min_size=3, max_size=3))
def test_lanes_are_added_while_that_pays(bandwidths: list[float]) -> None:
    """Nobody opens more once a network is fast, or the last ones have gained little."""
    by_lanes = dict(zip((2, *probe.MORE_LANES), bandwidths, strict=True))
    asked: list[int] = []

    def measure(num_lanes: int) -> Link:
        asked.append(num_lanes)
        return Link(by_lanes[num_lanes], 1e-5, num_lanes)

    best = probe.best_link(measure)
    assert best == Link(by_lanes[best.num_lanes], 1e-5, best.num_lanes)
    assert asked == list(by_lanes)[: len(asked)]
    for fewer, more in itertools.pairwise(asked):
        assert by_lanes[fewer] < probe.FAST
        assert (by_lanes[more] >= probe.WORTHWHILE * by_lanes[fewer]) == (more <= best.num_lanes)
    assert (
        asked[-1] != best.num_lanes or best.bandwidth >= probe.FAST or len(asked) == len(by_lanes)
    )


@pytest.mark.parametrize(("topology", "num_lanes"), [("2x1", 2), ("3x2", 4)])
def test_ranks_agree(monkeypatch: pytest.MonkeyPatch, topology: str, num_lanes: int) -> None:
    """Every rank has its own clock; the median of what they measure counts."""
    small, large = 1 << 6, 1 << 12
    monkeypatch.setattr(probe, "SMALL_BYTES", small)
    monkeypatch.setattr(probe, "LARGE_BYTES", large)
    where = Topology.parse(topology)
    num_ranks = where.num_ranks
    calls = itertools.count()

    def seconds(rank: int, size: int, attempt: int) -> float:
        """The first attempt does not count, although it is the fastest; the last one does."""
        return [0, 3, 2, 1][attempt] * (1 + rank) * (1e-4 + size * 1e-6)

    def clock() -> float:
        """In turn, all ranks look when they start and when they have ended."""
        round_number, at = divmod(next(calls), 2 * num_ranks)
        has_ended, rank = divmod(at, num_ranks)
        size, attempt = divmod(round_number, 1 + probe.PROBES)
        return has_ended * seconds(rank, (small, large)[size], attempt)

    monkeypatch.setattr(probe, "time", SimpleNamespace(perf_counter=clock))
    shuffle = LockstepShuffle(specs.artifact(specs.routed("f32")), topology=where)
    for machine in shuffle.machines:
        machine.lanes.use_wires(num_lanes)
    sent = [0] * num_ranks
    start = shuffle._handlers[StartRound]

    def noting(requests: Sequence[StartRound]) -> Sequence[None]:
        for rank, request in enumerate(requests):
            for rows in request.sends:
                assert where.node(rows.peer) == (where.node(rank) + 1) % where.num_nodes
                assert where.local_rank(rows.peer) == where.local_rank(rank)
                sent[rank] += rows.fields[0].nbytes
        return start(requests)

    work = [probe.measure_link(machine) for machine in shuffle.machines]
    links = run_lockstep(work, {**shuffle._handlers, StartRound: noting})
    assert sent == [(1 + probe.PROBES) * (small + large)] * num_ranks
    found = [
        Link.through((small, seconds(rank, small, 3)), (large, seconds(rank, large, 3)))
        for rank in range(num_ranks)
    ]
    medians = (statistics.median(getattr(each, name) for each in found) for name in NAMES)
    assert links == [Link(*medians, num_lanes)] * num_ranks


@pytest.mark.parametrize(
    ("bandwidth", "num_lanes", "slots"),
    [(1e8, 2, 3), (4e9, 2, 4), (4e9, 6, 6), (50e9, 2, RING_SLOTS)],
)
def test_rings_are_as_deep_as_the_network_is_fast(
    bandwidth: float, num_lanes: int, slots: int
) -> None:
    """What a network of that bandwidth carries in 4 ms, in slices of 8 MiB, and two more, or one
    for every lane."""
    shuffle = LockstepShuffle(specs.artifact(specs.routed("f32")), topology=Topology(2, 1))
    [machine, _] = shuffle.machines
    machine.reckon_with(CostModel(bandwidth, 450e9, 1e-5, 64, num_lanes=num_lanes))
    assert machine.ring_slots == slots
    assert len(machine.lanes.wires) == num_lanes
    assert machine.ring("slices.x", 256).shape == (slots, 256)
