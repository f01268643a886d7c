"""How the slices of a round are filled, and where they go when they come back.

As a rule a rank gathers its own rows, straight from the source. Where ranks of a node send rows for
one another (``plan/carry.py``), each first stores such rows into the window of their carrier, over
NVLink, a round ahead of the gathering; on the way back the carrier stores what it gets into the
staging rows of their source.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from fuscoc_runtime.comm.requests import Phase, Request
from fuscoc_runtime.engine.buffers import Buffers
from fuscoc_runtime.engine.entries import Entries, in_order
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.engine.ring import Ring
from fuscoc_runtime.engine.steps import PreparedStep
from fuscoc_runtime.plan import DescriptorList, Handover, Wire
from fuscoc_runtime.plan.arrays import inverse, iota
from fuscoc_runtime.schema import LaunchStep

Steps = Mapping[str, LaunchStep]
"""Launches of a path by their lists."""


class Gather:
    """Fills the ring of slices from the source.

    Args:
        lists: those that fill slices, of a draft of the plan.
        buffers: what gathering reads.
    """

    def __init__(
        self,
        machine: Machine,
        steps: Steps,
        wire: Wire,
        lists: Mapping[str, DescriptorList],
        buffers: Buffers,
        slices: Ring,
    ) -> None:
        rows = in_order(lists["net_send"], wire.send_order, "dst_row")
        self._slices = slices
        self._pack = PreparedStep(machine, steps["net_send"], rows, buffers, slices)

    def fill(self, number: int) -> Generator[Request, Any, None]:
        """Fill the slices of a round, on the current lane."""
        part = self._slices.range(number)
        if part:
            self._pack.launch(part, number)
        yield from ()


class CarriedGather:
    """Fills the ring of slices from the source and from what peers have handed over.

    Args: as of ``Gather``.
    """

    def __init__(
        self,
        machine: Machine,
        steps: Steps,
        wire: Wire,
        lists: Mapping[str, DescriptorList],
        buffers: Buffers,
        slices: Ring,
        handover: Handover,
    ) -> None:
        def prepare(name: str, ring: Ring | None) -> PreparedStep:
            columns = lists[name]
            if ring is not None and wire.send_order is not None:
                place = inverse(wire.send_order)[columns["dst_row"]]
                columns = {**columns, "dst_row": place}
            return PreparedStep(machine, steps[name], columns, buffers, ring)

        self._machine = machine
        self._carry = prepare("carry", None)
        self._pack, self._pack_carried = prepare("net_send", slices), prepare("carried", slices)
        self._handed, self._own, self._taken = (
            Entries.cut(counts).parts for counts in (handover.handed, handover.own, handover.taken)
        )
        signal = steps["carry"].signal
        assert signal is not None
        self._signal, self._signalled = signal, list[int]()
        self._arrived = Phase(steps["carried"].kernel)

    def fill(self, number: int) -> Generator[Request, Any, None]:
        """Hand over the rows of the round after the given one, and fill the slices of that."""
        # A round ahead: when this rank packs what it was handed, its peers have handed it over.
        for ahead in range(len(self._signalled), min(number + 2, len(self._handed))):
            with self._machine.tracer.span("carry", f"rows of slice {ahead}"):
                self._carry.launch(self._handed[ahead])
            self._signalled.append(self._machine.expected(self._signal))
        self._pack.launch(self._own[number], number)
        yield self._arrived
        if self._taken[number]:
            expected = {self._signal: self._signalled[number]}
            self._pack_carried.launch(self._taken[number], number, expected)


class Returned:
    """What comes back in rounds to the rank that sent it, for those that it belongs to.

    Args:
        columns: the list ``hand_back``.
    """

    def __init__(
        self, machine: Machine, steps: Steps, wire: Wire, columns: DescriptorList, buffers: Buffers
    ) -> None:
        self.ring = Ring(machine, "returned", wire.send, wire.num_rounds)
        placed = {**columns, "src_row": iota(columns["src_row"])}  # its entries are in wire order
        self._hand_back = PreparedStep(machine, steps["hand_back"], placed, buffers, self.ring)
        self._tracer = machine.tracer

    def hand_back(self, number: int) -> None:
        """Store the rows of a round that has come back, and signal."""
        with self._tracer.span("hand back", f"slice {number}"):
            self._hand_back.launch(self.ring.range(number), number)
