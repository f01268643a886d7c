"""The Triton kernels of one node for several of them: what comes from other nodes is shuffled as if
it were this rank's own.

Every rank packs a slab for each other node, of its segments that go there with their points and
weights, and sends it to the rank of its own place there; all slabs have one size, which
``max_sources`` gives. That rank takes the segments on: it plans, moves and adds them up with its
node's kernels, beside its own. A combine sends slabs of sums back the same way. So hosts post, and
never wait nor tell each other anything; a rank sends messages to its node and along its rail, to as
many ranks as there are of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fuscoc_runtime.comm.group import Membership, all_gather
from fuscoc_runtime.comm.rails import Rails
from fuscoc_runtime.comm.subgroups import node_group
from fuscoc_runtime.comm.windows import Allocate
from fuscoc_runtime.engine.node.ragged import EntrySizes, RaggedSizes
from fuscoc_runtime.engine.node.rings import Launched, RingEntry, Sent
from fuscoc_runtime.engine.node.slabs import Slabs, num_places
from fuscoc_runtime.engine.node.state import Limits
from fuscoc_runtime.engine.node.triton import TritonNode
from fuscoc_runtime.engine.node.triton_memory import (
    TritonMemory,
    new_buffers,
    new_points,
    new_scratch,
)
from fuscoc_runtime.engine.node.triton_program import COMBINED
from fuscoc_runtime.errors import InputError
from fuscoc_runtime.kernels.commands import Command, Launch
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import NodeSpec, ShuffleSpec

POINTS_LANDED = 256  # by a program at once
OWN = {"num_sources": "own_sources", "weights": "own_weights"}
"""What a kernel is given of this rank's own segments, where others are given those taken on."""
PLAN_EPOCH = 0  # a word of the state


class RailNode(TritonNode):
    """A shuffle with a packed target among the ranks of several nodes; construction is collective
    over ``members``. ``limits`` are those of a rank."""

    def __init__(
        self,
        artifact: Artifact,
        shuffle: ShuffleSpec,
        node: NodeSpec,
        members: Membership,
        limits: Limits,
        num_sms: int | None,
        may_overflow: bool,
    ) -> None:
        """``may_overflow``: whether there can be more points than slots, so that ranks have to be
        told."""
        topology = members.topology
        self._num_nodes, self._may_overflow = topology.num_nodes, may_overflow
        self._stride = num_places(node, limits.max_sources)
        self._taken_on = replace(limits, max_sources=self._num_nodes * self._stride)
        self.rails = self._rails = Rails(members)
        self._members = members
        self._slabs = Slabs(shuffle, node, limits.max_sources, self._num_nodes, members.device)
        self._no_source = [torch.empty(0)] * len(shuffle.program.buffers["source"])
        super().__init__(artifact, shuffle, node, members, limits, num_sms)

    def dispatch(
        self,
        source: Sequence[Tensor],
        inputs: Sequence[Tensor],
        extents: Sequence[int],
        num_sources: int,
        weights: Tensor | None = None,
        num_slots: int = 0,
        ragged: RaggedSizes | EntrySizes | None = None,
    ) -> Launched:
        """See `TritonNode.dispatch`. Of the handle everything is of the segments that this rank has
        taken on, but for ``sent``."""
        entry = self._next_entry()
        buffers = self._buffers[entry.index]
        assert not isinstance(ragged, EntrySizes), "they are evaluated before"
        own = self._own[entry.index]
        values = {
            **self._lasting[entry.index],
            **self._program.given(inputs, extents),
            **self._program.fields_left(source),
            **self._program.points(num_sources),
            "ticket": entry.ticket,
            "own_sources": num_sources,
            "own_weights": 0 if weights is None else address(weights),
            "refuses": 0,
        }
        if ragged is not None:
            self._evaluate_ragged(values, ragged, (own["rank"], own["key"]))
        handle = Launched(
            entry,
            self._taken_on.max_sources,
            buffers["codes"],
            buffers["key_counts"],
            buffers["key_starts"],
            buffers["routing"],
            None if weights is None else buffers["weights"],
            self._row_index(entry),
            ragged=ragged,
            sent=Sent(num_sources, own["rank"].view(-1, self.shuffle.program.fanout)),
        )
        self._carry_out(entry, values)
        return handle

    def combine(
        self,
        rows: Sequence[Tensor],
        handle: Launched,
        results: Sequence[Tensor],
        rows_ticket: int = 0,
    ) -> Sequence[Tensor]:
        """See `TritonNode.combine`."""
        values = {"rows_ticket": rows_ticket, "programs": self._programs.combine}
        self._send_back(handle, values | self._program.fields_back(rows, results))
        return results

    def refuse_dispatch(self) -> RingEntry:
        """Take a dispatch's turn without segments: those of others are taken on all the same. If
        any rank has joined it, how often it will be combined is not known here. Waits for the
        device."""
        entry = self._next_entry()
        values = {
            **dict.fromkeys(self._forth.names, 0),
            **self._lasting[entry.index],
            **self._program.placement({}),
            **self._program.fields_left(self._no_source),
            "ticket": entry.ticket,
            "refuses": 1,
        }
        self._carry_out(entry, values)
        self.is_out_of_step = self._program.combines and self._someone_joined()
        return entry

    def refuse_combine(self, handle: Launched) -> None:
        """Take a combine's turn without rows; sums that need them are NaN, in other nodes all that
        this rank has taken on from them."""
        values = {"rows_ticket": -1, "programs": 1}
        for field in self.shuffle.program.buffers["source"]:
            values |= dict.fromkeys((f"{each}.{field.name}" for each in COMBINED), 0)
        self._send_back(handle, values)

    def gather(self, of_slot: Tensor) -> Tensor:
        """What every rank of the node has for its slots, [ranks of the node, num_slots]."""
        members, topology = self._members, self._members.topology
        if topology.ranks_per_node == 1:
            return of_slot[None]
        if members.device.type == "cuda":
            return all_gather(of_slot, node_group(members))
        # Without a GPU nodes have no group of their own.
        ranks = topology.node_ranks(self._program.node)
        return all_gather(of_slot, members.group)[ranks.start : ranks.stop]

    def bring_back(self, of_points: Tensor) -> Tensor:
        """What this rank has found for the points [num_sources, fanout] that it has taken on, 0 for
        those of others, at its own points: [max_sources, fanout]."""
        found = of_points.view(self._num_nodes, self._stride, -1)
        others = torch.empty_like(found)
        self._rails.exchange(self._rails.between(found, others))
        others[self._program.node] = found[self._program.node]
        return others.sum(0)

    @property
    def private_bytes(self) -> int:
        """Bytes of tables, and of slabs."""
        own = sum(each.nbytes for points in self._own for each in points.values())
        return super().private_bytes + own + self._slabs.num_bytes

    def _commands_forth(self) -> list[Command]:
        """A dispatch: its relation, slabs, and what a node does with those that have come."""
        program, rails, slabs = self._program, self._rails, self._slabs
        commands: list[Command] = [
            *program.evaluating(),
            Launch(program.kernels["pack"], "programs", OWN),
            rails.command(rails.between(slabs.out, slabs.landed)),
            Launch(program.load("hop", "land", ("call", "fanout")), "landing_programs"),
            *program.planning(),
            Launch(program.kernels["forward"], "programs"),
        ]
        if self._may_overflow:
            acknowledge = program.load("hop", "acknowledge", ("call",))
            commands.append(rails.command(rails.between(slabs.receipts_out, slabs.receipts)))
            commands.append(Launch(acknowledge, "one"))
        return commands

    def _commands_back(self) -> list[Command]:
        """A combine, on both sides of the network."""
        kernels, rails, slabs = self._program.kernels, self._rails, self._slabs
        return [
            Launch(kernels["collect"], "programs", {"num_sources": "others_sources"}),
            rails.command(rails.between(slabs.back_out, slabs.back)),
            Launch(kernels["finish"], "programs", {"num_sources": "own_sources"}),
        ]

    def _lasting_numbers(self, index: int) -> dict[str, int]:
        taken_on, fanout = self._taken_on.max_sources, self.shuffle.program.fanout
        programs = -(-self._stride * fanout // POINTS_LANDED)
        return {
            **super()._lasting_numbers(index),
            **{name: address(column) for name, column in self._own[index].items()},
            **self._slabs.rows_at,
            "call": self._tables[index].data_ptr(),
            "fanout": fanout,
            "num_sources": taken_on,
            "weights": address(self._buffers[index]["weights"]),
            **self._program.sizes(taken_on, self._programs),
            "landing_programs": min(programs, self._programs.dispatch),
        }

    def _carry_out(self, entry: RingEntry, values: Mapping[str, int]) -> None:
        """A dispatch, behind what has to be known before."""
        index = self._row_index(entry)
        if index is not None:  # before the peers know that this rank joins the call
            index.fill_(-1)
        self._rails.submit(self._forth, values)

    def _someone_joined(self) -> bool:
        """Whether any rank has joined the dispatch, which is the latest one."""
        num_ranks, columns = self._members.topology.num_ranks, self._program.num_columns
        counts = self._memory.part("counts", torch.int32, 2 * num_ranks * (columns + 1))
        parity = int(self.state[PLAN_EPOCH]) & 1
        return bool((counts.view(2, num_ranks, columns + 1)[parity, :, columns] >= 0).any())

    def _send_back(self, handle: Launched, values: Mapping[str, int]) -> None:
        """A combine."""
        assert handle.sent is not None
        sources = {
            "own_sources": handle.sent.num_sources,
            "others_sources": (self._num_nodes - 1) * self._stride,
        }
        self._rails.submit(self._back, {**self._values(handle), **sources, **values})

    def _next_entry(self) -> RingEntry:
        entry = super()._next_entry()
        if entry.captured:
            problem = "cannot be captured: between nodes the host posts what travels"
            raise InputError(self.shuffle.name, self._program.members.rank, problem)
        return entry

    def _allocate_segments(self) -> list[Tensor]:
        # What else a handle has of its own segments.
        entries = range(self.limits.num_entries)
        self._own = [new_points(self._program, self.limits.max_sources) for _ in entries]
        return super()._allocate_segments()

    def _new_memory(self, allocate: Allocate) -> TritonMemory:
        return TritonMemory(self._program, self._taken_on, allocate, self.limits.num_entries)

    def _new_scratch(self) -> dict[str, Tensor]:
        return new_scratch(self._program, self._taken_on.max_sources)

    def _new_buffers(self) -> dict[str, Tensor]:
        num_sources = self._taken_on.max_sources
        shape = (num_sources, self.shuffle.program.fanout)
        weights = torch.zeros(shape, dtype=torch.float32, device=self._device)
        return {**new_buffers(self._program, num_sources), "weights": weights}

    def _words(self, index: int) -> dict[str, int]:
        own = {f"own_{name}s": address(self._own[index][name]) for name in ("rank", "key")}
        return super()._words(index) | own | self._slabs.words
