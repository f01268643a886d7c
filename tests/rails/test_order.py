"""Of a list between nodes what streams may do in any order touches no byte in common.

Nothing is carried out here. The list of a call is read as streams would: that of the list, and one
of each lane, on which rounds travel. Of every command it is known what has ended when it begins,
and which bytes of slabs it reads and writes. Headers of a way back are left out: all rounds carry
one, and every kernel that makes sums writes the same words there, or adds a refusal, which is
looked at behind the last round.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fuscoc_runtime.comm import lanes
from fuscoc_runtime.comm.rails import Rails
from fuscoc_runtime.comm.requests import Crossing
from fuscoc_runtime.engine.node import rail_commands, slabs
from fuscoc_runtime.engine.node.rail_commands import RailCommands
from fuscoc_runtime.engine.node.slabs import Slabs, new_slab_memory
from fuscoc_runtime.kernels.commands import Await, Command, Exchange, Launch
from fuscoc_runtime.manifest.artifact import load_artifact
from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.rails.test_lanes import Beside

Bytes = frozenset[int]
TOPOLOGIES = [Topology(2, 2), Topology(4, 1), Topology(3, 2)]
KERNELS = {name: name for name in ("pack", "forward", "collect", "finish")}


class Recorded(Rails):
    """The rail of rank 0, whose exchanges are kept and not posted."""

    def __init__(self, topology: Topology, num_lanes: int) -> None:
        others = range(1, topology.num_nodes)
        self.num_lanes, self.peers = num_lanes, {n: topology.forwarder(0, n) for n in others}

    def command(
        self, what: Crossing, is_told: bool = False, beside: Any = None, lane: int = 0
    ) -> Exchange:
        return Exchange(None, lambda: None, (what, beside), lane)


class Lists:
    """Both lists of calls of one size, and what their commands touch.

    A slab's bytes have numbers of their own: behind those of the memories before.
    """

    def __init__(
        self,
        text: str,
        num_sources: int,
        round_bytes: int,
        num_lanes: int,
        topology: Topology,
        staged_places: int | None = None,
    ) -> None:
        """``staged_places``: as `RailCommands`; by default those of all places."""
        self.num_nodes = topology.num_nodes
        shuffle = load_artifact(specs.artifact(text).path).shuffle(None)
        node, cpu = shuffle.node, torch.device("cpu")
        assert node is not None
        memory = new_slab_memory(shuffle, node, topology, num_sources, cpu)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(slabs, "ROUND_BYTES", round_bytes)
            patch.setattr(slabs, "MESSAGE_BYTES", round_bytes)
            self.slabs = Slabs(shuffle, node, topology, num_sources, memory, is_one_round=False)
        self.memories = [memory.out, memory.landed, memory.back_out, memory.back]
        program = SimpleNamespace(
            device=torch.device("cuda"), named={}, kernels=KERNELS, evaluating=list,
            planning=lambda _: [Launch(cast(Any, "plan"), "one")], num_nodes=self.num_nodes,
        )  # fmt: skip
        staged = staged_places or self.slabs.rounds[-1].stop
        given: Any = (program, Recorded(topology, num_lanes), self.slabs, staged, {})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rail_commands, "Beside", Beside)
            patch.setattr(lanes, "LANE_BYTES", 64)
            patch.setattr(lanes, "ALIGNMENT", 16)
            self.commands = RailCommands(*given)
            self.forth, self.back = self.commands.forth(), self.commands.back()
        self.numbers = self.commands.numbers

    def touched(self, command: Command) -> tuple[Bytes, Bytes]:
        """What it reads and writes."""
        if isinstance(command, Exchange):
            what, _ = command.held
            sent, received = (
                frozenset(self.at(byte) for rows in side for field in rows.fields for byte in field)
                for side in (what.sends, what.receives)
            )
            return sent - self.headers_back, received - self.headers_back
        assert isinstance(command, Launch)
        out, landed, back_out, back = range(4)
        if command.kernel == "pack":
            return frozenset(), self.of(out, range(self.memories[out].shape[1]))
        if command.kernel == "plan":
            rows_at = min(at for at, _ in self.slabs._places)
            return self.of(landed, range(rows_at)), frozenset()
        first, end = (self.numbers[command.names[name]] for name in ("first", "end"))
        places = range(first, end)
        if command.kernel == "forward":
            return self.of(landed, *_bytes_of(self.slabs._places, places)), frozenset()
        parts = self.of(
            back_out if command.kernel == "collect" else back,
            *_bytes_of(self.slabs._places_back, places),
        )
        return (frozenset(), parts) if command.kernel == "collect" else (parts, frozenset())

    def of(self, memory: int, *parts: range) -> Bytes:
        """Bytes of the slabs of all other nodes."""
        begin = sum(each.nbytes for each in self.memories[:memory])
        width = self.memories[memory].shape[1]
        return frozenset(
            begin + node * width + at
            for node in range(1, self.num_nodes)
            for part in parts
            for at in part
        )

    def at(self, byte: torch.Tensor) -> int:
        """The number of a byte of any slab."""
        begin = 0
        for memory in self.memories:
            away = byte.data_ptr() - memory.data_ptr()
            if 0 <= away < memory.nbytes:
                return begin + away
            begin += memory.nbytes
        raise AssertionError("an exchange of other memory")

    @property
    def headers_back(self) -> Bytes:
        return self.of(2, range(slabs.HEADER_BYTES)) | self.of(3, range(slabs.HEADER_BYTES))


def _bytes_of(parts: Sequence[tuple[int, int]], places: range) -> list[range]:
    return [range(at + places.start * size, at + places.stop * size) for at, size in parts]


def few(numbers: Bytes) -> list[int]:
    """Of bytes that should not be there; all would take minutes to print."""
    return sorted(numbers)[:3]


def ended_before(commands: Sequence[Command]) -> list[tuple[Command, frozenset[int]]]:
    """Kernels and exchanges, with the numbers of those that have ended when each begins; all have
    when the list ends."""
    ended: defaultdict[int | None, frozenset[int]] = defaultdict(frozenset)  # by lane
    ends: dict[Exchange, frozenset[int]] = {}
    works: list[tuple[Command, frozenset[int]]] = []
    for each in commands:
        if isinstance(each, Await):
            ended[None] |= ends[each.exchange]
            continue
        beside = each.held[1] if isinstance(each, Exchange) else None
        lane = None if beside is None else beside.lane
        if beside is not None and beside.waits:
            ended[lane] |= ended[None]
        works.append((each, ended[lane]))
        ended[lane] |= {len(works) - 1}
        if isinstance(each, Exchange):
            ends[each] = ended[lane]
    assert ended[None] == frozenset(range(len(works)))
    return works


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
@settings(deadline=None, max_examples=8, phases=[Phase.generate])  # to shrink takes minutes
@given(
    st.sampled_from([specs.FIELDS, specs.routed("f32", hidden=3, topk=2)]),
    st.integers(1, 70),
    st.sampled_from([1, 100, 10**9]),
    st.integers(1, 3),
    st.sampled_from([None, 8, 16]),
)
def test_what_may_be_in_any_order_touches_nothing_in_common(
    topology: Topology,
    text: str,
    num_sources: int,
    round_bytes: int,
    num_lanes: int,
    staged_places: int | None,
) -> None:
    """Sums of other nodes' segments are made in turns, too, where places have no room at once."""
    made = Lists(text, num_sources, round_bytes, num_lanes, topology, staged_places)
    for commands in (made.forth, made.back):
        works = [(*made.touched(each), ended) for each, ended in ended_before(commands)]
        for (at, one), (number, other) in itertools.combinations(enumerate(works), 2):
            if at not in other[2] and number not in one[2]:
                clashes = one[1] & (other[0] | other[1]) | other[1] & one[0]
                assert few(clashes) == []


def test_all_that_is_read_has_been_written() -> None:
    """By what has ended before: so accesses are those of the lists, and not of this model alone."""
    made = Lists(specs.FIELDS, 70, 100, 2, Topology(3, 1))
    assert len(made.slabs.rounds) == 3
    for commands, own in ((made.forth, {"pack"}), (made.back, {"collect"})):
        works = ended_before(commands)
        touched = [made.touched(each) for each, _ in works]
        for (command, ended), (read, _) in zip(works, touched, strict=True):
            written = frozenset[int]().union(*(touched[at][1] for at in ended))
            if not (isinstance(command, Launch) and command.kernel in own):
                assert few(read - written) == []
