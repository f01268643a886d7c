"""The Triton kernels of one node for several of them: what comes from other nodes is shuffled as if
it were this rank's own.

Every rank packs a slab for each other node, of its segments that go there with their points and
weights, and sends it to the rank of its own place there. Its size follows from ``max_sources``, or
from what crosses where ranks alone decide that (`crossing`). That rank takes the segments on: it
plans, moves and adds them up with its node's kernels, beside its own. A combine sends slabs of sums
back the same way. So hosts post, and never wait nor tell each other anything; a rank sends messages
to its node and along its rail, to as many ranks as there are of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.rails import Rails
from fuscoc_runtime.comm.windows import Allocate
from fuscoc_runtime.engine.node.crossing import Packing, crossing
from fuscoc_runtime.engine.node.prepared import Prepared
from fuscoc_runtime.engine.node.ragged import RaggedSizes
from fuscoc_runtime.engine.node.rail_commands import (
    PointExchange,
    RailCommands,
    gather_in_node,
    packing,
    rail_words,
)
from fuscoc_runtime.engine.node.rings import Launched, RingEntry, Sent
from fuscoc_runtime.engine.node.slabs import Slabs, new_slab_memory, num_places, slab_places
from fuscoc_runtime.engine.node.state import PLAN_EPOCH, Limits
from fuscoc_runtime.engine.node.triton import TritonNode
from fuscoc_runtime.engine.node.triton_memory import (
    TritonMemory,
    new_buffers,
    new_points,
    new_scratch,
)
from fuscoc_runtime.engine.node.triton_program import COMBINED
from fuscoc_runtime.engine.probe import divide_slabs
from fuscoc_runtime.engine.sizes import worst_capacity
from fuscoc_runtime.errors import InputError
from fuscoc_runtime.kernels.commands import Command, CommandList, Launch, Numbers
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import NodeSpec, ShuffleSpec


class RailNode(TritonNode):
    """A shuffle among the ranks of several nodes; construction is collective over ``members``.
    ``limits`` are those of a rank."""

    rails: Rails
    may_drop: bool
    """Whether points may find no slot where they go, so that their ranks have to be told."""

    def __init__(
        self,
        artifact: Artifact,
        shuffle: ShuffleSpec,
        node: NodeSpec,
        members: Membership,
        limits: Limits,
        num_sms: int | None,
        measures: bool = False,
    ) -> None:
        """``measures``: whether the network may be measured, for large slabs."""
        topology = members.topology
        self._num_nodes = topology.num_nodes
        self._stride = num_places(shuffle, node, limits.max_sources)
        self._taken_on = replace(limits, max_sources=self._num_nodes * self._stride)
        self.rails = self._new_rails(members, measures)
        self._members = members
        given = shuffle, node, topology, limits.max_sources
        most, packing = None, None
        if (crosses := crossing(shuffle, topology)) is not None:
            most = int(crosses.amax())
            sizes = limits.max_sources, self._stride
            packing = Packing(shuffle, topology, members.rank, *sizes)
        self._slab_places = slab_places(shuffle, node, limits.max_sources, most)
        memory = new_slab_memory(*given, members.device, most)
        largest = max(memory.out.shape[1], memory.back_out.shape[1])
        divide_slabs(self.rails, members, largest)
        self._slabs = Slabs(*given, memory, members.is_one_host, most, packing)
        self._no_source = [torch.empty(0)] * len(shuffle.program.read)
        self.may_drop = self._may_drop(shuffle, limits)
        super().__init__(artifact, shuffle, node, members, limits, num_sms)
        # Here, since the first backward that wants gradients of weights may be a captured one.
        self._tell = self._program.load("hop", "tell", ("told", "place"))

    def prepared(self, extents: Sequence[int], num_sources: int, num_slots: int = 0) -> Prepared:
        """See `TritonNode.prepared`."""
        alike = {
            **self._program.sizes_given(extents),
            **self._program.placement,
            **self._program.points(num_sources),
            **packing(self._program, self._programs, self._stride, num_sources),
            "own_sources": num_sources,
            "num_slots": num_slots,
            "says": 0,
        }
        answered = self._taken_on.max_sources
        numbers = [
            {**lasting, **alike, **self._answering(index, answered)}
            for index, lasting in enumerate(self._lasting)
        ]
        return Prepared(self._forth, numbers, self._varied, self.rails)

    def launched(
        self,
        entry: RingEntry,
        num_sources: int,
        weights: Tensor | None = None,
        num_slots: int = 0,
        ragged: RaggedSizes | None = None,
    ) -> Launched:
        """See `TritonNode.launched`. Everything is of the segments that this rank has taken on, but
        for ``sent``."""
        buffers = self._buffers[entry.index]
        launched = Launched(
            entry,
            self._taken_on.max_sources,
            buffers["codes"],
            buffers["key_counts"],
            buffers["key_starts"],
            buffers["routing"],
            None if weights is None or self._reply is not None else buffers["weights"],
            self._row_index(entry),
            self._claims(entry),
            num_slots,
            ragged,
            sent=Sent(num_sources, self._own_ranks[entry.index]),
        )
        if self._reply is not None:
            self._reply.adopt(launched, None if weights is None else buffers["weights"])
        return launched

    def combine(
        self,
        rows: Sequence[Tensor],
        handle: Launched,
        results: Sequence[Tensor],
        rows_ticket: int = 0,
    ) -> Sequence[Tensor]:
        """See `TritonNode.combine`."""
        assert handle.sent is not None
        prepared = self.prepared_back(handle.sent.num_sources)
        given = [address(each) for each in rows] + [address(each) for each in results]
        given += [each.nbytes for each in results]
        self._start_back(prepared, handle, given, rows_ticket)
        return results

    def prepared_back(self, num_sources: int, programs: int | None = None) -> Prepared:
        """See `TritonNode.prepared_back`; by ``programs``, or as many as there is room for."""
        most = self._programs.combine if programs is None else programs
        alike = {
            "num_sources": self._taken_on.max_sources,
            "programs": min(most, self._num_items),
            "finishing": max(1, min(most, num_sources)),
            "own_sources": num_sources,
        }
        numbers = [lasting | alike for lasting in self._lasting]
        return Prepared(self._back, numbers, self._varied_back, self.rails)

    def _start_back(
        self, prepared: Prepared, handle: Launched, given: Sequence[int], rows_ticket: int
    ) -> None:
        """A combine, with addresses of rows and results and bytes of these ``given``."""
        entry = handle.entry
        weights = 0 if handle.weights is None else address(handle.weights)
        numbers = prepared.fill(entry.index, (entry.ticket, rows_ticket, weights, *given))
        self._submit(self._back, numbers)

    def refuse_dispatch(self) -> RingEntry:
        """Take a dispatch's turn without segments: those of others are taken on all the same. If
        any rank has joined it, how often it will be combined is not known here. Waits for the
        device."""
        entry = self._next_entry()
        if entry.captured:  # a capture that fails on this rank; only the rings stay in step
            return entry
        values = {
            **dict.fromkeys(self._forth.names, 0),
            **self._lasting[entry.index],
            **self._answering(entry.index, self._taken_on.max_sources),
            **self._program.placement,
            **self._program.fields_left(self._no_source),
            **packing(self._program, self._programs, self._stride, 0),
            "ticket": entry.ticket,
            "says": -1,
        }
        index = self._row_index(entry)
        if index is not None:
            index.fill_(-1)
        self._submit(self._forth, self._forth.numbers(values))
        combines = self._program.combines or self._reply is not None
        self.is_out_of_step = combines and self._someone_joined()
        return entry

    def refuse_combine(self, handle: Launched) -> None:
        """Take a combine's turn without rows; sums that need them are NaN, in other nodes all that
        this rank has taken on from them."""
        assert handle.sent is not None
        prepared = self.prepared_back(handle.sent.num_sources, programs=1)
        nothing = [0] * (len(COMBINED) * len(self.shuffle.program.buffers["source"]))
        self._start_back(prepared, handle, nothing, rows_ticket=-1)

    def gather(self, of_slot: Tensor) -> Tensor:
        """See `gather_in_node`."""
        return gather_in_node(self._members, of_slot)

    def bring_back(self, of_points: Tensor) -> Tensor:
        """What this rank has found for the points [num_sources, fanout] that it has taken on, 0 for
        those of others, at its own points: [max_sources, fanout]."""
        exchange = self._points_between
        exchange.sent.copy_(of_points.view_as(exchange.sent))
        return self._slabs.at_segments(exchange.carry_out()).sum(0)

    @cached_property
    def _points_between(self) -> PointExchange:
        return PointExchange(self._program, self.rails, self._tell, self._stride)

    @property
    def places(self) -> int:
        return self._stride

    @property
    def num_rounds(self) -> int:
        """Rounds in which rows cross the network."""
        return len(self._slabs.rounds)

    @property
    def private_bytes(self) -> int:
        """Bytes of tables, and of slabs."""
        tables = [*self._slabs.tables, *(each for own in self._own for each in own.values())]
        of_tables = sum(each.nbytes for each in tables)
        return super().private_bytes + of_tables + self._slabs.memory.num_bytes

    @property
    def _varied(self) -> list[str]:
        program = self.shuffle.program
        names = ["ticket", "own_weights", "begun", *program.read]
        return names + [f"input.{name}" for name in program.inputs]

    def _ragged_columns(self, entry: RingEntry) -> list[Tensor]:
        own = self._own[entry.index]
        return [own["rank"], own[self._program.place]]

    def _submit(self, commands: CommandList, numbers: Numbers) -> None:
        self.rails.submit(commands, numbers)

    def _commands_forth(self) -> list[Command]:
        """A dispatch."""
        program, slabs, staged = self._program, self._slabs, self._memory.staged_places
        sizes = program.sizes(self._taken_on.max_sources, self._programs)
        self._commands = RailCommands(program, self.rails, slabs, staged, sizes)
        commands = self._commands.forth()
        if self.may_drop:
            acknowledge = program.load("hop", "acknowledge", ("call",))
            memory = slabs.memory
            receipts = self.rails.between(memory.receipts_out, memory.receipts)
            commands.append(self.rails.command(receipts, is_told=True))
            commands.append(Launch(acknowledge, "one"))
        return commands if self._reply is None else self._reply.around(commands)

    def _commands_back(self) -> list[Command]:
        """A combine."""
        return self._commands.back()

    def _lasting_numbers(self, index: int) -> dict[str, int]:
        taken_on = self._taken_on.max_sources
        return {
            **super()._lasting_numbers(index),
            **{name: address(column) for name, column in self._own[index].items()},
            **self._slabs.rows_at,
            "call": self._tables[index].data_ptr(),
            "num_sources": taken_on,
            "weights": address(self._buffers[index]["weights"]),
            **self._program.sizes(taken_on, self._programs),
            "programs": min(self._programs.dispatch, self._num_items),
            **self._commands.numbers,
        }

    @property
    def _num_items(self) -> int:
        """Segments, of all ranks of the node, each of which is a program's at most."""
        return self._members.topology.ranks_per_node * self._taken_on.max_sources

    def _someone_joined(self) -> bool:
        """Whether any rank has joined the dispatch, which is the latest one."""
        num_ranks, columns = self._members.topology.num_ranks, self._program.num_columns
        counts = self._memory.part("counts", torch.int32, 2 * num_ranks * (columns + 1))
        # Behind it that of its reply has ended, without counts.
        planned = int(self.state[PLAN_EPOCH]) - (self._reply is not None)
        parity = planned & 1
        return bool((counts.view(2, num_ranks, columns + 1)[parity, :, columns] >= 0).any())

    def _next_entry(self) -> RingEntry:
        entry = super()._next_entry()
        if entry.captured:
            self._check_capture()
        return entry

    def _check_capture(self) -> None:
        """Raise unless a CUDA graph can have what travels."""
        if not self._members.is_one_host:
            why = "between hosts a graph would wait for threads of NCCL's"
            problem = f"cannot be captured by a CUDA graph: {why}"
            raise InputError(self.shuffle.name, self._members.rank, problem)

    def _allocate_segments(self) -> list[Tensor]:
        # What else a handle has of its own segments.
        entries = range(self.limits.num_entries)
        self._own = [new_points(self._program, self.limits.max_sources) for _ in entries]
        fanout = self.shuffle.program.fanout
        self._own_ranks = [own["rank"].view(-1, fanout) for own in self._own]
        return super()._allocate_segments()

    def _new_rails(self, members: Membership, measures: bool) -> Rails:
        return Rails(members, measures)

    def _may_drop(self, shuffle: ShuffleSpec, limits: Limits) -> bool:
        """Whether a point may find no slot: a given one may be none, or another's; others may be
        too few."""
        if shuffle.program.target.kind == "dense":
            return True
        num_ranks = self._members.topology.num_ranks
        return limits.capacity < worst_capacity(shuffle, num_ranks, limits.max_sources)

    def _new_memory(self, allocate: Allocate) -> TritonMemory:
        sizes = self._taken_on, allocate, self.limits.num_entries
        return TritonMemory(self._program, *sizes, slab_places=self._slab_places)

    def _new_scratch(self) -> dict[str, Tensor]:
        return new_scratch(self._program, self._taken_on.max_sources)

    def _new_buffers(self, index: int) -> dict[str, Tensor]:
        num_sources = self._taken_on.max_sources
        shape = (num_sources, self.shuffle.program.fanout)
        weights = torch.zeros(shape, dtype=torch.float32, device=self._device)
        return {**new_buffers(self._program, num_sources), "weights": weights}

    def _words(self, index: int) -> dict[str, int]:
        points = self._own[index]
        own = {
            "own_ranks": address(points["rank"]),
            "own_keys": address(points[self._program.place]),
            "receipts_travel": int(self.may_drop),
        }
        return super()._words(index) | own | rail_words(self._program, self.rails, self._slabs)
