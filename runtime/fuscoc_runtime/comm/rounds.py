"""Rounds of the network hop, as the communication library carries them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from fuscoc_runtime.comm.requests import StartRound


@dataclass(frozen=True, eq=False)
class Round:
    """A started round of the network hop: ``works`` of the communication library with their peers,
    and on CUDA the mark of its end."""

    works: list[tuple[int, dist.Work]]
    end: Any
    peers: tuple[int, ...]

    def has_ended(self) -> bool:
        return self.end is None or bool(self.end.query())


def post(group: dist.ProcessGroup, request: StartRound) -> list[tuple[int, dist.Work]]:
    """The operations of a round with their peers. ``dist.batch_isend_irecv`` does the same, and
    looks at every tensor and at the group first, which takes longer than posting."""
    return [
        (each.peer, operation([part], each.peer, 0))
        for operation, rows in ((group.recv, request.receives), (group.send, request.sends))
        for each in rows
        for part in each.fields
    ]


def hop_of(number: int) -> str:
    return f"network (slice {number})"
