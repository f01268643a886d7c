"""The row buffers of a call: which are windows, how large they are, and what kernels call them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fuscoc_runtime.comm.requests import Window, Windows
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.plan import BufferRows

SIGNALS = "signals"
PEERS = "peers."
WORD_BYTES = 4


@dataclass(frozen=True, eq=False)
class Buffers:
    """Tensors and windows by the names that a manifest's ``bind`` uses, ``<buffer>.<field>``."""

    tensors: Mapping[str, Tensor]
    windows: Mapping[str, Window]

    def address(self, name: str) -> int:
        """What a kernel is passed for a buffer: its address, or that of the peers' addresses."""
        if name.startswith(PEERS):
            return address(self.windows[name.removeprefix(PEERS)].peer_bases)
        return address(self.tensors[name])

    def rows(self, buffer: str) -> dict[str, Tensor]:
        """A buffer's fields by name."""
        prefix = f"{buffer}."
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(prefix)
        }


def row_bytes(machine: Machine, buffer: str) -> int:
    """Bytes of a row of a buffer, all fields."""
    return sum(field.row_bytes for field in machine.row_fields[buffer])


def dispatch_windows(machine: Machine, most: BufferRows) -> Windows:
    """The windows of a dispatch: the target, and rows that are sent for others, if any are."""
    carried = _window_bytes(machine, most.carried, "carried") if most.carried else {}
    return Windows(_signal_bytes(machine) | carried | _window_bytes(machine, most.target, "target"))


def combine_windows(machine: Machine, most: BufferRows) -> Windows:
    """The windows of a combine: partial results at the source and at the forwarder."""
    return Windows(
        _signal_bytes(machine)
        | _window_bytes(machine, most.staging, "staging")
        | _window_bytes(machine, most.forward_staging, "forward_staging")
    )


def _signal_bytes(machine: Machine) -> dict[str, int]:
    return {SIGNALS: machine.num_signal_slots * machine.num_peers * WORD_BYTES}


def _window_bytes(machine: Machine, num_rows: int, buffer: str) -> dict[str, int]:
    return {
        f"{buffer}.{field.name}": num_rows * field.row_bytes for field in machine.row_fields[buffer]
    }


def window_rows(
    machine: Machine, num_rows: int, windows: Mapping[str, Window], buffer: str
) -> dict[str, Tensor]:
    """This rank's rows of a buffer that lives in windows, as named tensors."""
    rows = {}
    for field in machine.row_fields[buffer]:
        name = f"{buffer}.{field.name}"
        held = windows[name].local[: num_rows * field.row_bytes]
        rows[name] = held.view(field.dtype).view(num_rows, *field.shape)
    return rows


def named(buffer: str, fields: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The user's tensors under a buffer's name."""
    return {f"{buffer}.{field}": tensor for field, tensor in fields.items()}
