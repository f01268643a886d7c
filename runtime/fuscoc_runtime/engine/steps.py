"""Launch a step of the manifest over its descriptor list, or over a part of it."""

from __future__ import annotations

from collections.abc import Mapping

from fuscoc_runtime.comm.requests import Window
from fuscoc_runtime.engine.buffers import SIGNALS, Buffers
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.engine.places import OTHERS, TERMS
from fuscoc_runtime.engine.ring import Ring
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.manifest.program import LaunchStep
from fuscoc_runtime.plan import DescriptorList

WORD_BYTES = 8


class PreparedStep:
    """A step with its list and its buffers. What a kernel takes is looked up once; a launch fills
    in what is its own.

    Args:
        ring: the buffer of which every launch reads or writes one round.
    """

    def __init__(
        self,
        machine: Machine,
        step: LaunchStep,
        columns: DescriptorList,
        buffers: Buffers,
        ring: Ring | None = None,
    ) -> None:
        self._machine, self._step, self._ring = machine, step, ring
        self._places = places = machine.places[step.kernel]
        self._columns = {name: columns[name].contiguous() for name, _ in places.columns}
        self._all = range(num_entries(columns))
        self._arguments = [0] * len(machine.kernel(step.kernel).spec.args)
        for name, index in places.columns:
            self._arguments[index] = address(self._columns[name])
        in_ring = () if ring is None else ring.names
        for name, index in places.bound:
            if name not in in_ring:
                self._arguments[index] = buffers.address(name)
        self._ring_at = [(name, index) for name, index in places.bound if name in in_ring]
        _fill_others(self._arguments, machine, step, buffers.windows[SIGNALS])

    def launch(
        self,
        part: range | None = None,
        number: int = 0,
        expected: Mapping[int, int] | None = None,
    ) -> None:
        """Enqueue the step on the current stream.

        ``part``: entries of the list; default: all. ``number``: the round of the ring.
        ``expected``: counts that some signal slots must have reached; default: those of this
        rank's launches so far.
        """
        machine, step, places = self._machine, self._step, self._places
        entries = self._all if part is None else part
        if not entries and step.signal is None and not step.wait:
            return
        arguments = self._arguments.copy()
        arguments[places.count] = len(entries)
        for index in places.entries:
            arguments[index] += entries.start * WORD_BYTES
        if self._ring is not None:
            addresses = self._ring.addresses(number)
            for name, index in self._ring_at:
                arguments[index] = addresses[name]
        for slot, index in places.expected:
            known = None if expected is None else expected.get(slot)
            arguments[index] = machine.expected(slot) if known is None else known
        machine.launch(step.kernel, arguments, machine.num_programs)
        if step.signal is not None:
            machine.signalled(step.signal)


def launch_empty(machine: Machine, step: LaunchStep, signals: Window, num_programs: int) -> None:
    """Enqueue a step over no entries: it only waits, or signals, which takes all of the programs
    that peers count."""
    arguments = [0] * len(machine.kernel(step.kernel).spec.args)
    _fill_others(arguments, machine, step, signals)
    for slot, index in machine.places[step.kernel].expected:
        arguments[index] = machine.expected(slot)
    machine.launch(step.kernel, arguments, num_programs)
    if step.signal is not None:
        machine.signalled(step.signal)


def _fill_others(arguments: list[int], machine: Machine, step: LaunchStep, signals: Window) -> None:
    values = (
        address(signals.peer_bases),
        step.signal or 0,
        machine.num_peers,
        machine.my_peer,
        address(signals.local),
        address(machine.waits.abort_word),
        address(machine.waits.late_word),
    )
    known = dict(zip(OTHERS, values, strict=True))
    for name, index in machine.places[step.kernel].others:
        arguments[index] = known[name]


def num_entries(columns: DescriptorList) -> int:
    """Entries of a list."""
    return next(column for name, column in columns.items() if name not in TERMS).numel()
