"""Calls of exact sizes between nodes whose rows travel as flows: only those that go to a node, by
the ranks and in the stages of a policy.

What is said of points travels in slabs and along rails, as in other calls (`rail_calls`). How large
flows are is known with it, so the host, which waits for the counts of slots, knows the ways of all
rows, too. Then they are packed into memory of whoever sends them, and the kernels of a node move
them on from where they land.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fuscoc_runtime.comm.rails import Beside
from fuscoc_runtime.comm.requests import Crossing
from fuscoc_runtime.comm.requests import Rows as Bytes
from fuscoc_runtime.engine.node.flow_counts import Counts
from fuscoc_runtime.engine.node.flow_memory import GOT, SENT, FlowMemory
from fuscoc_runtime.engine.node.flow_posts import Going, Posts, besides, room_for_legs
from fuscoc_runtime.engine.node.rail_calls import RailCall, RailCalls, RailWork, Submitted
from fuscoc_runtime.engine.node.rail_commands import OWN, RailCommands
from fuscoc_runtime.engine.node.rings import Launched
from fuscoc_runtime.engine.node.triton_program import TritonProgram
from fuscoc_runtime.kernels.commands import Command, CommandList, Launch
from fuscoc_runtime.kernels.loader import Kernel, address
from fuscoc_runtime.room import num_rank_words

KERNELS = {
    "number": ("call", "has_landed", "fanout", "answered", "numbers", "counts"),
    "share": ("call", "own", "landed", "width", "bases", "told", "stamp"),
    "pass_by": ("call", "follows", "returns"),
    "settle": ("own", "others", "num_nodes", "stride", "num_ranks", "parts"),
}
"""Of kernels/device/flows.py, what they are given."""
SETTLING = {
    "own": "numbers.own", "others": "numbers.others", "num_nodes": "nodes", "stride": "places",
    "num_ranks": "ranks_of_node", "parts": "flow_parts",
}  # fmt: skip
"""Numbers of `settle` that have other names in lists."""
ROWS_ALONE = -2
"""What a launch that packs these says; `ROWS` of kernels/device/hop.py."""


def flow_kernels(program: TritonProgram) -> dict[str, Kernel]:
    """Those of kernels/device/flows.py, compiled."""
    return {name: program.load("flows", name, each) for name, each in KERNELS.items()}


@dataclass(frozen=True, eq=False)
class FlowWork(RailWork):
    """Also of every place the ``numbers`` of its rows in the flows to and from every node, then
    where these are, int32 [2, num_nodes, places]; and the same of the places of a reply, of which
    there are none without."""

    numbers: Tensor
    of_reply: Tensor

    @property
    def tensors(self) -> list[Tensor]:
        """All of it."""
        return [*super().tensors, self.numbers, self.of_reply]


class FlowCalls(RailCalls):
    """Calls with so many places, in windows, slabs and ``memory`` as they are now."""

    def __init__(
        self, *given: Any, memory: FlowMemory, counts: Counts, flows: Mapping[str, Kernel]
    ) -> None:
        """``given`` as for `RailCalls`."""
        self._memory, self._counts, self._flows = memory, counts, flows
        self._lanes, self._posts = dict[int, Beside](), dict[tuple[bool, int, int], Posts]()
        super().__init__(*given)
        alike = {
            "one": 1,
            "zero": 0,
            "nothing": -1,
            "nodes": self._program.num_nodes,
            "words_of_nodes": num_rank_words(self._program.room) * self._program.num_nodes,
            "sides_of_nodes": 2 * self._program.num_nodes,
            "places": self._places,
            "ranks_of_node": self._program.num_ranks,
        }
        fields = zip(self._program.shuffle.program.buffers["target"], memory.forth, strict=True)
        self._numbers_forth |= {
            **alike,
            **{f"slab_at.{field.name}": rows.at for field, rows in fields},
            "rows_alone": ROWS_ALONE,
            "counts": address(counts.own),
            "own": address(counts.own),
            "landed": address(counts.landed),
            "width": counts.columns,
            "bases": address(memory.bases),
            "told_counts": address(counts.told),
            "stamp": 0,
            "returns": 0,
        }
        if self._program.shuffle.reply is not None:
            self._numbers_forth |= {
                "reply.counts": address(counts.of_reply),
                "reply.answered": self._program.shuffle.segments_answered,
            }
        self._numbers_back |= {**alike, "returns": 1}
        self._words = {
            "row_bases": address(memory.bases),
            "rows_sent": memory.sections[SENT],
            "rows_got": memory.sections[GOT],
            "back_rows": 0,
        }

    def prepared(self, work: RailWork, call: RailCall, given: Mapping[str, int]) -> Submitted:
        """What the lists of a dispatch are given."""
        assert isinstance(work, FlowWork)
        numbered = {
            f"{name}.{side}": address(each)
            for name, both in (("numbers", work.numbers), ("reply", work.of_reply))
            for side, each in zip(("own", "others"), both, strict=True)
        }
        return super().prepared(work, call, {**given, **numbered})

    def move(self, call: RailCall, submitted: Submitted, going: Going | None) -> None:
        """What follows: the rows, or, without ways, their place in the order of calls alone."""
        commands, numbers = self._moving, submitted.numbers
        if going is not None:
            commands = self._travelling(going, is_back=False)
            follows = -1 if call.again is None else call.again
            leaving = min(self._programs.dispatch, call.num_sources)
            numbers |= {"flow_parts": address(going.parts), "follows": follows, "leaving": leaving}
        self._rails.submit(commands, commands.numbers(numbers))

    def refuse(
        self,
        work: RailWork,
        call: RailCall,
        given: Mapping[str, int],
        going: Going | None = None,
    ) -> None:
        """A dispatch of no segments, without arguments. Along known ways this rank sends and gets
        what others expect it to."""
        given = self._without([self._forth, self._moving], given)
        self.move(call, self.dispatch(work, call, given), going)

    def settle(self, work: FlowWork, going: Going) -> None:
        """Find where rows are of a reply whose dispatch has numbered them."""
        own, others = map(address, work.numbers)
        given = {"numbers.own": own, "numbers.others": others, "flow_parts": address(going.parts)}
        numbers = {**self._numbers_forth, **given}
        values = {name: numbers[of] for name, of in SETTLING.items()}
        self._flows["settle"].launch(values, 2 * self._program.num_nodes)

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
        lists = [self._back, self._travelling(going, is_back=True)]
        fields = {**fields, "follows": number}
        self._bring_back(lists, launched, work, number, tells, fields, weights, routing)

    def _lists(self, commands: RailCommands) -> tuple[CommandList, CommandList, CommandList]:
        slabs, counts = self.slabs, self._counts
        memory, everything = slabs.memory, slabs.rounds[0]
        leave, land = self._numbering()
        said = self._rails.between(memory.out, memory.landed, slabs.ranges(everything))
        counted = self._rails.between(counts.own.expand_as(counts.landed), counts.landed)
        exchange = self._rails.command(_both(said, counted), is_told=True)
        share = Launch(self._flows["share"], "one", {"told": "told_counts"})
        planning = [*commands.planning(), *self._judging()]
        forth: list[Command] = [*commands.packing(), *leave, exchange, self._arrives, *land, share]
        forth += [*planning, self._meet]
        moving = _behind_others(commands.moving())
        self._moving = self._list([*moving, self._arrives])
        settle = Launch(self._flows["settle"], "sides_of_nodes", SETTLING)
        names = OWN | self._program.named | {"says": "rows_alone"}
        rows = Launch(self._program.kernels["pack"], "leaving", names)
        # Before rows travel the host is told if they do not fit, and neighbours have packed theirs.
        passes = Launch(self._flows["pass_by"], "one")
        self._before = {False: [settle, rows, passes, self._departs], True: [passes, self._departs]}
        lands = [Launch(self._flows["pass_by"], "one", {"follows": "nothing"})]
        lands *= self._program.num_ranks > 1
        self._behind = {False: [*lands, *moving, self._arrives]}
        back = list[Command]()
        if self._program.combines:
            sums = self._rails.between(memory.back_out, memory.back, slabs.ranges_back(everything))
            back = [self._tell, *commands.collecting(0), self._rails.command(sums, is_told=True)]
            # Where rows have travelled the network was said to be waited for.
            finishing = _behind_others(commands.finishing())
            self._behind[True] = [*lands, *finishing, self._arrives]
        return self._list(forth), self._list(planning), self._list(back)

    def _numbering(self) -> tuple[list[Command], list[Command]]:
        """Of rows that leave, with their counts, and of those that have landed; then of a reply."""
        kinds = {"numbers": {"answered": "one"}}
        if self._program.shuffle.reply is not None:
            kinds["reply"] = {"answered": "reply.answered", "counts": "reply.counts"}
        number, leave, land = self._flows["number"], list[Command](), list[Command]()
        for name, renamed in kinds.items():
            leaves = {**renamed, "has_landed": "zero", "numbers": f"{name}.own"}
            lands = {"has_landed": "one", "numbers": f"{name}.others", "counts": "zero"}
            leave.append(Launch(number, "words_of_nodes", leaves))
            land.append(Launch(number, "nodes", {**renamed, **lands}))
        return leave, land

    def _travelling(self, going: Going, is_back: bool) -> CommandList:
        """Rows, from where they are packed to where kernels move them on. Where none go anywhere
        ranks of a node meet all the same: one may mean another dispatch."""
        of_list = is_back, room_for_legs(going.ways.num_legs), going.num_lanes
        posts = self._posts.get(of_list)
        if posts is None:
            lanes = besides(self._device, self._lanes, going.num_lanes)
            around = self._before[is_back], self._behind[is_back]
            posts = Posts(self._rails, self._memory, *around, of_list[1], lanes, self._list)
            self._posts[of_list] = posts
        posts.fill(going, is_back)
        return posts.commands

    def _rows_of(self, work: RailWork) -> dict[str, int]:
        assert isinstance(work, FlowWork)
        own, others = map(address, work.numbers)
        return {**self._words, "rows_out": own, "rows_in": others}


def _behind_others(launches: Sequence[Launch]) -> list[Launch]:
    """They, where what is before the first one need not be a kernel."""
    return [replace(launches[0], follows=False), *launches[1:]]


def _both(one: Crossing, other: Crossing) -> Crossing:
    """Two exchanges with the same ranks as one."""
    sends, receives = (
        tuple(Bytes(a.peer, a.fields + b.fields) for a, b in zip(*pair, strict=True))
        for pair in ((one.sends, other.sends), (one.receives, other.receives))
    )
    return Crossing(sends, receives)
