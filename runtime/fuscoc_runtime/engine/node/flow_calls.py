"""Calls of exact sizes between nodes whose rows travel as flows: only those that go to a node, by
the ranks and in the stages of a policy.

What is said of points travels in slabs and along rails, as in other calls (`rail_calls`). How large
flows are is known with it, so the host, which waits for the counts of slots, knows the ways of all
rows, too. Then they leave the slabs that they were packed in for memory of whoever sends them, and
go from where they land into the slabs from which the kernels of a node move them on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from torch import Tensor

from fuscoc_runtime.comm.rails import Beside
from fuscoc_runtime.comm.requests import Crossing
from fuscoc_runtime.comm.requests import Rows as Bytes
from fuscoc_runtime.engine.node.flow_carry import (
    LANDS,
    LEAVES,
    RETURNS,
    TURNS,
    Carried,
    FlowWork,
    Going,
)
from fuscoc_runtime.engine.node.flow_counts import Counts
from fuscoc_runtime.engine.node.flow_memory import SIDES, FlowMemory, Rows
from fuscoc_runtime.engine.node.rail_calls import RailCall, RailCalls, RailWork, Submitted
from fuscoc_runtime.engine.node.rail_commands import RailCommands
from fuscoc_runtime.engine.node.rings import Launched
from fuscoc_runtime.engine.node.ways import Leg, Span
from fuscoc_runtime.kernels.commands import Await, Command, CommandList, Exchange, Launch
from fuscoc_runtime.kernels.loader import Kernel, address


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
        leave = Launch(number, "nodes", {"has_landed": "zero", "numbers": "numbers.own"})
        land = Launch(
            number, "nodes", {"has_landed": "one", "numbers": "numbers.others", "counts": "zero"}
        )
        said = self._rails.between(memory.out, memory.landed, slabs.without_rows())
        counted = self._rails.between(counts.own.expand_as(counts.landed), counts.landed)
        exchange = self._rails.command(_both(said, counted), is_told=True)
        share = Launch(self._flows["share"], "one", {"told": "told_counts"})
        planning = commands.planning()
        forth: list[Command] = [*commands.packing(), leave, exchange, self._arrives, land, share]
        forth += [*planning, self._meet]
        self._moving = self._list([*commands.moving(), self._arrives])
        num_fields = len(self._memory.forth)
        self._carrying = {
            each.name: self._list(self._carry(each, count))
            for each, count in ((LEAVES, num_fields), (LANDS, num_fields), (TURNS, 1), (RETURNS, 1))
        }
        back = list[Command]()
        if self._program.combines:
            sums = self._rails.between(memory.back_out, memory.back, slabs.without_sums())
            back = [self._tell, *commands.collecting(0), self._rails.command(sums, is_told=True)]
            # Where rows have travelled the network was said to be waited for.
            self._finishing = self._list([*commands.finishing(), self._arrives])
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
        """Rows, from slabs to slabs. Where none go anywhere ranks of a node meet all the same: one
        may mean another dispatch."""
        ways, (leaves, lands) = going.ways, both
        if ways.most_rows == 0:
            return [self._carrying[leaves.name], self._carrying[lands.name]]
        is_back = leaves.side == 1
        legs = [each.back if is_back else each for each in ways.legs]
        travel = self._list([self._departs, *self._stages(legs, both, is_back, going.num_lanes)])
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
            what = Crossing(*rows)
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
            "nodes": self._program.num_nodes,
            "places": self._places,
            "ranks_of_node": self._program.num_ranks,
            "bases": address(self._memory.bases),
            "carrying": min(self._num_programs, self._taken_on),
            "nothing": -1,
        }
        return alike | each.numbers(slabs, rows_at, fields, self._memory, work, going)


def _both(one: Crossing, other: Crossing) -> Crossing:
    """Two exchanges with the same ranks as one."""
    sends, receives = (
        tuple(Bytes(a.peer, a.fields + b.fields) for a, b in zip(*pair, strict=True))
        for pair in ((one.sends, other.sends), (one.receives, other.receives))
    )
    return Crossing(sends, receives)
