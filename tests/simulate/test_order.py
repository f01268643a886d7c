"""Simulated events come in the order in which the engine carries them out in lockstep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fuscoc.planning.modules import read_module
from fuscoc.planning.points import points_of
from fuscoc.simulate.contenders import Contender, Rewrite
from fuscoc.simulate.counts import Sharing, count
from fuscoc.simulate.hop import plan_network
from fuscoc.simulate.legs import simulate_leg
from fuscoc.simulate.record import Spans
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.kernels.trace import Span
from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.engine.lockstep import round_trip
from tests.engine.skew import HIDDEN, KEYS, skewed
from tests.simulate.small import cluster

TOPOLOGY = Topology(2, 2)


@pytest.mark.parametrize("options", ["dedup(node, rank)", "balance rebalance"])
def test_every_lane_has_the_same_spans_in_the_same_order(options: str) -> None:
    text = specs.routed("f32", HIDDEN, KEYS, 2, options=f"{options} slice 20 B")
    artifact = specs.artifact(text)
    shuffle = LockstepShuffle(artifact, topology=TOPOLOGY)
    ranks = skewed(TOPOLOGY, torch.float32, [9] * 4, [0.9, 0.1, 0.9, 0.1], 0)
    for machine in shuffle.machines:
        machine.tracer.enabled = True
    round_trip(shuffle, ranks)
    for machine in shuffle.machines:
        machine.tracer.settle()

    module = read_module(artifact.path, shuffle.spec.name)
    points = points_of(module, shuffle.spec, TOPOLOGY, ranks)
    program = shuffle.spec.program
    sharing = Sharing.of(program)
    counts = count(
        (each.columns["rank"].numpy().reshape(-1, program.fanout) for each in points),
        TOPOLOGY, [sharing],
    )[sharing]  # fmt: skip
    contender = Contender("", Rewrite(), program)
    # The rates that the engine plans with where nobody has measured any.
    here = cluster(2, 2, nic=50e9, nvlink=450e9, latency=10e-6, lanes=2)
    here = replace(here, costs=replace(here.costs, handover=0.0))
    plan = plan_network(contender, counts, here)
    assert plan.num_rounds > 2
    assert program.combine is not None
    legs = [
        simulate_leg(contender, path, counts, plan, here, grain=0.0).leg
        for path in (program.dispatch, program.combine)
    ]
    compared = set[str]()
    for rank, machine in enumerate(shuffle.machines):
        lanes = _by_lane(rank, [leg.spans for leg in legs])
        compared |= lanes.keys()
        for lane, simulated in lanes.items():
            ran = _in_order(machine.tracer.spans, lane)
            # The engine also marks what has no rows; and rows that the simulator takes to be alike
            # may be in rounds where there are none.
            in_both = [name for name in simulated if name in ran]
            assert _occur_in_order(in_both, ran), lane
            assert lane == "local" or in_both == simulated, lane
    assert {"gather", "wire 0", "wire 1", "direct", "forward", "local"} <= compared


def _in_order(spans: list[Span], lane: str) -> list[str]:
    return [span.name for span in sorted(spans, key=lambda each: each.begin) if span.lane == lane]


def _by_lane(rank: int, calls: list[Spans]) -> dict[str, list[str]]:
    """Names of a rank's spans by lane, call after call; planning is not what is compared."""
    found: dict[str, list[str]] = {}
    for spans in calls:
        mine = np.flatnonzero(spans.rank == rank)
        for number in mine[np.argsort(spans.begin[mine], kind="stable")]:
            lane = spans.lanes[spans.lane[number]]
            if lane != "plan":
                found.setdefault(lane, []).append(spans.names[spans.name[number]])
    return found


def _occur_in_order(some: list[str], everything: list[str]) -> bool:
    rest = iter(everything)
    return all(each in rest for each in some)
