"""Measuring the network: what two messages tell, and that all ranks come to the same numbers."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fuscoc_runtime.comm.requests import Crossing
from fuscoc_runtime.engine import probe
from fuscoc_runtime.kernels.commands import CommandList, Exchange, Numbers
from fuscoc_runtime.plan.links import LEAST_LATENCY, Link
from fuscoc_runtime.topology import Topology

bandwidths = st.floats(1e8, 1e12)
latencies = st.floats(2e-6, 1e-2)
NAMES = ("bandwidth", "latency")
CPU = torch.device("cpu")


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


class Lanes:
    """Those of a rank's rail, on which nothing travels."""

    def __init__(self) -> None:
        self.num_lanes = 0
        self.posted: list[tuple[int, Crossing]] = []

    def open_lanes(self, num_lanes: int) -> None:
        self.num_lanes = num_lanes

    def command(self, what: Crossing, lane: int, **_: object) -> Exchange:
        return Exchange(None, lambda: self.posted.append((lane, what)), None)

    def submit(self, commands: CommandList, numbers: Numbers) -> None:
        commands.submit(numbers)


@pytest.mark.parametrize(("topology", "num_lanes"), [("2x1", 2), ("3x2", 4)])
def test_ranks_agree(monkeypatch: pytest.MonkeyPatch, topology: str, num_lanes: int) -> None:
    """Every rank has its own clock; the median of what they measure counts."""
    small, large = 1 << 6, 1 << 12
    monkeypatch.setattr(probe, "SMALL_BYTES", small)
    monkeypatch.setattr(probe, "LARGE_BYTES", large)
    where = Topology.parse(topology)

    def seconds(rank: int, size: int, attempt: int = probe.PROBES - 1) -> float:
        """The last attempt is the fastest."""
        return (probe.PROBES - attempt) * (1 + rank) * (1e-4 + size * 1e-6)

    def said(size: int) -> list[int]:
        return [round(seconds(rank, size) * 1e9) for rank in range(where.num_ranks)]

    def clock(rank: int) -> Iterator[float]:
        """Looked at before and behind every attempt."""
        for size, attempt in itertools.product((small, large), range(probe.PROBES)):
            yield from (0.0, seconds(rank, size, attempt))

    def measured(rank: int) -> Link:
        lanes, sizes, times = Lanes(), iter((small, large)), clock(rank)

        def meet(_: str, word: int) -> list[int]:
            everyone = said(next(sizes))
            assert word == everyone[rank]
            return everyone

        monkeypatch.setattr(probe, "time", SimpleNamespace(perf_counter=lambda: next(times)))
        members = SimpleNamespace(topology=where, rank=rank, device=CPU, meet=meet)
        link = probe.measure_link(cast(Any, members), cast(Any, lanes), num_lanes)
        assert lanes.num_lanes == num_lanes
        assert {lane for lane, _ in lanes.posted} == set(range(num_lanes))
        sent = 0
        for _, what in lanes.posted:
            [there], [back] = what.sends, what.receives
            assert where.local_rank(there.peer) == where.local_rank(rank)
            assert where.node(there.peer) == (where.node(rank) + 1) % where.num_nodes
            assert where.node(back.peer) == (where.node(rank) - 1) % where.num_nodes
            sent += there.fields[0].nbytes
        assert sent == 2 * probe.PROBES * (small + large)  # each behind one that opens connections
        return link

    found = [
        Link.through((small, slow / 1e9), (large, fast / 1e9))
        for slow, fast in zip(said(small), said(large), strict=True)
    ]
    medians = (statistics.median(getattr(each, name) for each in found) for name in NAMES)
    wanted = Link(*medians, num_lanes)
    assert [measured(rank) for rank in range(where.num_ranks)] == [wanted] * where.num_ranks
