"""Launch a step of the manifest over its descriptor list."""

from __future__ import annotations

from fuscoc_runtime.comm.requests import Window
from fuscoc_runtime.engine.buffers import SIGNALS, Buffers
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.engine.places import OTHERS, TERMS
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.manifest.program import LaunchStep
from fuscoc_runtime.plan import DescriptorList


class PreparedStep:
    """A step with its list and its buffers. What a kernel takes is looked up once; a launch fills
    in how far signals have got."""

    def __init__(
        self, machine: Machine, step: LaunchStep, columns: DescriptorList, buffers: Buffers
    ) -> None:
        self._machine, self._step = machine, step
        self._places = places = machine.places[step.kernel]
        self._columns = {name: columns[name].contiguous() for name, _ in places.columns}
        self._num_entries = num_entries(columns)
        self._arguments = [0] * len(machine.kernel(step.kernel).spec.args)
        for name, index in places.columns:
            self._arguments[index] = address(self._columns[name])
        for name, index in places.bound:
            self._arguments[index] = buffers.address(name)
        self._arguments[places.count] = self._num_entries
        _fill_others(self._arguments, machine, step, buffers.windows[SIGNALS])

    def launch(self) -> None:
        """Enqueue the step on the current stream."""
        if self._num_entries or self._step.signal is not None or self._step.wait:
            _launch(self._machine, self._step, self._arguments, self._machine.num_programs)


def launch_empty(machine: Machine, step: LaunchStep, signals: Window, num_programs: int) -> None:
    """Enqueue a step over no entries: it only waits, or signals, which takes all of the programs
    that peers count."""
    arguments = [0] * len(machine.kernel(step.kernel).spec.args)
    _fill_others(arguments, machine, step, signals)
    _launch(machine, step, arguments, num_programs)


def _launch(machine: Machine, step: LaunchStep, arguments: list[int], num_programs: int) -> None:
    """With what the signals that a step waits for have reached by this rank's launches so far."""
    arguments = arguments.copy()
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
