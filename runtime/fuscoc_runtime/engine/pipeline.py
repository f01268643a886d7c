"""The steps of dispatch and of combine, carried out as pipelines around the network hop.

Dispatch: a round's rows are gathered straight from the source into a ring, travel, land in another
ring and are forwarded to their slots, while the rounds after it travel. What stays inside the node
(direct rows, and copies of them) is moved while the first rounds are on their way. Combine is the
mirror image: a round's rows are reduced at their ranks and at their forwarder before they travel.

Every rank of a node launches what signals as often as its peers: once a round.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fuscoc_runtime.comm.requests import Phase, Request, ToHost
from fuscoc_runtime.engine.buffers import Buffers
from fuscoc_runtime.engine.hop import Hop, Ring
from fuscoc_runtime.engine.machine import RING_SLOTS, Machine
from fuscoc_runtime.engine.steps import launch
from fuscoc_runtime.plan import DescriptorList, RankPlan, Wire
from fuscoc_runtime.plan.arrays import inverse, iota
from fuscoc_runtime.schema import LaunchStep, PathSpec


@dataclass(frozen=True)
class Entries:
    """Which entries of a list belong to which round: ``parts[r]`` are those of round ``r``."""

    before: range
    parts: tuple[range, ...]

    @classmethod
    def cut(cls, counts: list[int], num_before: int = 0) -> Entries:
        parts, begin = [], num_before
        for count in counts:
            parts.append(range(begin, begin + count))
            begin += count
        return cls(range(num_before), tuple(parts))


class DispatchPipeline:
    """Dispatch on one rank, from gathering to the last copy.

    Args:
        wire: the rounds; only what a draft of the plan knows is needed.
        net_send: the list of that name.
        source: the buffers that gathering reads.
    """

    def __init__(
        self, machine: Machine, wire: Wire, net_send: DescriptorList, source: Buffers
    ) -> None:
        self._machine, self._lanes, self._source = machine, machine.lanes, source
        self._num_rounds = wire.num_rounds
        self._steps = _steps_by_list(machine.shuffle.dispatch)
        if wire.num_rounds:
            self._net_send = in_order(net_send, wire.send_order, "dst_row")
            self._slices = Ring(machine, "slices", wire.send, wire.num_rounds)
            self._landing = Ring(machine, "landing", wire.receive, wire.num_rounds)
            self._hop = Hop(
                machine, wire.send, wire.receive, wire.num_rounds, self._slices, self._landing
            )

    def begin(self) -> Generator[Request, Any, None]:
        """Send the first rounds: nothing about the receivers has to be known for that."""
        self._lanes.fork()
        for number in range(min(RING_SLOTS, self._num_rounds)):
            yield from self._hop.start(number, self._gather(number), None)

    def run(self, plan: RankPlan, buffers: Buffers) -> Generator[Request, Any, RankPlan]:
        """Everything else. Returns the plan, with the entries of its rounds on the host."""
        machine, lanes, span = self._machine, self._lanes, self._machine.tracer.span
        direct, duplicate = self._steps["direct"], self._steps["local"]
        copied = plan.lists["local"]
        if not self._num_rounds:
            with span("direct", "all rows"):
                launch(machine, direct, plan.lists["direct"], buffers)
            yield Phase(duplicate.kernel)
            with span("local", "all copies"):
                launch(machine, duplicate, copied, buffers)
            return plan
        forward = self._steps["forward"]
        assert forward.signal is not None
        far = forward.signal
        forwarded = _forwarded(plan)
        # The lanes read what this one has prepared.
        ready = lanes.mark()
        plan = replace(plan, wire=replace(plan.wire, entries=(yield ToHost(plan.wire.entries))))
        with span("direct", "all rows"):
            launch(machine, direct, plan.lists["direct"], buffers)
        entries = plan.wire.entries.tolist()
        forwards = Entries.cut(entries[: self._num_rounds])
        first, *rest = entries[2 * self._num_rounds :]
        copies = Entries.cut(rest, first)
        # Copies wait for all peers, so they are made a round later: nobody waits long then.
        due, expected = copies.before, {far: machine.expected(far)}
        for number in range(self._num_rounds):
            with lanes.on("forward"):
                lanes.wait(ready)
                yield from self._hop.finish(number)
                part, addresses = forwards.parts[number], self._landing.addresses(number)
                with span("forward", f"slice {number}"):
                    launch(machine, forward, forwarded, buffers, part, addresses=addresses)
                free = lanes.mark()
            if number + RING_SLOTS < self._num_rounds:
                following = number + RING_SLOTS
                yield from self._hop.start(following, self._gather(following), free)
            yield Phase(duplicate.kernel)
            if due:
                with lanes.on("forward"), span("forward", f"copies before slice {number}"):
                    launch(machine, duplicate, copied, buffers, due, expected=expected)
            due, expected = copies.parts[number], {far: machine.expected(far)}
        with lanes.on("forward"), span("forward", "last copies"):
            launch(machine, duplicate, copied, buffers, due)
        lanes.join()
        return plan

    def _gather(self, number: int) -> Generator[Request, Any, None]:
        part = self._slices.range(number)
        if part:
            addresses = self._slices.addresses(number)
            pack = self._steps["net_send"]
            launch(self._machine, pack, self._net_send, self._source, part, addresses=addresses)
        yield from ()


def run_combine(
    machine: Machine, path: PathSpec, plan: RankPlan, buffers: Buffers
) -> Generator[Request, Any, None]:
    """Combine on one rank, from the first reduction to the last. Entries of rounds are on the host:
    a dispatch has brought them there."""
    lanes, wire, steps = machine.lanes, plan.wire, _steps_by_list(path)
    span = machine.tracer.span
    num_rounds = wire.num_rounds
    direct, source = steps["reduce_direct"], steps["reduce_source"]
    if num_rounds:
        forward, node = steps["reduce_forward"], steps["reduce_node"]
        reduced = in_order(plan.lists["reduce_node"], wire.landing_order, "dst_row")
        forwards = Entries.cut(wire.entries.tolist()[num_rounds : 2 * num_rounds])
        ring = Ring(machine, "return_slices", wire.receive, num_rounds)
        returned = {
            name: rows[plan.rows.staging - wire.send.num_rows :]
            for name, rows in buffers.rows("staging").items()
        }
        hop = Hop(machine, wire.receive, wire.send, num_rounds, ring, returned)

        assert forward.signal is not None
        signal, signalled = forward.signal, list[int]()

        def leave(number: int) -> None:
            """Reduce what this rank has of a round's rows, and leave it to their forwarders."""
            lists = plan.lists["reduce_forward"]
            launch(machine, forward, lists, buffers, forwards.parts[number])
            signalled.append(machine.expected(signal))

        def reduce(number: int) -> Generator[Request, Any, None]:
            # A round ahead: when this rank adds up, its peers have left theirs.
            for ahead in range(len(signalled), min(number + 2, num_rounds)):
                leave(ahead)
            yield Phase(node.kernel)
            if ring.range(number):
                part, addresses = ring.range(number), ring.addresses(number)
                expected = {signal: signalled[number]}
                launch(
                    machine, node, reduced, buffers, part, addresses=addresses, expected=expected
                )

        lanes.fork()
        for number in range(min(RING_SLOTS, num_rounds)):
            yield from hop.start(number, reduce(number), None)
    with span("direct", "all rows"):
        launch(machine, direct, plan.lists["reduce_direct"], buffers)
    for number in range(num_rounds):
        with lanes.on("gather"):
            yield from hop.finish(number)
        if number + RING_SLOTS < num_rounds:
            yield from hop.start(number + RING_SLOTS, reduce(number + RING_SLOTS), None)
    if num_rounds:
        lanes.join()
    yield Phase(source.kernel)
    with span("local", "last sums"):
        launch(machine, source, plan.lists["reduce_source"], buffers)


def in_order(columns: DescriptorList, order: Tensor | None, place: str) -> DescriptorList:
    """A list in wire order; ``place`` is the column that counts its entries."""
    if order is None:
        return columns
    moved = {name: column[order] for name, column in columns.items()}
    return {**moved, place: iota(order)}


def _forwarded(plan: RankPlan) -> DescriptorList:
    """``forward`` in the order of its rounds, reading landing rows in wire order."""
    forward, wire = plan.lists["forward"], plan.wire
    if wire.landing_order is None or wire.forward_order is None:
        return forward
    place = inverse(wire.landing_order)[forward["src_row"]]
    columns = {**forward, "src_row": place}
    return {name: column[wire.forward_order] for name, column in columns.items()}


def _steps_by_list(path: PathSpec) -> dict[str, LaunchStep]:
    return {step.list: step for step in path.steps if isinstance(step, LaunchStep)}
