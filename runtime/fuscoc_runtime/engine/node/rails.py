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

from collections.abc import Sequence
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
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import NodeSpec, ShuffleSpec

POINTS_LANDED = 256  # by a program at once
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
        super().__init__(artifact, shuffle, node, members, limits, num_sms)
        self._land = self._program.load("hop", "land", ("call", "fanout"))
        self._acknowledge = self._program.load("hop", "acknowledge", ("call",))
        slabs = self._slabs
        self._forth = self._rails.between(slabs.out, slabs.landed)
        self._back = self._rails.between(slabs.back_out, slabs.back)
        self._receipts = self._rails.between(slabs.receipts_out, slabs.receipts)
        self._no_source = [torch.empty(0)] * len(shuffle.program.buffers["source"])

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
        values = self._program.given(inputs, extents)
        own = self._own[entry.index]
        values |= {name: address(column) for name, column in own.items()}
        addresses = self.shuffle.program.relation.addresses
        values |= zip(addresses, map(address, self._segments[entry.index]), strict=True)
        if ragged is not None:
            tables = ("outer", "point_offset", "cell_offset")
            values |= {name: address(getattr(ragged, name)) for name in tables}
        self._program.evaluate(values, num_sources)
        if ragged is not None:
            self._drop_behind(ragged.num_points, (own["rank"], own["key"]))
        given = 0 if weights is None else address(weights)
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
        self._carry_out(entry, source, num_sources, given, values, refuses=False)
        return handle

    def combine(
        self,
        rows: Sequence[Tensor],
        handle: Launched,
        results: Sequence[Tensor],
        rows_ticket: int = 0,
    ) -> Sequence[Tensor]:
        """See `TritonNode.combine`."""
        values = {"rows_ticket": rows_ticket, **self._program.fields_back(rows, results)}
        self._send_back(handle, values, self._programs.combine)
        return results

    def refuse_dispatch(self) -> RingEntry:
        """Take a dispatch's turn without segments: those of others are taken on all the same. If
        any rank has joined it, how often it will be combined is not known here. Waits for the
        device."""
        entry = self._next_entry()
        self._carry_out(entry, self._no_source, 0, 0, self._program.placement({}), refuses=True)
        self.is_out_of_step = self._program.combines and self._someone_joined()
        return entry

    def refuse_combine(self, handle: Launched) -> None:
        """Take a combine's turn without rows; sums that need them are NaN, in other nodes all that
        this rank has taken on from them."""
        values = {"rows_ticket": -1}
        for field in self.shuffle.program.buffers["source"]:
            values |= dict.fromkeys((f"{each}.{field.name}" for each in COMBINED), 0)
        self._send_back(handle, values, 1)

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

    def _carry_out(
        self,
        entry: RingEntry,
        source: Sequence[Tensor],
        num_sources: int,
        weights: int,
        values: dict[str, int],
        refuses: bool,
    ) -> None:
        """A dispatch from the packing of slabs on."""
        program, slabs = self._program, self._slabs
        index = self._row_index(entry)
        if index is not None:  # before the peers know that this rank joins the call
            index.fill_(-1)
        call = {"call": self._tables[entry.index].data_ptr(), "ticket": entry.ticket}
        values = values | call | program.fields_sent(source, self._memory.sections["rows"])
        values |= slabs.rows_at
        own = {"num_sources": num_sources, "weights": weights, "refuses": int(refuses)}
        program.kernels["pack"].launch(values | own, self._programs.dispatch)
        self._rails.exchange(self._forth)
        fanout = self.shuffle.program.fanout
        programs = -(-self._stride * fanout // POINTS_LANDED)
        self._land.launch({**call, "fanout": fanout}, min(programs, self._programs.dispatch))
        taken_on = self._taken_on.max_sources
        values |= {
            "num_sources": taken_on,
            "weights": address(self._buffers[entry.index]["weights"]),
        }
        program.plan(values, taken_on, self._programs)
        program.kernels["forward"].launch(values, self._programs.dispatch)
        if self._may_overflow:
            self._rails.exchange(self._receipts)
            self._acknowledge.launch(call, 1)

    def _someone_joined(self) -> bool:
        """Whether any rank has joined the dispatch, which is the latest one."""
        num_ranks, columns = self._members.topology.num_ranks, self._program.num_columns
        counts = self._memory.part("counts", torch.int32, 2 * num_ranks * (columns + 1))
        parity = int(self.state[PLAN_EPOCH]) & 1
        return bool((counts.view(2, num_ranks, columns + 1)[parity, :, columns] >= 0).any())

    def _send_back(self, handle: Launched, values: dict[str, int], programs: int) -> None:
        """A combine, of ``programs`` on both sides of the network."""
        assert handle.sent is not None
        kernels, values = self._program.kernels, self._values(handle) | values
        others = {"num_sources": (self._num_nodes - 1) * self._stride}
        kernels["collect"].launch(values | others, programs)
        self._rails.exchange(self._back)
        own = {"num_sources": handle.sent.num_sources}
        kernels["finish"].launch(values | own, programs)

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
