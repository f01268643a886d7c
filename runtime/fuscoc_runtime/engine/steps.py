"""Launch a step of the manifest over its descriptor list, or over a part of it."""

from __future__ import annotations

from collections.abc import Mapping

from fuscoc_runtime.engine.buffers import SIGNALS, Buffers
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.plan import DescriptorList
from fuscoc_runtime.schema import LaunchStep

TERMS = ("term_slot", "term_row", "term_point")
"""Columns that entries point into, rather than columns of entries."""

WORD_BYTES = 8


def launch(
    machine: Machine,
    step: LaunchStep,
    columns: DescriptorList,
    buffers: Buffers,
    part: range | None = None,
    *,
    addresses: Mapping[str, int] | None = None,
    expected: Mapping[int, int] | None = None,
) -> None:
    """Enqueue a step on the current stream.

    ``part``: entries of the list; default: all. ``addresses``: what to take for some buffers,
    instead of where they begin. ``expected``: counts that some signal slots must have reached;
    default: those of this rank's launches so far.
    """
    entries = part if part is not None else range(num_entries(columns))
    if not entries and step.signal is None and not step.wait:
        return
    if step.wait and step.signal is None and machine.has_given_up():
        return  # what is missing will not come: do not wait for it again
    signals = buffers.windows[SIGNALS]
    dense = {name: column.contiguous() for name, column in columns.items()}
    places = addresses or {}
    counts = {slot: machine.expected(slot) for slot in step.wait} | dict(expected or {})
    values = {
        "num_descriptors": len(entries),
        **{
            name: address(column) + (0 if name in TERMS else entries.start * WORD_BYTES)
            for name, column in dense.items()
        },
        **{
            argument: places[name] if name in places else buffers.address(name)
            for argument, name in step.bind.items()
        },
        **{f"expected_{slot}": number for slot, number in counts.items()},
        "signals": address(signals.peer_bases),
        "signal_slot": step.signal or 0,
        "num_peers": machine.num_peers,
        "my_peer": machine.my_peer,
        "wait_base": address(signals.local),
        "max_spins": machine.max_spins,
        "error": address(machine.error),
    }
    machine.launch(step.kernel, values, machine.num_programs)
    if step.signal is not None:
        machine.signalled(step.signal)


def num_entries(columns: DescriptorList) -> int:
    """Entries of a list."""
    return len(next(column for name, column in columns.items() if name not in TERMS))
