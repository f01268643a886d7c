"""Buffers of the network hop: room for the rows of so many rounds."""

from __future__ import annotations

from itertools import accumulate

from torch import Tensor

from fuscoc_runtime.engine.machine import SLOT_ALIGNMENT, Machine
from fuscoc_runtime.engine.row_fields import RowField
from fuscoc_runtime.plan.rounds import Side
from fuscoc_runtime.plan.wire_lists import rows_in_rounds


class Ring:
    """A buffer with room for the rows of ``machine.ring_slots`` rounds.

    Args:
        side: whose rounds; rows lie in wire order.
    """

    def __init__(self, machine: Machine, buffer: str, side: Side, num_rounds: int) -> None:
        self._depth = machine.ring_slots
        self._rows = rows_in_rounds(side, num_rounds)
        self._begin = list(accumulate(self._rows, initial=0))
        self._fields = machine.row_fields[buffer]
        most = max(self._rows, default=0)
        self.names = [f"{buffer}.{field.name}" for field in self._fields]
        self._slots = [
            machine.ring(name, _slot_bytes(field, most))
            for name, field in zip(self.names, self._fields, strict=True)
        ]

    def part(self, number: int, begin: int, end: int) -> tuple[Tensor, ...]:
        """The bytes of some of a round's rows, by field."""
        return tuple(
            slots[number % self._depth, begin * field.row_bytes : end * field.row_bytes]
            for slots, field in zip(self._slots, self._fields, strict=True)
        )

    def addresses(self, number: int) -> dict[str, int]:
        """Where all rows would begin for those of a round to lie in its slot, by buffer."""
        slot, skipped = number % self._depth, self._begin[number]
        return {
            name: slots.data_ptr() + slot * slots.stride(0) - skipped * field.row_bytes
            for name, slots, field in zip(self.names, self._slots, self._fields, strict=True)
        }


def _slot_bytes(field: RowField, num_rows: int) -> int:
    return -(-num_rows * field.row_bytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
