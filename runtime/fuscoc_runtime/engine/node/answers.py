"""The Triton kernels of a reply inside one node: what a dispatch has planned, for other rows.

They share state, page and handles' turns with the dispatch, whose slot codes theirs are. Its list
of commands ends with one that tells peers what a combine needs, and gradients of what comes back
are a dispatch like any other, which plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.engine.node.exact import POINTS_TOLD
from fuscoc_runtime.engine.node.rings import HandleRings, Launched, RingEntry
from fuscoc_runtime.engine.node.triton import TritonNode
from fuscoc_runtime.kernels.commands import Command, Launch, carry_out
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.manifest.artifact import Artifact

SHARED = ("codes", "key_counts", "key_starts")
"""Of the memory of a handle, what is that of the dispatch."""
ADOPTED = ("call", "num_sources", "fanout", "segments", "weights", "known")
"""What the command behind a dispatch is given beside its ticket, by names of its own."""


class AnsweringNode(TritonNode):
    """The kernels of the reply to what ``asks`` dispatches; construction is collective."""

    def __init__(
        self,
        artifact: Artifact,
        asks: TritonNode,
        members: Membership,
        num_sms: int | None,
    ) -> None:
        reply = asks.shuffle.reply
        assert reply is not None
        assert reply.node is not None, "kernels are there for both or none"
        self._asks, self._share = asks, asks.shuffle.segments_answered
        most = asks.limits.max_sources // self._share
        limits = replace(asks.limits, max_sources=most)
        super().__init__(artifact, reply, reply.node, members, limits, num_sms)
        self._announce = self._program.load("answer", "announce", ("reply.call",))
        names = [f"reply.{name}" for name in ADOPTED]
        self._adopt = self._program.load("answer", "adopt", (names[0], "ticket", *names[1:]))
        asks.answered_by(self)

    def around(self, commands: Sequence[Command]) -> list[Command]:
        """The commands of a dispatch, with those of its reply."""
        return [
            Launch(self._announce, "reply.one"),
            *commands,
            Launch(self._adopt, "reply.programs"),
        ]

    def adopted(self, asked: Launched, weights: Tensor | None) -> dict[str, int]:
        """The numbers of these; what the reply's combine needs is the ``reply`` of ``asked``."""
        num_sources = asked.num_sources // self._share
        buffers = self._buffers[asked.entry.index]
        asked.reply = replace(
            asked, num_sources=num_sources, codes=buffers["codes"], routing=buffers["routing"],
            weights=weights,
        )  # fmt: skip
        weights_at = 0 if weights is None else address(weights)
        return self._numbers(asked.entry, num_sources, weights_at, address(asked.routing))

    def announce(self, entry: RingEntry) -> None:
        """Before this rank refuses a dispatch."""
        carry_out([Launch(self._announce, "reply.one")], self._numbers(entry))

    def refuse(self, entry: RingEntry) -> None:
        """Behind that."""
        carry_out([Launch(self._adopt, "reply.programs")], self._numbers(entry))

    @property
    def private_bytes(self) -> int:
        shared = [buffers[name].nbytes for buffers in self._buffers for name in SHARED]
        return super().private_bytes - sum(shared)

    def _numbers(
        self, entry: RingEntry, num_sources: int = 0, weights: int = 0, known: int = 0
    ) -> dict[str, int]:
        fanout = self.shuffle.program.fanout
        shares = -(-num_sources * fanout // POINTS_TOLD)
        return {
            "ticket": entry.ticket,
            "reply.one": 1,
            "reply.call": self._tables[entry.index].data_ptr(),
            "reply.num_sources": num_sources,
            "reply.fanout": fanout,
            "reply.segments": self._share,
            "reply.weights": weights,
            "reply.known": known,
            "reply.programs": max(1, min(shares, self._programs.reducers)),
        }

    def _new_state(self) -> tuple[Tensor, Tensor]:
        return self._asks.state, self._asks.page

    def _new_rings(self) -> HandleRings:
        return self._asks.rings

    def _new_buffers(self, index: int) -> dict[str, Tensor]:
        buffers, theirs = super()._new_buffers(index), self._asks.buffers_of(index)
        return buffers | {name: theirs[name].view(buffers[name].shape) for name in SHARED}
