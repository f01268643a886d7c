"""The bound of `network.py`: raw sends and receives of what must cross, in several ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.network_cases import Batch, Model
from benchmarks.network_contenders import Contender
from benchmarks.network_wire import Communicators

SLICE_BYTES = 8 << 20
WHOLE = 1 << 40
"""The slice of messages that are not cut."""
Exchange = list[dist.P2POp]


class RawWire(Contender):
    """As many bytes as have to cross, from every rank to those of its place in other nodes, all
    ways at once: every token once to every other node that wants it, shared evenly by a node's
    ranks. Nothing else.

    Attributes:
        out, back: messages by peer, of a dispatch and of a combine.
    """

    def __init__(
        self,
        name: str,
        batch: Batch,
        model: Model,
        slice_bytes: int = SLICE_BYTES,
        groups: Sequence[dist.ProcessGroup | None] = (None,),
    ) -> None:
        """``groups``: whose communicators take an equal part of every message each."""
        super().__init__(name, batch)
        topology, crossing = batch.topology, batch.crossing()
        node, place = topology.node(batch.rank), topology.local_rank(batch.rank)
        self.out: dict[int, Tensor] = {}
        self.back: dict[int, Tensor] = {}
        for other in range(topology.num_nodes):
            peer = topology.node_ranks(other)[place]
            if other != node:
                self.out[peer] = self._bytes(crossing[node, other], model)
                self.back[peer] = self._bytes(crossing[other, node], model)
        self._forth = _exchanges(self.out, self.back, slice_bytes, groups)
        self._home = _exchanges(self.back, self.out, slice_bytes, groups)

    def _bytes(self, rows: Tensor, model: Model) -> Tensor:
        """Of a rank of a node, for a rank of another."""
        mine = -(-int(rows) // self.batch.topology.ranks_per_node)
        like = {"dtype": torch.uint8, "device": self.batch.moe.x.device}
        return torch.zeros(mine * model.row_bytes, **like)

    @property
    def num_bytes(self) -> int:
        return sum(each.nbytes for each in (*self.out.values(), *self.back.values()))

    def dispatch(self) -> None:
        _carry_out(self._forth)

    def combine(self) -> None:
        _carry_out(self._home)

    def verify(self) -> list[str]:
        return []


def raw_wires(batch: Batch, model: Model, groups: Sequence[Communicators]) -> list[RawWire]:
    """By one communicator a message a peer, and in slices, as by several."""
    found = []
    for each in groups:
        if len(each) == 1:
            found += [
                RawWire("raw wire", batch, model, WHOLE),
                RawWire("raw wire, in slices", batch, model),
            ]
        else:
            name = f"raw wire, {len(each)} communicators"
            found.append(RawWire(name, batch, model, groups=each))
    return found


def _exchanges(
    sent: dict[int, Tensor],
    received: dict[int, Tensor],
    slice_bytes: int,
    groups: Sequence[dist.ProcessGroup | None],
) -> list[Exchange]:
    """Of messages by peer: the first slices of all of them, the second ones, and so on."""
    found: list[Exchange] = []
    slices = {
        group: _slices(sent, received, slice_bytes, at, len(groups))
        for at, group in enumerate(groups)
    }
    most = max((len(parts) for each in slices.values() for *_, parts in each), default=0)
    for number in range(most):
        for group, each in slices.items():
            ops = [
                dist.P2POp(op, parts[number], peer, group)
                for op, peer, parts in each
                if number < len(parts)
            ]
            found += [ops] if ops else []
    return found


def _slices(
    sent: dict[int, Tensor], received: dict[int, Tensor], slice_bytes: int, at: int, count: int
) -> list[tuple[Any, int, Sequence[Tensor]]]:
    """Part ``at`` of ``count`` of every message, cut."""
    return [
        (op, peer, message.tensor_split(count)[at].split(slice_bytes))
        for op, messages in ((dist.isend, sent), (dist.irecv, received))
        for peer, message in messages.items()
        if len(message)
    ]


def _carry_out(exchanges: Sequence[Exchange]) -> None:
    works = [work for each in exchanges for work in dist.batch_isend_irecv(each)]
    for work in works:
        work.wait()
