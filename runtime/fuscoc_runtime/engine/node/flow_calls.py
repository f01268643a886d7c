"""Calls of exact sizes between nodes whose rows travel as flows: only those that go to a node, by
the ranks and in the stages of a policy.

What is said of points travels in slabs and along rails, as in other calls (`rail_calls`). How large
flows are is known with it, so the host, which waits for the counts of slots, knows the ways of all
rows, too. Then they leave the slabs that they were packed in for memory of whoever sends them, and
go from where they land into the slabs from which the kernels of a node move them on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fuscoc_runtime.comm.rails import Beside
from fuscoc_runtime.comm.requests import Rows as Bytes
from fuscoc_runtime.comm.requests import StartRound
from fuscoc_runtime.engine.node.flow_memory import SIDES, FlowMemory, Rows
from fuscoc_runtime.engine.node.rail_calls import RailCall, RailCalls, RailWork, Submitted
from fuscoc_runtime.engine.node.rail_commands import RailCommands
from fuscoc_runtime.engine.node.report import signed
from fuscoc_runtime.engine.node.rings import Launched
from fuscoc_runtime.engine.node.triton_memory import uploaded
from fuscoc_runtime.engine.node.triton_program import TritonProgram
from fuscoc_runtime.engine.node.ways import Leg, Span, Ways
from fuscoc_runtime.kernels.commands import Await, Command, CommandList, Exchange, Launch
from fuscoc_runtime.kernels.loader import Kernel, address
from fuscoc_runtime.plan.flows import Demand

KERNELS = {
    "number": (("call", "has_landed", "fanout", "numbers", "counts"), 8),
    "share": (("call", "own", "landed", "width", "bases", "told", "stamp"), 1),
    "pass_by": (("call", "follows", "returns"), 1),
    "carry": (
        ("num_nodes", "stride", "parts_of_flows", "numbers", "num_ranks", "bases", "memory_at",
         "slab", "slab_bytes", "row_bytes", "comes"), 4,
    ),
}  # fmt: skip
"""Of kernels/device/flows.py, what they are given, and warps of a program."""


@dataclass(frozen=True, eq=False)
class FlowWork(RailWork):
    """Also of every place the ``numbers`` of its rows in the flows to and from every node, int32
    [2, num_nodes, places]."""

    numbers: Tensor

    @property
    def tensors(self) -> list[Tensor]:
        """All of it."""
        return [*super().tensors, self.numbers]


@dataclass(frozen=True, eq=False)
class Going:
    """The ways of one dispatch, with what kernels read of them: int64 [2, num_nodes,
    ranks_per_node, PART], of ``own`` and of ``others``; rows travel on so many lanes."""

    ways: Ways
    parts: Tensor
    num_lanes: int


def going(ways: Ways, num_lanes: int, device: torch.device) -> Going:
    """Ways, as kernels read them."""
    both = torch.stack([torch.from_numpy(each) for each in (ways.own, ways.others)])
    return Going(ways, uploaded(both.flatten().tolist(), device).view(both.shape), num_lanes)


def flow_kernels(program: TritonProgram) -> dict[str, Kernel]:
    """Those of kernels/device/flows.py, compiled."""
    return {name: program.load("flows", name, *each) for name, each in KERNELS.items()}


class Counts:
    """What ranks tell each other of flows, int64; a row has those to every node, then the segments
    to every rank.

    Attributes:
        own: [columns]; ``landed`` [num_nodes, columns], of the ranks of this place.
        told: [ranks_per_node, num_nodes, columns], of all ranks, in the host's memory.
    """

    def __init__(self, program: TritonProgram) -> None:
        self._shape = program.num_nodes, program.num_ranks
        n, m = self._shape
        self.columns = n + n * m
        device = program.device
        self.own = torch.zeros(self.columns, dtype=torch.int64, device=device)
        self.landed = torch.zeros(n, self.columns, dtype=torch.int64, device=device)
        on_gpu = device.type == "cuda"
        self.told = torch.zeros(m, n, self.columns, dtype=torch.int64, pin_memory=on_gpu)

    def demand(self, stamp: int) -> Demand:
        """The flows of the dispatch with that stamp, whose slots have been reported: its words may
        come behind those of the report, but they have been written."""
        told = self.told.numpy()
        while not (told >> 32 == signed(stamp)).all():
            os.sched_yield()
        n, m = self._shape
        by_rank = (told & 0xFFFFFFFF).transpose(1, 0, 2).reshape(n * m, self.columns)
        flows, copies = by_rank[:, :n], by_rank[:, n:]
        return Demand(np.ascontiguousarray(flows), np.ascontiguousarray(copies))


@dataclass(frozen=True)
class Carried:
    """Rows between slabs and memory as they travel, in one direction of one call.

    Attributes:
        side: of the memory, by its place in `SIDES`; that of rows which this rank sends has the
            parts and numbers of its own flows.
        comes: whether they go into slabs.
    """

    name: str
    side: int
    comes: int

    def launches(self, carry: Kernel, num_fields: int) -> list[Launch]:
        """One for each field."""
        alike = {"num_nodes": "nodes", "stride": "places", "num_ranks": "ranks_of_node"}
        alike |= {name: f"{self.name}.{name}" for name in ("parts_of_flows", "numbers", "comes")}
        alike["slab_bytes"] = f"{self.name}.slab_bytes"
        return [
            Launch(
                carry,
                "carrying",
                alike
                | {name: f"{self.name}.{name}.{i}" for name in ("memory_at", "slab", "row_bytes")},
            )
            for i in range(num_fields)
        ]

    def numbers(
        self, slabs: Tensor, rows_at: Sequence[int], fields: Sequence[Rows], memory: FlowMemory,
        work: FlowWork, going: Going,
    ) -> dict[str, int]:  # fmt: skip
        """What they are given, where the rows of ``fields`` begin in slabs at ``rows_at``."""
        numbers = {
            "parts_of_flows": address(going.parts[self.side]),
            "numbers": address(work.numbers[self.side]),
            "comes": self.comes,
            "slab_bytes": slabs.shape[1],
        }
        for i, (at, rows) in enumerate(zip(rows_at, fields, strict=True)):
            numbers[f"memory_at.{i}"] = memory.sections[SIDES[self.side]] + rows.at
            numbers[f"slab.{i}"] = address(slabs) + at
            numbers[f"row_bytes.{i}"] = rows.row_bytes
        return {f"{self.name}.{name}": each for name, each in numbers.items()}


LEAVES, LANDS = Carried("leaves", 0, 0), Carried("lands", 1, 1)
TURNS, RETURNS = Carried("turns", 1, 0), Carried("returns", 0, 1)
"""Of a dispatch, then of a combine, on both sides of the network."""


class FlowCalls(RailCalls):
    """Calls with so many places, in windows, slabs and ``memory`` as they are now."""

    def __init__(
        self,
        *given: Any,
        memory: FlowMemory,
        counts: Counts,
        flows: Mapping[str, Kernel],
        num_programs: int,
    ) -> None:
        """``given`` as for `RailCalls`; so many programs carry rows."""
        self._memory, self._counts, self._flows = memory, counts, flows
        self._num_programs, self._lanes = num_programs, dict[int, Beside]()
        super().__init__(*given)

    def dispatch(self, work: RailWork, call: RailCall, given: Mapping[str, int]) -> Submitted:
        """Enqueue what comes before the rows of one."""
        return super().dispatch(work, call, {**self._found(work), **given})

    def take_on_again(self, work: RailWork, call: RailCall, given: Mapping[str, int]) -> Submitted:
        """Of that what is behind the network."""
        return super().take_on_again(work, call, {**self._found(work), **given})

    def move(
        self, work: RailWork, call: RailCall, submitted: Submitted, going: Going | None
    ) -> None:
        """What follows: the rows, or, without ways, their place in the order of calls alone."""
        lists, numbers = [self._moving], dict[str, int]()
        if going is not None:
            numbers = {"follows": -1 if call.again is None else call.again, "returns": 0}
            lists = [*self._travelling((LEAVES, LANDS), going), self._moving]
            forth, memory = self._memory.forth, self.slabs.memory
            at = list(self.slabs.rows_at.values())
            numbers |= self._carried(LEAVES, memory.out, at, forth, work, going)
            numbers |= self._carried(LANDS, memory.landed, at, forth, work, going)
        self._carry_out(lists, submitted.table, {**submitted.numbers, **numbers})

    def refuse(
        self,
        work: RailWork,
        call: RailCall,
        given: Mapping[str, int],
        going: Going | None = None,
    ) -> None:
        """A dispatch of no segments, without arguments. Along known ways this rank sends and gets
        what others expect it to."""
        given = {**self._without([self._forth, self._moving], given), **self._found(work)}
        self.move(work, call, self.dispatch(work, call, given), going)

    def bring_back(
        self,
        launched: Launched,
        work: RailWork,
        number: int,
        tells: int,
        fields: Mapping[str, int],
        weights: int,
        routing: Tensor,
        going: Going,
    ) -> None:
        """A combine, as `RailCalls.combine`."""
        back, memory, at = self._memory.back, self.slabs.memory, [self.slabs.sums_at]
        turns = self._carried(TURNS, memory.back_out, at, back, work, going)
        returns = self._carried(RETURNS, memory.back, at, back, work, going)
        lists = [self._back, *self._travelling((TURNS, RETURNS), going), self._finishing]
        fields = {**fields, **turns, **returns, "follows": number, "returns": 1}
        self._bring_back(lists, launched, work, number, tells, fields, weights, routing)

    def _lists(self, commands: RailCommands) -> tuple[CommandList, CommandList, CommandList]:
        slabs, counts = self.slabs, self._counts
        memory = slabs.memory
        number = self._flows["number"]
        self._begun = Launch(self._kernels["told"], "one", {"place": "begun"})
        leave = Launch(number, "nodes", {"has_landed": "zero", "numbers": "numbers.own"})
        land = Launch(
            number, "nodes", {"has_landed": "one", "numbers": "numbers.others", "counts": "zero"}
        )
        said = self._rails.between(memory.out, memory.landed, slabs.without_rows())
        counted = self._rails.between(counts.own.expand_as(counts.landed), counts.landed)
        exchange = self._rails.command(_both(said, counted), is_told=True)
        share = Launch(self._flows["share"], "one", {"told": "told_counts"})
        planning = commands.planning()
        forth: list[Command] = [*commands.packing(), leave, exchange, self._ended, land, share]
        forth += [*planning, self._meet]
        self._moving = self._list([*commands.moving(), self._ended])
        num_fields = len(self._memory.forth)
        self._carrying = {
            each.name: self._list(self._carry(each, count))
            for each, count in ((LEAVES, num_fields), (LANDS, num_fields), (TURNS, 1), (RETURNS, 1))
        }
        back = list[Command]()
        if self._program.combines:
            sums = self._rails.between(memory.back_out, memory.back, slabs.without_sums())
            back = [self._tell, *commands.collecting(0), self._rails.command(sums, is_told=True)]
            self._finishing = self._list(commands.finishing())
        return self._list(forth), self._list(planning), self._list(back)

    def _carry(self, each: Carried, num_fields: int) -> list[Launch]:
        """With what lets no rank go on before its neighbours have moved what it sends, or have got
        what it moves; the host is told before rows travel that do not fit."""
        launches, pass_by = each.launches(self._flows["carry"], num_fields), self._flows["pass_by"]
        if not each.comes:
            return [*launches, Launch(pass_by, "one")]
        if self._program.num_ranks == 1:
            return launches
        return [Launch(pass_by, "one", {"follows": "nothing"}), *launches]

    def _travelling(self, both: tuple[Carried, Carried], going: Going) -> list[CommandList]:
        """Rows, from slabs to slabs; nothing where none go anywhere."""
        ways, (leaves, lands) = going.ways, both
        if ways.most_rows == 0:
            return []
        is_back = leaves.side == 1
        legs = [each.back if is_back else each for each in ways.legs]
        travel = self._list([self._begun, *self._stages(legs, both, is_back, going.num_lanes)])
        return [self._carrying[leaves.name], travel, self._carrying[lands.name]]

    def _stages(
        self, legs: Sequence[Leg], both: tuple[Carried, Carried], is_back: bool, num_lanes: int
    ) -> list[Command]:
        """A part of every stage on every lane, whose next one it begins by itself."""
        fields = self._memory.back if is_back else self._memory.forth
        sides = [SIDES[each.side] for each in both]
        last, made = dict[int, Exchange](), list[Command]()
        for number, lane in product(range(len(legs)), range(num_lanes)):
            leg = legs[number].part(lane, num_lanes)
            if not (leg.sends or leg.gets):
                continue
            rows = [self._bytes(*each, fields) for each in zip(leg, sides, strict=True)]
            beside = self._lane(lane)
            if beside is not None and lane in last:
                beside = beside.behind()
            what = StartRound(0, 0, *rows)
            last[lane] = self._rails.command(what, is_told=True, beside=beside, lane=lane)
            made.append(last[lane])
        return [*made, *map(Await, last.values())]

    def _lane(self, number: int) -> Beside | None:
        """How what a lane carries travels beside lists; on the CPU there is nothing beside them."""
        if self._device.type == "cuda" and number not in self._lanes:
            self._lanes[number] = Beside(self._device, number)
        return self._lanes.get(number)

    def _bytes(
        self, rows: tuple[tuple[int, Span], ...], side: str, fields: Sequence[Rows]
    ) -> tuple[Bytes, ...]:
        """Rows to or from ranks, of every field."""
        return tuple(
            Bytes(peer, tuple(self._memory.part(side, each, which) for each in fields))
            for peer, which in rows
        )

    def _found(self, work: RailWork) -> dict[str, int]:
        """What finds the numbers of rows is given."""
        assert isinstance(work, FlowWork)
        own, others = map(address, work.numbers)
        counts = self._counts
        return {
            "zero": 0,
            "begun": 0,
            "nodes": self._program.num_nodes,
            "numbers.own": own,
            "numbers.others": others,
            "counts": address(counts.own),
            "own": address(counts.own),
            "landed": address(counts.landed),
            "width": counts.columns,
            "bases": address(self._memory.bases),
            "told_counts": address(counts.told),
            "stamp": 0,
        }

    def _carried(
        self,
        each: Carried,
        slabs: Tensor,
        rows_at: Sequence[int],
        fields: Sequence[Rows],
        work: RailWork,
        going: Going,
    ) -> dict[str, int]:
        """What carries rows is given."""
        assert isinstance(work, FlowWork)
        alike = {
            "one": 1,
            "begun": 0,
            "nodes": self._program.num_nodes,
            "places": self._places,
            "ranks_of_node": self._program.num_ranks,
            "bases": address(self._memory.bases),
            "carrying": min(self._num_programs, self._taken_on),
            "nothing": -1,
        }
        return alike | each.numbers(slabs, rows_at, fields, self._memory, work, going)


def _both(one: StartRound, other: StartRound) -> StartRound:
    """Two exchanges with the same ranks as one."""
    sends, receives = (
        tuple(Bytes(a.peer, a.fields + b.fields) for a, b in zip(*pair, strict=True))
        for pair in ((one.sends, other.sends), (one.receives, other.receives))
    )
    return StartRound(0, 0, sends, receives)
