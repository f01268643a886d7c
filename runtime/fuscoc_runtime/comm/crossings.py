"""Exchanges between nodes, as the communication library carries them out."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch.distributed as dist

from fuscoc_runtime.comm.requests import Crossing


class UnderWay(NamedTuple):
    """An exchange on a GPU: its stage, the mark of its end, and the other ranks."""

    stage: int
    end: Any
    peers: tuple[int, ...]

    def has_ended(self) -> bool:
        return bool(self.end.query())


def post(group: dist.ProcessGroup, request: Crossing) -> list[tuple[int, dist.Work]]:
    """The operations of an exchange with their peers. ``dist.batch_isend_irecv`` does the same, and
    looks at every tensor and at the group first, which takes longer than posting."""
    return [
        (each.peer, operation([part], each.peer, 0))
        for operation, rows in ((group.recv, request.receives), (group.send, request.sends))
        for each in rows
        for part in each.fields
    ]


def hop_of(stage: int) -> str:
    return f"network (stage {stage})"
