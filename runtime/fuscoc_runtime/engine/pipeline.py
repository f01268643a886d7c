"""The steps of dispatch and of combine, carried out as pipelines around the network hop.

Dispatch: a round's rows are gathered straight from the source into a ring, travel, land in another
ring and are forwarded to their slots, while the rounds after it travel. What stays inside the node
(direct rows, and copies of them) is moved while the first rounds are on their way. Combine is the
mirror image: a round's rows are reduced at their ranks and at their forwarder before they travel.

Every rank of a node launches what signals as often as its peers: once a round.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from fuscoc_runtime.comm.requests import Phase, Request, ToHost
from fuscoc_runtime.engine.buffers import Buffers
from fuscoc_runtime.engine.entries import Entries, in_order
from fuscoc_runtime.engine.gather import CarriedGather, Gather, Returned
from fuscoc_runtime.engine.hop import Hop
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.engine.ring import Ring
from fuscoc_runtime.engine.steps import PreparedStep, steps_by_list
from fuscoc_runtime.plan import DescriptorList, RankPlan, Wire
from fuscoc_runtime.plan.arrays import inverse
from fuscoc_runtime.schema import PathSpec


class DispatchPipeline:
    """Dispatch on one rank, from gathering to the last copy.

    Args:
        wire: the rounds; only what a draft of the plan knows is needed.
        lists: those that fill slices.
        source: the buffers that gathering reads.
    """

    def __init__(
        self,
        machine: Machine,
        wire: Wire,
        lists: Mapping[str, DescriptorList],
        source: Buffers,
    ) -> None:
        self._machine, self._lanes = machine, machine.lanes
        self._num_rounds = wire.num_rounds
        self._steps = steps_by_list(machine.shuffle.dispatch)
        if wire.num_rounds:
            slices = Ring(machine, "slices", wire.send, wire.num_rounds)
            self._landing = Ring(machine, "landing", wire.receive, wire.num_rounds)
            gathered = machine, self._steps, wire, lists, source, slices
            self._gather: Gather | CarriedGather = (
                Gather(*gathered)
                if wire.handover is None
                else CarriedGather(*gathered, wire.handover)
            )
            self._hop = Hop(
                machine, wire.send, wire.receive, wire.num_rounds, slices, self._landing
            )

    def begin(self) -> Generator[Request, Any, None]:
        """Send the first rounds: nothing about the receivers has to be known for that."""
        self._lanes.fork("gather")
        for number in range(min(self._machine.ring_slots, self._num_rounds)):
            yield from self._hop.start(number, self._gather.fill(number), None)

    def prepare(self, plan: RankPlan, buffers: Buffers) -> Generator[Request, Any, None]:
        """Move what stays inside the node, and get ready for what arrives. What is enqueued next
        here holds up no lane."""
        machine, steps = self._machine, self._steps
        if self._num_rounds:
            self._entries = yield ToHost(plan.wire.entries)
        direct, self._duplicate = (
            PreparedStep(machine, steps[name], plan.lists[name], buffers)
            for name in ("direct", "local")
        )
        if self._num_rounds:
            rows = _forwarded(plan)
            self._forward = PreparedStep(machine, steps["forward"], rows, buffers, self._landing)
            # The lanes read what this one has prepared.
            self._ready = self._lanes.mark()
        with machine.tracer.span("direct", "all rows"):
            direct.launch()

    def run(self, plan: RankPlan) -> Generator[Request, Any, RankPlan]:
        """Everything else. Returns the plan, with the entries of its rounds on the host."""
        machine, lanes, span = self._machine, self._lanes, self._machine.tracer.span
        arrived, duplicate = Phase(self._steps["local"].kernel), self._duplicate
        if not self._num_rounds:
            yield arrived
            with span("local", "all copies"):
                duplicate.launch()
            return plan
        far = self._steps["forward"].signal
        assert far is not None
        plan = replace(plan, wire=replace(plan.wire, entries=self._entries()))
        entries = plan.wire.entries.tolist()
        forwards = Entries.cut(entries[: self._num_rounds])
        first, *rest = entries[2 * self._num_rounds :]
        copies = Entries.cut(rest, first)
        # Copies wait for all peers, so they are made a round later: nobody waits long then.
        due, expected = copies.before, {far: machine.expected(far)}
        for number in range(self._num_rounds):
            with lanes.on("forward"):
                lanes.wait(self._ready)
                yield from self._hop.finish(number)
                with span("forward", f"slice {number}"):
                    self._forward.launch(forwards.parts[number], number)
                free = lanes.mark()
            following = number + machine.ring_slots
            if following < self._num_rounds:
                yield from self._hop.start(following, self._gather.fill(following), free)
            yield arrived
            if due:
                with lanes.on("forward"), span("forward", f"copies before slice {number}"):
                    duplicate.launch(due, expected=expected)
            due, expected = copies.parts[number], {far: machine.expected(far)}
        with lanes.on("forward"), span("forward", "last copies"):
            duplicate.launch(due)
        lanes.join()
        return plan


class CombinePipeline:
    """Combine on one rank, from the first reduction to the last. Entries of rounds are on the host:
    a dispatch has brought them there.

    Nothing that peers may notice is done before ``run``, and nothing is enqueued on the user's
    stream between.
    """

    def __init__(self, machine: Machine, path: PathSpec, plan: RankPlan, buffers: Buffers) -> None:
        self._machine, wire, steps = machine, plan.wire, steps_by_list(path)
        self._num_rounds = num_rounds = wire.num_rounds
        self._arrived = {name: Phase(step.kernel) for name, step in steps.items()}

        def prepare(name: str, columns: DescriptorList, ring: Ring | None = None) -> PreparedStep:
            return PreparedStep(machine, steps[name], columns, buffers, ring)

        self._direct = prepare("reduce_direct", plan.lists["reduce_direct"])
        self._last = prepare("reduce_source", plan.lists["reduce_source"])
        self._returned: Returned | None = None
        if not num_rounds:
            return
        reduced = in_order(plan.lists["reduce_node"], wire.landing_order, "dst_row")
        self._forwards = Entries.cut(wire.entries.tolist()[num_rounds : 2 * num_rounds])
        self._ring = Ring(machine, "return_slices", wire.receive, num_rounds)
        if wire.handover is not None:
            self._returned = Returned(machine, steps, wire, plan.lists["hand_back"], buffers)
        returned = self._returned
        landed = returned.ring if returned is not None else _network_rows(plan, buffers)
        self._hop = Hop(machine, wire.receive, wire.send, num_rounds, self._ring, landed)
        self._forward = prepare("reduce_forward", plan.lists["reduce_forward"])
        self._node = prepare("reduce_node", reduced, self._ring)
        signal = steps["reduce_forward"].signal
        assert signal is not None
        self._signal, self._signalled = signal, list[int]()
        machine.lanes.fork("gather")

    def run(self) -> Generator[Request, Any, None]:
        """Do it."""
        machine, lanes, span = self._machine, self._machine.lanes, self._machine.tracer.span
        for number in range(min(machine.ring_slots, self._num_rounds)):
            yield from self._hop.start(number, self._reduce(number), None)
        with span("direct", "all rows"):
            self._direct.launch()
        for number in range(self._num_rounds):
            with lanes.on("gather"):
                yield from self._hop.finish(number)
                if self._returned is not None:
                    self._returned.hand_back(number)
            following = number + machine.ring_slots
            if following < self._num_rounds:
                yield from self._hop.start(following, self._reduce(following), None)
        if self._num_rounds:
            lanes.join()
        yield self._arrived["reduce_source"]
        with span("local", "last sums"):
            self._last.launch()

    def _leave(self, number: int) -> None:
        """Reduce what this rank has of a round's rows, and leave it to their forwarders."""
        self._forward.launch(self._forwards.parts[number])
        self._signalled.append(self._machine.expected(self._signal))

    def _reduce(self, number: int) -> Generator[Request, Any, None]:
        # A round ahead: when this rank adds up, its peers have left theirs.
        for ahead in range(len(self._signalled), min(number + 2, self._num_rounds)):
            self._leave(ahead)
        yield self._arrived["reduce_node"]
        part = self._ring.range(number)
        if part:
            self._node.launch(part, number, {self._signal: self._signalled[number]})


def _network_rows(plan: RankPlan, buffers: Buffers) -> dict[str, Tensor]:
    """The staging rows, by field, of what this rank sent over the network."""
    return {
        name: rows[plan.rows.staging - plan.wire.send.num_rows :]
        for name, rows in buffers.rows("staging").items()
    }


def _forwarded(plan: RankPlan) -> DescriptorList:
    """``forward`` in the order of its rounds, reading landing rows in wire order."""
    forward, wire = plan.lists["forward"], plan.wire
    if wire.landing_order is None or wire.forward_order is None:
        return forward
    place = inverse(wire.landing_order)[forward["src_row"]]
    columns = {**forward, "src_row": place}
    return {name: column[wire.forward_order] for name, column in columns.items()}
