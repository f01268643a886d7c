"""The Triton kernels of one node: windows, tables and launches, with the face of `CudaNode`.

A dispatch is five launches: the relation, three of the planner, and the rows; where the relation
gives slots, the planner has two. Short rows take three in all: see ``kernels/device/sort.py``. They
only enqueue work, so a CUDA graph can capture them; on the CPU they are interpreted, one program at
a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.rails import Rails
from fuscoc_runtime.comm.windows import Allocate, allocator
from fuscoc_runtime.engine.node.prepared import Prepared
from fuscoc_runtime.engine.node.ragged import LEFT_OUT, POINTS_AT_ONCE, EntrySizes, RaggedSizes
from fuscoc_runtime.engine.node.rings import HandleRings, Launched, RingEntry
from fuscoc_runtime.engine.node.schedule import Programs
from fuscoc_runtime.engine.node.state import Limits, new_state
from fuscoc_runtime.engine.node.triton_memory import (
    TritonMemory,
    call_words,
    new_buffers,
    new_scratch,
    new_segments,
)
from fuscoc_runtime.engine.node.triton_program import COMBINED, TritonProgram
from fuscoc_runtime.kernels.commands import (
    Command,
    CommandList,
    Launch,
    Numbers,
    carry_out,
)
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import NodeSpec, ShuffleSpec

if TYPE_CHECKING:
    from fuscoc_runtime.engine.node.answers import AnsweringNode

MAX_FORMS = 64
"""Dispatches of so many different sizes are remembered."""

RAGGED_TABLES = ("outer", "point_offset", "cell_offset")
"""Of `RaggedSizes`, what the relation of a ragged domain is given."""


class TritonNode:
    """A shuffle among the ranks of one node; construction is collective over ``members``."""

    max_entries: int | None = None
    rails: Rails | None = None
    is_out_of_step = False
    _combine_an_sm = 4  # programs, as many as registers hold
    _lends = _has_few_sms = False  # whether results may be lent; see `has_few_sms`
    _reply: AnsweringNode | None = None

    def __init__(
        self,
        artifact: Artifact,
        shuffle: ShuffleSpec,
        node: NodeSpec,
        members: Membership,
        limits: Limits,
        num_sms: int | None,
    ) -> None:
        self.shuffle, self.spec, self.limits = shuffle, node, limits
        self.zeroes_results = node.places_results
        self._program = TritonProgram(
            artifact, shuffle, node, members, self._lends, self._has_few_sms
        )
        if limits.capacity > (most := self._program.most_slots):
            raise ValueError(f"a capacity of {limits.capacity} is beyond {most}")
        self._device, self._interpreted = members.device, self._program.interpreted
        if shuffle.program.relation.extents_kernel is not None:
            self._leave_out = self._program.load("ragged", "leave_out", LEFT_OUT)
        members.meet("opening")  # a rank that has no kernels does not come
        self._memory = self._new_memory(allocator(members))
        self.rows = self._memory.rows
        self.state, self.page = self._new_state()
        self._scratch = self._new_scratch()
        entries = range(limits.num_entries)
        self._buffers = [self._new_buffers(index) for index in entries]
        self._segments = self._allocate_segments()
        self.rings = self._new_rings()
        num_words = self._program.word_places["num_words"]
        self._tables = [
            torch.zeros(num_words, dtype=torch.int64, device=self._device) for _ in entries
        ]
        self.configure(self._program.model(num_sms, self._combine_an_sm))

    def configure(self, programs: Programs) -> None:
        """Use ``programs`` from the next call on; every rank must set the same groups."""
        self._programs = programs
        self._forth = self._list_forth()
        back = self._commands_back() if self._program.combines else ()
        self._back = self._program.listed(back, self._varied_back)
        lasting = {"state": address(self.state), "page": address(self.page)}
        for index, table in enumerate(self._tables):
            words = self._memory.table(index, programs, **lasting, **self._words(index))
            table.copy_(torch.tensor(words))
        self._lasting = [self._lasting_numbers(index) for index in range(len(self._tables))]
        self.forget()

    def answered_by(self, reply: AnsweringNode) -> None:
        """Let dispatches leave what the kernels of a reply need."""
        self._reply = reply
        self._forth = self._list_forth()
        self.forget()

    def forget(self) -> None:
        """What calls have been prepared with is not so any more."""
        self._prepared: dict[tuple[tuple[int, ...], int, int], Prepared] = {}

    def buffers_of(self, index: int) -> Mapping[str, torch.Tensor]:
        """What belongs to the handles of a ring entry."""
        return self._buffers[index]

    def dispatch(
        self,
        source: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        extents: Sequence[int],
        num_sources: int,
        weights: torch.Tensor | None = None,
        num_slots: int = 0,
        ragged: RaggedSizes | EntrySizes | None = None,
    ) -> Launched:
        """Move every segment to its slots; the target's fields are ``rows`` afterwards.

        ``source`` are the contiguous tensors of the fields, ``inputs`` and ``extents`` those of the
        relation in the spec's order, ``weights`` f32 [num_sources, fanout] for a weighted combine,
        or those of the reply.
        A dense target has ``num_slots`` on this rank. Of a ``ragged`` domain ``num_sources`` is
        what there is room for; its points beyond the last one are dropped.
        """
        assert not isinstance(ragged, EntrySizes), "they are evaluated before"
        form = (tuple(extents), num_sources, num_slots)
        prepared = self._prepared.get(form)
        if prepared is None:
            if len(self._prepared) >= MAX_FORMS:
                self._prepared.clear()
            prepared = self._prepared[form] = self.prepared(*form)
        entry, begun = self._next_entry(), self._program.bits_of_cells(source)
        handle = self.launched(entry, num_sources, weights, num_slots, ragged)
        if handle.row_index is not None:  # before the peers know that this rank joins the call
            handle.row_index.fill_(-1)
        at = [0 if each is None else address(each) for each in (weights, begun)]
        given = [address(each) for each in (*source, *inputs)]
        numbers = prepared.fill(entry.index, (entry.ticket, *at, *given))
        if ragged is not None:
            values = self._forth.values(numbers)
            self._evaluate_ragged(values, ragged, self._ragged_columns(entry))
            numbers = self._forth.numbers(values)
        self._submit(self._forth, numbers)
        return handle

    def prepared(self, extents: Sequence[int], num_sources: int, num_slots: int = 0) -> Prepared:
        """All dispatches of so many segments with these extents, until the next `configure`."""
        program = self._program
        alike = {
            **program.sizes_given(extents),
            **program.placement,
            **program.sizes(num_sources, self._programs),
            **program.points(num_sources),
            "num_sources": num_sources,
            "num_slots": num_slots,
            "weights": 0,
        }
        numbers = [
            {**lasting, **alike, "call": table.data_ptr(), **self._answering(index, num_sources)}
            for index, (lasting, table) in enumerate(zip(self._lasting, self._tables, strict=True))
        ]
        return Prepared(self._forth, numbers, self._varied, self.rails)

    def launched(
        self,
        entry: RingEntry,
        num_sources: int,
        weights: torch.Tensor | None = None,
        num_slots: int = 0,
        ragged: RaggedSizes | None = None,
    ) -> Launched:
        """What is left of a dispatch into an entry's memory; see `dispatch`."""
        buffers = self._buffers[entry.index]
        handle = Launched(
            entry,
            num_sources,
            buffers["codes"],
            buffers["key_counts"],
            buffers["key_starts"],
            buffers["routing"],
            weights if self._reply is None else None,
            self._row_index(entry),
            self._claims(entry),
            num_slots,
            ragged,
        )
        if self._reply is not None:
            self._reply.adopt(handle, weights)
        return handle

    def combine(
        self,
        rows: Sequence[torch.Tensor],
        handle: Launched,
        results: Sequence[torch.Tensor],
        rows_ticket: int = 0,
    ) -> Sequence[torch.Tensor]:
        """Reduce each segment's rows [num_slots, elements] of every field, weighted, into
        ``results``, or copy them.

        ``rows_ticket`` is that of the dispatch which put the rows into the window, if they are
        there. Where sums cannot be made they are NaN; see `CudaNode.combine`.
        """
        programs = self._programs_back(handle.num_sources, results)
        values = {"rows_ticket": rows_ticket, "programs": programs}
        values |= self._program.fields_back(rows, results)
        self._bring_back({**self._values(handle), **values}, handle, results)
        return results

    def _bring_back(
        self, values: dict[str, int], handle: Launched, results: Sequence[torch.Tensor]
    ) -> None:
        """Enqueue a combine of these numbers; one that this rank does not join has no results."""
        self._back.submit(self._back.numbers(values))

    def _programs_back(self, num_sources: int, results: Sequence[torch.Tensor]) -> int:
        """Programs of a combine."""
        return self._programs.combine

    def prepared_back(self, num_sources: int) -> Prepared:
        """All combines of so many segments, until the next `configure`."""
        alike = {"programs": self._programs.combine, "num_sources": num_sources}
        numbers = [{**alike, "call": table.data_ptr()} for table in self._tables]
        return Prepared(self._back, numbers, self._varied_back, self.rails)

    @property
    def _varied(self) -> list[str]:
        """The numbers of a dispatch that differ from call to call: its ticket, the addresses of
        weights and of what is begun, and those of fields and inputs."""
        program = self.shuffle.program
        weights = "weights" if self._reply is None else "reply.weights"
        names = ["ticket", weights, "begun", *program.read]
        return names + [f"input.{name}" for name in program.inputs]

    @property
    def _varied_back(self) -> list[str]:
        """Those of a combine: the tickets of its handle and of its rows, the address of weights,
        and those of rows and results and bytes of these."""
        fields = [field.name for field in self.shuffle.program.buffers["source"]]
        return ["ticket", "rows_ticket", "weights"] + [
            f"{each}.{field}" for each in COMBINED for field in fields
        ]

    def _submit(self, commands: CommandList, numbers: Numbers) -> None:
        """See `CommandList.submit`."""
        commands.submit(numbers)

    def refuse_dispatch(self) -> RingEntry:
        """Take a dispatch's turn without joining it; see `CudaNode.refuse_dispatch`."""
        entry = self._next_entry()
        if entry.captured:  # a capture that fails on this rank; only the rings stay in step
            return entry
        if self._reply is not None:
            self._reply.announce(entry)
        self._program.refuse(self._tables[entry.index].data_ptr(), entry.ticket)
        if self._reply is not None:
            self._reply.refuse(entry)
        return entry

    def refuse_combine(self, handle: Launched) -> None:
        """Take a combine's turn without joining it; sums that need this rank's rows are NaN."""
        values = {"rows_ticket": -1, "programs": 1}
        for field in self.shuffle.program.buffers["source"]:
            values |= dict.fromkeys((f"{each}.{field.name}" for each in COMBINED), 0)
        self._bring_back({**self._values(handle), **values}, handle, ())

    def _list_forth(self) -> CommandList:
        return self._program.listed(self._commands_forth(), self._varied)

    def _commands_forth(self) -> list[Command]:
        """A dispatch."""
        program = self._program
        planning = program.planning(program.sizes(self.limits.max_sources, self._programs))
        commands: list[Command] = [*program.evaluating(), *planning, program.moving()]
        return commands if self._reply is None else self._reply.around(commands)

    def _commands_back(self) -> list[Command]:
        """A combine."""
        return [Launch(self._program.kernels["combine"], "programs")]

    def _lasting_numbers(self, index: int) -> dict[str, int]:
        """What all dispatches into the memory of a ring entry are given alike."""
        addresses = self.shuffle.program.relation.addresses
        return {
            **{name: address(column) for name, column in self._scratch.items()},
            **dict(zip(addresses, map(address, self._segments[index]), strict=True)),
            **self._program.rows_there(self._memory.sections["rows"]),
            **dict.fromkeys(RAGGED_TABLES, 0),
        }

    def _answering(self, index: int, num_sources: int) -> dict[str, int]:
        """What the commands of a reply are given of so many segments."""
        return {} if self._reply is None else self._reply.adopting(index, num_sources)

    def _evaluate_ragged(
        self, values: dict[str, int], sizes: RaggedSizes, columns: Iterable[torch.Tensor]
    ) -> None:
        """Launch the relation of a ragged domain before the other commands, and drop its points
        that there are not, of whom ``columns`` tell."""
        values |= {name: address(getattr(sizes, name)) for name in RAGGED_TABLES}
        carry_out(self._program.evaluating(), values)
        values["relation_programs"] = 0
        first, second = columns
        at = [address(each) for each in (sizes.totals, first, second)]
        self._leave_out.start([len(first), *at], -(-len(first) // POINTS_AT_ONCE))

    def _ragged_columns(self, entry: RingEntry) -> list[torch.Tensor]:
        """What tells of the points of a dispatch where they go."""
        return [self._scratch[name] for name in ("rank", self._program.place)]

    def _next_entry(self) -> RingEntry:
        is_captured = not self._interpreted and torch.cuda.is_current_stream_capturing()
        return self.rings.next(is_captured)

    @property
    def places(self) -> int:
        """Source segments of a rank that tables have room for."""
        return self.limits.max_sources

    @property
    def window_bytes(self) -> int:
        """Bytes of this rank's window."""
        return self._memory.window.local.numel()

    @property
    def private_bytes(self) -> int:
        """Bytes of the planner's and the handles' tables."""
        tables = [*self._scratch.values(), *{id(each): each for each in self._segments}.values()]
        tables += [each for buffers in self._buffers for each in buffers.values()]
        return sum(each.nbytes for each in tables)

    def points(self, handle: Launched) -> torch.Tensor:
        """int64 [num_ranks, max_sources, fanout]: code and weight bits, as the peers wrote them."""
        return self._memory.points(handle.entry.index)

    def _row_index(self, entry: RingEntry) -> torch.Tensor | None:
        if not self._program.is_compact:
            return None
        return self._memory.part("row_index", torch.int64, self.limits.capacity, entry.index)

    def _claims(self, entry: RingEntry) -> torch.Tensor | None:
        if not self._program.is_dense:
            return None
        return self._memory.part("claims", torch.int32, self.limits.capacity, entry.index)

    def _values(self, handle: Launched) -> dict[str, int]:
        """What the launches of a handle pass alike."""
        table = self._tables[handle.entry.index].data_ptr()
        weights = 0 if handle.weights is None else address(handle.weights)
        return self._program.values(table, handle, weights)

    def _new_memory(self, allocate: Allocate) -> TritonMemory:
        return TritonMemory(self._program, self.limits, allocate, self.limits.num_entries)

    def _new_scratch(self) -> dict[str, torch.Tensor]:
        """What kernels of one dispatch hand to each other."""
        return new_scratch(self._program, self.limits.max_sources)

    def _new_state(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The state and the page."""
        return new_state(self._program.members.topology.num_ranks, self._device)

    def _new_rings(self) -> HandleRings:
        """What deals out entries."""
        return HandleRings(self.limits.num_handles)

    def _new_buffers(self, index: int) -> dict[str, torch.Tensor]:
        """What belongs to the handles of an entry."""
        return new_buffers(self._program, self.limits.max_sources)

    def _words(self, index: int) -> dict[str, int]:
        """Words of the table of handles with that entry: where their calls find all this."""
        segments, buffers = self._segments[index], self._buffers[index]
        return call_words(self._program, self._scratch, segments, buffers)

    def _allocate_segments(self) -> list[torch.Tensor]:
        """Where the segments of every handle lie, which share them if combine needs none."""
        entries = range(self.limits.num_entries)
        if self._program.combines and self.spec.places_results:
            return [new_segments(self._program, self.limits.max_sources) for _ in entries]
        return [new_segments(self._program, self.limits.max_sources)] * len(entries)
