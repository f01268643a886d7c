"""Calls of exact sizes between nodes, of one number of places in every slab: their lists, tables
and numbers, of which only little differs from call to call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fuscoc_runtime.comm.rails import Rails
from fuscoc_runtime.engine.node.exact import ENTRY, Known, Work, telling_programs
from fuscoc_runtime.engine.node.rail_commands import RailCommands, packing, rail_words
from fuscoc_runtime.engine.node.rings import Launched, Sent
from fuscoc_runtime.engine.node.schedule import Programs
from fuscoc_runtime.engine.node.slabs import SlabMemory, Slabs
from fuscoc_runtime.engine.node.triton_memory import (
    BACK,
    TritonMemory,
    call_words,
    new_buffers,
    new_points,
    new_segments,
    segment_words,
    uploaded,
    with_words,
)
from fuscoc_runtime.engine.node.triton_program import TritonProgram
from fuscoc_runtime.engine.relation import Ragged
from fuscoc_runtime.kernels.commands import Command, CommandList, Launch
from fuscoc_runtime.kernels.loader import Kernel, address

TELLING = {"num_sources": "told_sources", "number": "tells"}
"""Numbers of what goes before a combine that have other names in its list."""


@dataclass(frozen=True, eq=False)
class RailWork(Work):
    """Of this rank's ``own`` points, int64 by name their ranks and keys, and where its ``segments``
    lie; ``buffers`` are of what it takes on. There is no ``scratch``: all calls share some."""

    places: int
    own: dict[str, Tensor]

    @property
    def tensors(self) -> list[Tensor]:
        """All of it."""
        return [*self.buffers.values(), self.segments, *self.own.values()]


def new_work(program: TritonProgram, num_sources: int, places: int) -> RailWork:
    """For a dispatch of so many segments of this rank, with so many places for any rank's."""
    taken_on = program.num_nodes * places
    shape = taken_on, program.shuffle.program.fanout
    buffers = new_buffers(program, taken_on)
    buffers["weights"] = torch.empty(shape, dtype=torch.float32, device=program.device)
    own = new_points(program, num_sources)
    return RailWork(buffers, new_segments(program, num_sources), {}, places, own)


@dataclass(frozen=True, eq=False)
class RailKnown(Known):
    """``launched`` is of the segments that this rank has taken on, but for its ``sent``.

    Attributes:
        work: memory of the dispatch, with places for as many segments of every rank.
        inputs, extents: of the relation, by name; no caller changes them.
        ragged: where the segments of a ragged domain are.
    """

    work: RailWork
    inputs: Mapping[str, Tensor]
    extents: Mapping[str, int]
    ragged: Ragged | None

    @property
    def num_sources(self) -> int:
        """This rank's own."""
        assert self.launched.sent is not None
        return self.launched.sent.num_sources

    @property
    def tensors(self) -> list[Tensor]:
        tables = () if self.ragged is None else vars(self.ragged).values()
        return [*super().tensors, *self.work.tensors, *self.inputs.values(), *tables]


def answers_to(asked: RailKnown, program: TritonProgram, each: int) -> RailKnown:
    """The routing of the reply, by ``program``, to a dispatch of which it answers ``each`` so many
    segments with one: of the same points and weights, with memory of its own."""
    places, own = asked.work.places // each, asked.num_sources // each
    taken_on, fanout = program.num_nodes * places, program.shuffle.program.fanout
    buffers, segments = new_buffers(program, taken_on), new_segments(program, own)
    launched, come = asked.launched, asked.launched.weights
    assert launched.sent is not None
    launched = replace(
        launched,
        num_sources=taken_on,
        codes=launched.codes.view(taken_on, fanout),
        routing=buffers["routing"],
        weights=None if come is None else come.view(taken_on, fanout),
        sent=Sent(own, launched.sent.ranks.view(own, fanout)),
    )
    sources, first = tuple(count // each for count in asked.sources), buffers["first_slots"]
    work = RailWork(buffers, segments, {}, places, asked.work.own)
    return RailKnown(
        launched, asked.number, asked.slots, sources, asked.num_rows, segments, first, work,
        asked.inputs, asked.extents, asked.ragged,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Shared:
    """Memory of all calls with up to so many ``places``, in slabs up to those ``with_rows``, and
    the ``work`` of those that this rank refuses, which takes none anew."""

    places: int
    with_rows: int
    slabs: SlabMemory
    scratch: dict[str, Tensor]
    work: RailWork

    @property
    def num_bytes(self) -> int:
        """Bytes of all this."""
        tensors = [*self.scratch.values(), *self.work.tensors]
        return self.slabs.num_bytes + sum(each.nbytes for each in tensors)


class Submitted(NamedTuple):
    """The table and the numbers of a call, for more of it to be enqueued."""

    table: Tensor
    numbers: dict[str, int]


@dataclass(frozen=True, eq=False)
class RailCall:
    """What differs between dispatches.

    Attributes:
        tag: what their slabs are told by.
        again: the number of the dispatch whose routing it follows; None if it plans.
        num_sources: this rank's own segments that there are places for.
        says: another number than that, which this rank tells the others; 0: the same.
        num_slots: of a dense target on this rank.
    """

    tag: int
    again: int | None
    num_sources: int
    says: int = 0
    num_slots: int = 0


def call_tag(number: int, known: int, has_weights: bool = False) -> int:
    """What the slabs of dispatch ``number`` along the routing of another are told by. Ranks that
    differ in whether weights travel with the rows are found out: combines would send others."""
    return has_weights << 62 | known << 32 | number


class RailCalls:
    """Calls with so many places, in windows and slabs as they are now."""

    def __init__(
        self,
        program: TritonProgram,
        rails: Rails,
        slabs: Slabs,
        memory: TritonMemory,
        programs: Programs,
        scratch: dict[str, Tensor],
        lasting: Mapping[str, int],
        kernels: Mapping[str, Kernel],
        places: int,
    ) -> None:
        """``scratch`` has room for these calls or larger ones, ``lasting`` are words of every
        table, and ``kernels``, by name, those that are no shuffle's own; `judge` is among them if
        nodes tell each other verdicts."""
        self._scratch, self._kernels = scratch, kernels
        self.slabs, self._program, self._rails, self._places = slabs, program, rails, places
        self._device, self._programs = program.device, programs
        self._taken_on = taken_on = program.num_nodes * places
        sizes = program.sizes(taken_on, programs)
        commands = RailCommands(program, rails, slabs, memory.staged_places, sizes)
        self._meet = Launch(kernels["again"], "meets")
        self._departs, self._arrives = (
            Launch(kernels["told"], "one", {"place": place}) for place in ("departure", "arrival")
        )
        self._tell = Launch(kernels["tell"], "telling", TELLING)
        self._forth, self._landed, self._back = self._lists(commands)
        words = {**lasting, **rail_words(program, rails, slabs), "stride": places}
        self._tables = [memory.table(entry, programs, **words) for entry in (0, BACK)]
        alike = {
            **commands.numbers,
            "call": 0,
            "ticket": ENTRY.ticket,
            "told": rails.told,
            "departure": 0,
            "arrival": 1,
            "num_sources": taken_on,
            "fanout": program.shuffle.program.fanout,
        }
        items = program.num_ranks * taken_on
        self._numbers_forth = {
            **alike,
            **{name: address(column) for name, column in self._scratch.items()},
            **program.rows_there(memory.sections["rows"]),
            **slabs.rows_at,
            **sizes,
            "programs": min(programs.dispatch, items),
        }
        self._numbers_back = {
            **alike, "programs": min(programs.combine, items), "refuses": 0,
        }  # fmt: skip

    def _lists(self, commands: RailCommands) -> tuple[CommandList, CommandList, CommandList]:
        """Of dispatches, of that what is behind the network, and of combines."""
        judging = self._judging()
        landed = [self._departs, *commands.landed(judging), self._arrives]
        back = [self._tell, *commands.back()] if self._program.combines else []
        forth = commands.forth([*judging, self._meet])
        return self._list(forth), self._list(landed), self._list(back)

    def _judging(self) -> list[Command]:
        """What finds out behind the plan whether rows move on any rank."""
        kernels = self._kernels
        if "judge" not in kernels:
            return []
        memory = self.slabs.memory
        verdicts = self._rails.between(memory.receipts_out, memory.receipts)
        agree = [Launch(kernels["agree"], "one", {"joins": "one"})] * self._program.is_dense
        return [
            *agree,
            self._rails.command(verdicts, is_told=True),
            Launch(kernels["judge"], "one"),
        ]

    def _list(self, commands: Sequence[Command]) -> CommandList:
        return self._program.listed(commands)

    def dispatch(self, work: RailWork, call: RailCall, given: Mapping[str, int]) -> Submitted:
        """Enqueue one, with what the relation is ``given``, fields and weights."""
        return self._submit([self._forth], work, call, given)

    def take_on_again(self, work: RailWork, call: RailCall, given: Mapping[str, int]) -> Submitted:
        """Of that what is behind the network."""
        return self._submit([self._landed], work, call, given)

    def refuse(self, work: RailWork, call: RailCall, given: Mapping[str, int]) -> None:
        """A dispatch of no segments, without arguments."""
        self._submit([self._forth], work, call, self._without([self._forth], given))

    def combine(
        self,
        launched: Launched,
        work: RailWork,
        number: int,
        tells: int,
        fields: Mapping[str, int],
        weights: int,
        routing: Tensor,
    ) -> None:
        """Enqueue a combine of dispatch ``number``, with fields and the address of weights;
        ``tells`` is the same number, or -1 if this rank refuses it. ``routing`` is its own."""
        self._bring_back([self._back], launched, work, number, tells, fields, weights, routing)

    def _bring_back(
        self,
        lists: Sequence[CommandList],
        launched: Launched,
        work: RailWork,
        number: int,
        tells: int,
        fields: Mapping[str, int],
        weights: int,
        routing: Tensor,
    ) -> None:
        assert launched.sent is not None
        own, refuses = launched.sent.num_sources, tells < 0
        table = self._table(BACK, {
            **segment_words(work.segments),
            "codes": address(launched.codes),
            "first_slots": address(work.buffers["first_slots"]),
            "routing": address(routing),
            "call_tag": number,
            **self._rows_of(work),
        })  # fmt: skip
        told = 0 if refuses else launched.num_sources
        numbers = self._numbers_back
        most = 1 if refuses else self._programs.combine
        self._carry_out(lists, table, {
            **numbers,
            **fields,
            "programs": min(most, numbers["programs"]),
            "finishing": max(1, min(most, own)),
            "telling": telling_programs(told * numbers["fanout"], self._programs),
            "own_sources": own,
            "told_sources": told,
            "tells": tells,
            "known": address(launched.routing),
            "rows_ticket": -1 if refuses else 0,
            "weights": weights,
        })  # fmt: skip

    def _without(self, lists: Sequence[CommandList], given: Mapping[str, int]) -> dict[str, int]:
        """What a dispatch is given that this rank refuses: 0 for what there is none of."""
        names = {name for each in lists for name in each.names}
        return {**dict.fromkeys(names - self._numbers_forth.keys(), 0), **given}

    def _submit(
        self,
        lists: Sequence[CommandList],
        work: RailWork,
        call: RailCall,
        given: Mapping[str, int],
    ) -> Submitted:
        prepared = self.prepared(work, call, given)
        return self._carry_out(lists, *prepared)

    def prepared(self, work: RailWork, call: RailCall, given: Mapping[str, int]) -> Submitted:
        """What the lists of a dispatch are given."""
        program, again = self._program, call.again
        table = self._table(0, {
            **call_words(program, self._scratch, work.segments, work.buffers),
            "own_ranks": address(work.own["rank"]),
            "own_keys": address(work.own[program.place]),
            "call_tag": call.tag,
            "is_known": int(again is not None),
            **self._rows_of(work),
        })  # fmt: skip
        columns = zip(program.shuffle.program.relation.addresses, work.segments, strict=True)
        weights = address(work.buffers["weights"])
        return Submitted(table, {
            **self._numbers_forth,
            "call": address(table),
            "own_weights": 0,  # where none are given
            **given,
            **{name: address(column) for name, column in (*work.own.items(), *columns)},
            **program.points(call.num_sources),
            **packing(program, self._programs, self._places, call.num_sources),
            "weights": weights,
            "own_sources": call.num_sources,
            "says": call.says,
            "num_slots": call.num_slots,
            "number": again or 0,
            "meets": int(again is not None),
        })  # fmt: skip

    def _rows_of(self, work: RailWork) -> dict[str, int]:
        """Words of a table: where rows travel from and to, if not in slabs."""
        return {}

    def _table(self, entry: int, words: Mapping[str, int]) -> Tensor:
        """It has to live until its call is enqueued."""
        made = with_words(self._tables[entry], words, self._program.word_places)
        return uploaded(made, self._device)

    def _carry_out(
        self, lists: Sequence[CommandList], table: Tensor, numbers: dict[str, int]
    ) -> Submitted:
        numbers["call"] = address(table)
        for each in lists:
            self._rails.submit(each, each.numbers(numbers))
        return Submitted(table, numbers)
