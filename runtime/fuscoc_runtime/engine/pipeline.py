"""The steps of a path, carried out as a pipeline around the network hop.

What comes before the hop fills a round's slices, which travel while those of the rounds after them
are filled; what comes behind it works off the rounds that have arrived. Steps that have nothing to
do with the hop run while the first rounds are on their way. So dispatch gathers rows straight from
the source and forwards them to their slots, and combine, the mirror image, reduces a round's rows
at their ranks and at their forwarder before they travel.

Which is which, the tokens say; how a list is cut into rounds, the planner, which knows it by name.
Every rank of a node launches what signals as often as its peers: once a round, or once a call.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fuscoc_runtime.comm.requests import Phase, Request
from fuscoc_runtime.engine.buffers import Buffers
from fuscoc_runtime.engine.hop import Hop
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.engine.ring import Ring
from fuscoc_runtime.engine.steps import PreparedStep
from fuscoc_runtime.manifest.program import LaunchStep, PathSpec
from fuscoc_runtime.plan import DescriptorList, RankPlan, Wire
from fuscoc_runtime.plan.wire_lists import Entries, in_rounds, in_wire_order

SENT, RECEIVED = ("slices", "returned"), ("landing", "return_slices")
"""Rings of rows that this rank sends to forwarders, or gets back from them, and of those that it
forwards."""

HANDED_OVER = ("carried", "returned")
"""Buffers of what ranks of a node send for one another, where they do."""


@dataclass(eq=False)
class _Work:
    """A step with its list. ``signalled``: what its signals have reached after every round so far;
    ``due``: entries whose turn is at the next signal, and what the signals have reached then."""

    step: LaunchStep
    prepared: PreparedStep
    entries: Entries | None = None
    signalled: list[int] = field(default_factory=list)
    due: range = range(0)
    expected: Mapping[int, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.step.list.replace("_", " ")

    @property
    def arrived(self) -> Phase:
        return Phase(self.step.kernel)

    def part(self, number: int) -> range:
        assert self.entries is not None
        return self.entries.parts[number]


class Pipeline:
    """One path on one rank. What is enqueued between the calls here holds up no lane.

    Args:
        wire: the rounds; only what a draft of the plan knows is needed.
        lists: those of the steps before the network hop.
        buffers: what these steps read.
    """

    def __init__(
        self,
        machine: Machine,
        path: PathSpec,
        wire: Wire,
        lists: Mapping[str, DescriptorList],
        buffers: Buffers,
    ) -> None:
        self._machine, self._lanes, self._span = machine, machine.lanes, machine.tracer.span
        self._path, self._wire, self._num_rounds = path, wire, wire.num_rounds
        self._rings: dict[str, Ring] = {}
        self._hop: Hop | None = None
        self._before = self._prepared(path.before if self._num_rounds else (), wire, lists, buffers)
        for work in self._before:
            work.entries = in_rounds(work.step.list, wire)

    def prepare(self, plan: RankPlan, buffers: Buffers) -> None:
        """Get ready for everything else. No step is launched, but lists are brought into the order
        of the wire, on the current stream."""
        given = plan.wire, plan.lists, buffers
        self._beside = self._prepared(self._path.beside, *given)
        self._behind = self._prepared(self._path.behind, *given)
        self._network_rows = _network_rows(plan, buffers)
        if self._num_rounds and self._hop is None:
            self._hop = self._open_hop()

    def begin(self) -> Generator[Request, Any, None]:
        """Send the first rounds: nothing about the receivers has to be known for that."""
        if not self._num_rounds:
            return
        hop = self._hop = self._hop or self._open_hop()
        self._lanes.fork("gather")
        for number in range(min(self._machine.ring_slots, self._num_rounds)):
            yield from hop.start(number, self._fill(number), None)

    def go_beside(self) -> None:
        """Launch what has nothing to do with the network hop."""
        if self._num_rounds:
            self._ready = self._lanes.mark()  # the lanes read what has been prepared
        for work in self._beside:
            with self._span(work.name, "all rows"):
                work.prepared.launch()

    def finish(self, wire: Wire) -> Generator[Request, Any, None]:
        """Do everything else. ``wire``: of the plan, with the entries of its rounds on the host."""
        lanes = self._lanes
        for work in self._behind:
            work.entries = in_rounds(work.step.list, wire)
        at_once = [work for work in self._behind if work.entries and not work.step.wait]
        trailing = [work for work in self._behind if work.entries and work.step.wait]
        last = [work for work in self._behind if not work.entries]
        for work in trailing:
            assert work.entries is not None
            work.due, work.expected = work.entries.before, self._reached(work, at_once)
        for number in range(self._num_rounds):
            assert self._hop is not None
            following = number + self._machine.ring_slots
            free = None
            with lanes.on("forward"):
                if number == 0:
                    lanes.wait(self._ready)
                yield from self._hop.finish(number)
                for work in at_once:
                    with self._span(work.name, f"slice {number}"):
                        work.prepared.launch(work.part(number), number)
                if following < self._num_rounds:
                    free = lanes.mark()
            if following < self._num_rounds:
                yield from self._hop.start(following, self._fill(following), free)
            # They wait for all peers, so they are made a round later: nobody waits long then.
            for work in trailing:
                yield work.arrived
                if work.due:
                    with lanes.on("forward"), self._span(work.name, f"before slice {number}"):
                        work.prepared.launch(work.due, expected=work.expected)
                work.due, work.expected = work.part(number), self._reached(work, at_once)
        for work in trailing:
            with lanes.on("forward"), self._span(work.name, "the last rows"):
                work.prepared.launch(work.due)
        if self._num_rounds:
            lanes.join()
        for work in last:
            yield work.arrived
            with self._span(work.name, "all rows"):
                work.prepared.launch()

    def _fill(self, number: int) -> Generator[Request, Any, None]:
        """Fill the slices of a round, on the current lane."""
        signalled = {work.step.signal: work.signalled for work in self._before}
        for work in self._before:
            step, prepared = work.step, work.prepared
            if step.signal is not None:
                # A round ahead: when this rank waits for its peers, they have done so.
                for ahead in range(len(work.signalled), min(number + 2, self._num_rounds)):
                    with self._span(work.name, f"rows of slice {ahead}"):
                        prepared.launch(work.part(ahead))
                    work.signalled.append(self._machine.expected(step.signal))
                continue
            if step.wait:
                yield work.arrived
            if part := work.part(number):
                prepared.launch(part, number, {slot: signalled[slot][number] for slot in step.wait})

    def _reached(self, work: _Work, senders: Iterable[_Work]) -> dict[int, int]:
        """What the signals that ``work`` waits for have reached, of those of every round."""
        slots = {each.step.signal for each in senders}
        return {slot: self._machine.expected(slot) for slot in work.step.wait if slot in slots}

    def _prepared(
        self,
        steps: Iterable[LaunchStep],
        wire: Wire,
        lists: Mapping[str, DescriptorList],
        buffers: Buffers,
    ) -> list[_Work]:
        """Those steps that have something to do in this plan."""
        found = []
        for step in steps:
            ring = next((end for end in (step.src, step.dst) if end in SENT + RECEIVED), None)
            if not self._has_work(step) or (ring is not None and not self._num_rounds):
                continue
            columns = lists[step.list]
            if ring is not None:
                columns = in_wire_order(step.list, columns, wire)
            there = None if ring is None else self._ring(ring)
            found.append(_Work(step, PreparedStep(self._machine, step, columns, buffers, there)))
        return found

    def _has_work(self, step: LaunchStep) -> bool:
        hands_over = self._wire.handover is not None
        return hands_over or not {step.src, step.dst}.intersection(HANDED_OVER)

    def _ring(self, buffer: str) -> Ring:
        if buffer not in self._rings:
            side = self._wire.send if buffer in SENT else self._wire.receive
            self._rings[buffer] = Ring(self._machine, buffer, side, self._num_rounds)
        return self._rings[buffer]

    def _open_hop(self) -> Hop:
        """From the ring that is filled into the one that is worked off, or, where there is none,
        straight to where rows come back to."""
        wire = self._wire
        [filled] = {work.step.dst for work in self._before} & {*SENT, *RECEIVED}
        read = {step.src for step in self._path.behind if self._has_work(step)}
        there: Ring | Mapping[str, Tensor]
        arriving = read & {*SENT, *RECEIVED}
        there = self._ring(*arriving) if arriving else self._network_rows
        sides = (wire.send, wire.receive) if filled in SENT else (wire.receive, wire.send)
        return Hop(self._machine, *sides, self._num_rounds, self._ring(filled), there)


def _network_rows(plan: RankPlan, buffers: Buffers) -> dict[str, Tensor]:
    """The staging rows, by field, of what this rank sent over the network."""
    return {
        name: rows[plan.rows.staging - plan.wire.send.num_rows :]
        for name, rows in buffers.rows("staging").items()
    }
