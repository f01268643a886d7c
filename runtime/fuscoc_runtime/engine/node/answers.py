"""The Triton kernels of a reply: what a dispatch has planned, for other rows.

They share state, page and handles' turns with the dispatch, whose slot codes theirs are; between
nodes rails, too. Its list of commands ends with one that tells peers what a combine needs, and
gradients of what comes back are a dispatch like any other, which plans.

Between nodes both ways take on the same segments: their slabs have places for as many. Weights that
have come with what was asked are those of the reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.rails import Rails
from fuscoc_runtime.engine.node.exact import telling_programs
from fuscoc_runtime.engine.node.rails import RailNode
from fuscoc_runtime.engine.node.rings import HandleRings, Launched, RingEntry
from fuscoc_runtime.engine.node.schedule import Programs
from fuscoc_runtime.engine.node.state import Limits
from fuscoc_runtime.engine.node.triton import TritonNode
from fuscoc_runtime.kernels.commands import Command, Launch, carry_out
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import ShuffleSpec

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
        most = asks.places // self._share
        limits = replace(asks.limits, max_sources=most)
        super().__init__(artifact, reply, reply.node, members, limits, num_sms)
        self._announce = self._program.load("answer", "announce", ("reply.call",))
        names = [f"reply.{name}" for name in ADOPTED]
        self._adopt = self._program.load("answer", "adopt", (names[0], "ticket", *names[1:]))
        asks.answered_by(self)

    def configure(self, programs: Programs) -> None:
        super().configure(programs)
        self._asks.forget()

    def around(self, commands: Sequence[Command]) -> list[Command]:
        """The commands of a dispatch, with those of its reply."""
        return [
            Launch(self._announce, "reply.one"),
            *commands,
            Launch(self._adopt, "reply.programs"),
        ]

    def adopting(self, index: int, num_sources: int) -> dict[str, int]:
        """What these are given in all dispatches of so many segments into the memory of an entry,
        but for ticket and weights."""
        known = self._asks.buffers_of(index)["routing"]
        return self._numbers(index, num_sources // self._share, address(known))

    def adopt(self, asked: Launched, weights: Tensor | None) -> None:
        """Make what the reply's combine needs the ``reply`` of ``asked``."""
        buffers = self._buffers[asked.entry.index]
        asked.reply = replace(
            asked, num_sources=asked.num_sources // self._share, codes=buffers["codes"],
            routing=buffers["routing"], weights=weights,
            sent=None if asked.sent is None else replace(
                asked.sent, num_sources=asked.sent.num_sources // self._share
            ),
        )  # fmt: skip

    def announce(self, entry: RingEntry) -> None:
        """Before this rank refuses a dispatch."""
        carry_out([Launch(self._announce, "reply.one")], self._refused(entry))

    def refuse(self, entry: RingEntry) -> None:
        """Behind that."""
        carry_out([Launch(self._adopt, "reply.programs")], self._refused(entry))

    @property
    def is_out_of_step(self) -> bool:
        return self._asks.is_out_of_step

    @is_out_of_step.setter
    def is_out_of_step(self, is_so: bool) -> None:
        self._asks.is_out_of_step = is_so

    @property
    def private_bytes(self) -> int:
        shared = [buffers[name].nbytes for buffers in self._buffers for name in SHARED]
        return super().private_bytes - sum(shared)

    def _refused(self, entry: RingEntry) -> dict[str, int]:
        return {**self._numbers(entry.index), "ticket": entry.ticket, "reply.weights": 0}

    def _numbers(self, index: int, num_sources: int = 0, known: int = 0) -> dict[str, int]:
        fanout = self.shuffle.program.fanout
        return {
            "reply.one": 1,
            "reply.call": self._tables[index].data_ptr(),
            "reply.num_sources": num_sources,
            "reply.fanout": fanout,
            "reply.segments": self._share,
            "reply.known": known,
            "reply.programs": telling_programs(num_sources * fanout, self._programs),
        }

    def _new_state(self) -> tuple[Tensor, Tensor]:
        return self._asks.state, self._asks.page

    def _new_rings(self) -> HandleRings:
        return self._asks.rings

    def _new_buffers(self, index: int) -> dict[str, Tensor]:
        buffers, theirs = super()._new_buffers(index), self._asks.buffers_of(index)
        return buffers | {name: theirs[name].view(buffers[name].shape) for name in SHARED}


class AnsweringRailNode(AnsweringNode, RailNode):
    """The same between nodes. A rank that refuses a dispatch takes on segments of others all the
    same, so the commands of its reply are those of any dispatch."""

    _asks: RailNode

    def adopting(self, index: int, num_sources: int) -> dict[str, int]:
        """See `AnsweringNode.adopting`; weights have come with what was taken on."""
        come = self._asks.buffers_of(index)["weights"]
        return {**super().adopting(index, num_sources), "reply.weights": address(come)}

    def _new_rails(self, members: Membership, measures: bool) -> Rails:
        return self._asks.rails

    def _may_drop(self, shuffle: ShuffleSpec, limits: Limits) -> bool:
        return self._asks.may_drop
