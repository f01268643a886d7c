"""Simulated spans come in the order in which an engine carries them out, whatever the rates.

Ranks in lockstep exchange one row a slice and leave a trace. Steps of a call are single spans in
it, parts for every slice in a simulation; so what is compared is where the rows are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc.planning.modules import read_module
from fuscoc.planning.points import points_of
from fuscoc.simulate.contenders import Contender, Rewrite
from fuscoc.simulate.counts import Sharing, count
from fuscoc.simulate.hop import NetworkPlan, plan_network
from fuscoc.simulate.legs import simulate_leg
from fuscoc.simulate.record import Spans
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.manifest.program import LaunchStep, PathSpec
from fuscoc_runtime.plan import RankPlan
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.topology import Topology
from tests.drawn import at_night
from tests.engine import specs
from tests.engine.lockstep import lockstep, round_trip
from tests.engine.skew import HIDDEN, KEYS, skewed
from tests.simulate.small import cluster

OPTIONS = [
    "dedup(node, rank)", "dedup(none) schedule fast", "dedup(rank) balance split",
    "balance rebalance", "balance rebalance schedule fast",
]  # fmt: skip
ROW_BYTES, ROUNDING = 4 * HIDDEN, 1e-12

Place = tuple[int, str, int | None]
"""A rank, a lane, and the slice whose rows are there; none where it is one span for all."""
When = tuple[float, float]


@dataclass(frozen=True)
class Slice:
    """A row that crosses in a stage, in the direction of dispatch."""

    stage: int
    sender: int
    receiver: int

    def ends(self, is_back: bool) -> tuple[int, int]:
        """Who it leaves, and where it arrives."""
        forth = self.sender, self.receiver
        return forth[::-1] if is_back else forth


@dataclass(frozen=True, eq=False)
class Ran:
    """A call of the engine, by its trace and by the plan of every rank."""

    path: PathSpec
    is_back: bool
    spans: Mapping[Place, When]
    plans: list[RankPlan]

    @property
    def hands_over(self) -> bool:
        return self.plans[0].wire.hands_over

    @property
    def slices(self) -> list[Slice]:
        return [
            Slice(stage, rank, part.peer)
            for rank, plan in enumerate(self.plans)
            for stage, parts in enumerate(plan.wire.send.in_stages(plan.wire.num_stages))
            for part in parts
        ]


def run(text: str, topology: str, ranks: list[RankData]) -> tuple[LockstepShuffle, list[Ran]]:
    """Carry out a dispatch and a combine, and check them."""
    shuffle = lockstep(text, topology)
    for machine in shuffle.machines:
        machine.tracer.enabled = True
        machine.tracer.spans.clear()
    plans = [each.handle.plan for each in round_trip(shuffle, ranks)]
    program, num_stages = shuffle.spec.program, plans[0].wire.num_stages
    assert program.combine is not None
    paths = program.dispatch, program.combine
    calls: list[dict[Place, When]] = [{}, {}]
    for rank, machine in enumerate(shuffle.machines):
        machine.tracer.settle()
        wires = 0
        for span in machine.tracer.spans:
            if span.lane == "wire":
                call, number = divmod(wires, num_stages)
                assert span.name == f"stage {number}"
                calls[call][rank, "wire", number] = span.begin, span.end
                wires += 1
            for path, found in zip(paths, calls, strict=True):
                if span.lane in {lane_of(step) for step in path.launches}:
                    found[rank, span.lane, None] = span.begin, span.end
        assert wires == 2 * num_stages
    return shuffle, [
        Ran(path, path is program.combine, spans, plans)
        for path, spans in zip(paths, calls, strict=True)
    ]


def simulate(
    text: str, shuffle: LockstepShuffle, ranks: list[RankData], launch: float, hbm: float
) -> tuple[NetworkPlan, list[Spans]]:
    """The same, simulated on the network that the engine plans with where none is measured."""
    program, topology = shuffle.spec.program, shuffle.topology
    module = read_module(specs.artifact(text).path, shuffle.spec.name)
    points = points_of(module, shuffle.spec, topology, ranks)
    sharing = Sharing.of(program)
    destinations = (each.columns["rank"].reshape(-1, program.fanout) for each in points)
    counts = count(destinations, topology, [sharing])[sharing]
    contender = Contender("", Rewrite(), program)
    here = cluster(
        topology.num_nodes, topology.ranks_per_node,
        nic=50e9, nvlink=450e9, latency=10e-6, lanes=2, hbm=hbm,
    )  # fmt: skip
    here = replace(here, costs=replace(here.costs, handover=0.0, launch=launch))
    plan = plan_network(contender, counts, here)
    paths = [path for path in (program.dispatch, program.combine) if path is not None]
    return plan, [
        simulate_leg(contender, path, counts, plan, here, grain=0.0).leg.spans for path in paths
    ]


def places(spans: Spans, num_stages: int) -> dict[Place, When]:
    """When every simulated span was."""
    found: dict[Place, When] = {}
    columns = spans.rank, spans.lane, spans.name, spans.begin, spans.end
    for rank, lane, name, begin, end in zip(*(each.tolist() for each in columns), strict=True):
        kind = "wire" if spans.lanes[lane].startswith("wire ") else spans.lanes[lane]
        place = rank, kind, slice_of(spans.names[name], num_stages)
        assert place not in found or kind == "plan"
        found[place] = begin, end
    return found


def slice_of(words: str, num_stages: int) -> int | None:
    """The slice that a span's name tells: what trails a slice comes before the next one."""
    number = re.search(r"(before )?slice (\d+)", words)
    if number is None:
        return num_stages - 1 if words == "the last rows" else None
    return int(number[2]) - (number[1] is not None)


def lane_of(step: LaunchStep) -> str:
    return step.list.replace("_", " ")


def in_order(spans: Iterable[When]) -> bool:
    """Whether each begins behind the end of the one before."""
    return all(mine[1] <= other[0] + ROUNDING for mine, other in pairwise(spans))


def check_slices(ran: Ran, simulated: Mapping[Place, When]) -> None:
    """Every row is gathered, crosses and is put to use, in the trace's order; nobody else does."""
    fills = [lane_of(step) for step in ran.path.before if step.signal is None]
    uses = ("hand back" if ran.hands_over else "reduce source") if ran.is_back else "forward"
    ways = set[Place]()
    among = Counter((each.ends(ran.is_back)[0], "wire", each.stage) for each in ran.slices)
    for each in ran.slices:
        source, target = each.ends(ran.is_back)
        filled = [
            ran.spans[source, lane, None] for lane in fills if (source, lane, None) in ran.spans
        ]
        times = {
            "gather": (min(begin for begin, _ in filled), max(end for _, end in filled)),
            "wire": (
                ran.spans[source, "wire", each.stage][0],
                ran.spans[target, "wire", each.stage][1],
            ),
            uses: ran.spans[target, uses, None],
        }
        way: dict[str, Place] = {
            "gather": (source, "gather", each.stage),
            "wire": (source, "wire", each.stage),
            uses: (target, uses, None if uses == "reduce source" else each.stage),
        }
        order = sorted(times, key=lambda lane: times[lane])
        assert in_order(times[lane] for lane in order)
        whens = {lane: simulated[way[lane]] for lane in order}
        if among[way["wire"]] > 1:  # whose span ends with the last of them
            whens["wire"] = whens["wire"][0], whens["wire"][0]
        assert in_order(whens.values()), each
        ways |= {way["gather"], way["wire"]}
    assert ways == {place for place in simulated if place[1] in ("gather", "wire")}


def check_waits(ran: Ran, simulated: Mapping[Place, When], topology: Topology) -> None:
    """What waits begins when all ranks of the node have signalled: of the same slice, if both are
    cut into slices."""
    senders = {step.signal: lane_of(step) for step in ran.path.launches if step.signal is not None}
    fills = [lane_of(step) for step in ran.path.before if step.signal is None]
    waits = [(step, slot) for step in ran.path.launches for slot in step.wait]
    for step, slot in waits:
        lane, sender = lane_of(step), senders[slot]
        # A simulated span is of all that fills a slice, of which one step waits.
        shared = lane in fills and len(fills) > 1
        for spans, name in ((ran.spans, lane), (simulated, "gather" if lane in fills else lane)):
            waiting = {place: when for place, when in spans.items() if place[1] == name}
            told = {place: when for place, when in spans.items() if place[1] == sender}
            for (rank, _, number), when in waiting.items():
                begin = when[1] if shared and spans is simulated else when[0]
                for (peer, _, part), (_, end) in told.items():
                    if topology.node(peer) == topology.node(rank) and (
                        part == number or None in (part, number)
                    ):
                        assert end <= begin + ROUNDING, (rank, lane, number, sender)


def check_lanes(ran: Ran, simulated: Mapping[Place, When], spans: Spans) -> None:
    """Slices of a lane are in the order of their stages, one after the other; a rank has lanes for
    its rows, and none that the engine lacks."""
    num_stages = ran.plans[0].wire.num_stages
    for rank, lane in set(zip(spans.rank.tolist(), spans.lane.tolist(), strict=True)):
        mine = np.flatnonzero((spans.rank == rank) & (spans.lane == lane))
        mine = mine[np.argsort(spans.begin[mine], kind="stable")]
        assert in_order(zip(spans.begin[mine].tolist(), spans.end[mine].tolist(), strict=True))
        numbers = [slice_of(spans.names[name], num_stages) for name in spans.name[mine]]
        assert set(numbers) == {None} or numbers == sorted(numbers)
    lanes = {place[:2] for place in simulated}
    for step in ran.path.launches:
        if step in ran.path.before and step.signal is None:
            continue  # on the lane that gathers, slice by slice
        for rank, plan in enumerate(ran.plans):
            length = len(next(iter(plan.lists.get(step.list, {"none": ()}).values())))
            assert length == 0 or (rank, lane_of(step)) in lanes
            assert (rank, lane_of(step)) not in lanes or (rank, lane_of(step), None) in ran.spans


def check(
    shape: str, options: str, tokens: list[int], away: list[float], seed: int,
    launch: float = 0.0, hbm: float = 1e12,
) -> Ran:  # fmt: skip
    """Run and simulate a dispatch and a combine, and compare them; the dispatch."""
    topology = Topology.parse(shape)
    size = topology.num_ranks
    ranks = skewed(topology, torch.float32, tokens[:size], away[:size], seed)
    text = specs.routed("f32", HIDDEN, KEYS, 2, options=f"{options} slice {ROW_BYTES} B")
    shuffle, calls = run(text, shape, ranks)
    plan, legs = simulate(text, shuffle, ranks, launch, hbm)
    assert plan.num_rounds == calls[0].plans[0].wire.num_stages
    for ran, spans in zip(calls, legs, strict=True):
        simulated = places(spans, plan.num_rounds)
        check_slices(ran, simulated)
        check_waits(ran, simulated, topology)
        check_lanes(ran, simulated, spans)
    return calls[0]


@settings(max_examples=at_night(20))
@given(
    st.sampled_from(["2x2", "2x1", "3x1", "3x2"]),
    st.sampled_from(OPTIONS),
    st.lists(st.integers(0, 6), min_size=6, max_size=6),
    st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=6, max_size=6),
    st.integers(0, 1000),
    st.sampled_from([0.0, 1e-6, 50e-6]),
    st.sampled_from([1e6, 1e12]),
)
def test_spans_are_in_the_engine_s_order(
    shape: str,
    options: str,
    tokens: list[int],
    away: list[float],
    seed: int,
    launch: float,
    hbm: float,
) -> None:
    check(shape, options, tokens, away, seed, launch, hbm)


def test_many_slices_some_of_which_others_send() -> None:
    ran = check("2x2", "balance rebalance", [9] * 4, [0.9, 0.1, 0.9, 0.1], 0)
    assert ran.hands_over
    assert len({each.stage for each in ran.slices}) > 2
