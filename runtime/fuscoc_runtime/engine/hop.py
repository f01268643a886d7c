"""The network hop of one call in one direction: rounds of slices through rings of slots.

``machine.ring_slots`` rounds are on their way at most: a round's rows are put into its slot of the
ring, travel, and leave the slot free for the round so many later.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.comm.requests import FinishRound, Request, Rows, StartRound
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.engine.ring import Ring
from fuscoc_runtime.plan.rounds import Side


class Hop:
    """One direction of the network hop.

    Args:
        sends, receives: what travels; ``sent`` is the ring from which.
        received: the ring into which, or the rows of every field, by name, in the order of the
            peers.
    """

    def __init__(
        self,
        machine: Machine,
        sends: Side,
        receives: Side,
        num_rounds: int,
        sent: Ring,
        received: Ring | Mapping[str, Tensor],
    ) -> None:
        self._lanes, self._tracer = machine.lanes, machine.tracer
        self._travelling: dict[int, int] = {}
        self._sent, self._received = sent, received
        self._sends = _by_round(sends, num_rounds)
        self._receives = _by_round(receives, num_rounds)

    def start(
        self, number: int, fill: Generator[Request, Any, None], free: Any
    ) -> Generator[Request, Any, None]:
        """Fill the slot of a round and send it. ``free``: the mark from which on the slot is."""
        lanes = self._lanes
        with lanes.on("gather"):
            lanes.wait(free)
            with self._tracer.span("gather", f"slice {number}"):
                yield from fill
            filled = lanes.mark()
        lane = number % len(lanes.wires)
        wire = lanes.wires[lane]
        with lanes.on(wire):
            lanes.wait(filled)
            travelling = self._tracer.begin(wire, f"slice {number}")
            yield StartRound(number, lane, self._rows_sent(number), self._rows_received(number))
            if self._tracer.on_gpu:  # this stream waits for the round
                self._tracer.end(travelling)
        self._travelling[number] = travelling

    def finish(self, number: int) -> Generator[Request, Any, None]:
        """Let the current stream wait for a round, sent and received."""
        yield FinishRound(number)
        self._tracer.end(self._travelling.pop(number))

    def _rows_sent(self, number: int) -> tuple[Rows, ...]:
        return _in_slot(self._sent, number, self._sends[number])

    def _rows_received(self, number: int) -> tuple[Rows, ...]:
        slices = self._receives[number]
        if isinstance(self._received, Ring):
            return _in_slot(self._received, number, slices)
        fields = list(self._received.values())
        return tuple(
            Rows(peer, tuple(_as_bytes(rows[begin : begin + length]) for rows in fields))
            for peer, begin, length in slices
        )


Slice = tuple[int, int, int]
"""Peer, first row in the order of the peers, number of rows."""


def _by_round(side: Side, num_rounds: int) -> list[list[Slice]]:
    rounds: list[list[Slice]] = [[] for _ in range(num_rounds)]
    for number, *found in side.listed:
        rounds[number].append((found[0], found[1], found[2]))
    return rounds


def _in_slot(ring: Ring, number: int, slices: Sequence[Slice]) -> tuple[Rows, ...]:
    rows, begin = [], 0
    for peer, _, length in slices:
        rows.append(Rows(peer, ring.part(number, begin, begin + length)))
        begin += length
    return tuple(rows)


def _as_bytes(rows: Tensor) -> Tensor:
    return rows.view(-1).view(torch.uint8)
