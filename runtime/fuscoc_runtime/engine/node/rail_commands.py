"""The lists of calls between nodes: kernels, and the rounds in which slabs travel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise

import torch
from torch import Tensor

from fuscoc_runtime.comm.group import Membership, all_gather
from fuscoc_runtime.comm.lanes import divided
from fuscoc_runtime.comm.rails import Beside, Rails, Ranges
from fuscoc_runtime.comm.requests import Crossing
from fuscoc_runtime.comm.subgroups import node_group
from fuscoc_runtime.engine.node.schedule import Programs
from fuscoc_runtime.engine.node.slabs import Slabs
from fuscoc_runtime.engine.node.triton_program import TritonProgram
from fuscoc_runtime.kernels.commands import Await, Command, Exchange, Launch
from fuscoc_runtime.kernels.loader import Kernel, address

POINTS_PACKED = 256  # by a program at once, that go nowhere
OWN = {"num_sources": "own_sources", "weights": "own_weights"}
"""What a kernel is given of this rank's own segments, where others are given those taken on."""


class RailCommands:
    """What calls of one size are made of, with the slabs of that size."""

    def __init__(
        self,
        program: TritonProgram,
        rails: Rails,
        slabs: Slabs,
        staged_places: int,
        sizes: Mapping[str, int],
    ) -> None:
        """``staged_places``: those that a window has room for partial rows of. ``sizes`` are those
        of launches that plan; see `TritonProgram.sizes`."""
        self._program, self._rails, self._slabs = program, rails, slabs
        self._staged_places, self._sizes = staged_places, sizes
        self._device = program.device

    def forth(self, planned: Sequence[Command] = ()) -> list[Command]:
        """A dispatch: its relation, slabs, and what a node does with those that have come, with
        what goes between the plan and the rows. With the first round all points have come, so rows
        of each are moved while later ones travel."""
        slabs, moving = self._slabs, self.moving()
        planning = self._program.planning(self._sizes)
        rounds = self._exchanges(slabs.memory.out, slabs.memory.landed, slabs.ranges)
        behind: list[Command] = [*planning, *planned, *moving]
        if _are_beside(rounds):
            behind = [*_behind(planning[0], rounds[0]), *planning[1:], *planned, moving[0]]
            for each in zip(moving[1:], rounds[1:], strict=True):
                behind += _behind(*each)
        return [*self.packing(), *chain(*rounds), *behind]

    def packing(self) -> list[Launch]:
        """What a dispatch begins with."""
        program, evaluating = self._program, self._program.evaluating()
        pack = program.kernels["pack"]
        names = OWN | program.named
        return [*evaluating, Launch(pack, "packing", names, follows=bool(evaluating))]

    def landed(self, planned: Sequence[Command] = ()) -> list[Command]:
        """Of that what comes behind the network."""
        return [*self.planning(), *planned, *self.moving()]

    def planning(self) -> list[Launch]:
        """Of that what says where rows go."""
        planning = self._program.planning(self._sizes)
        return [replace(planning[0], follows=False), *planning[1:]]

    def back(self) -> list[Command]:
        """A combine, on both sides of the network. Sums of a round travel while those of later ones
        are made, and are added up while these travel."""
        slabs = self._slabs
        rounds = self._exchanges(
            slabs.memory.back_out, slabs.memory.back, slabs.ranges_back, is_packed=False
        )
        commands: list[Command] = []
        finishing = self.finishing()
        behind: list[Command] = [*finishing]
        if _are_beside(rounds):
            pairs = zip(finishing, rounds, strict=True)
            behind = [command for each in pairs for command in _behind(*each)]
        for number, each in enumerate(rounds):
            commands += [*self.collecting(number), *each]
        return [*commands, *behind]

    def collecting(self, number: int) -> list[Launch]:
        """Of a combine what comes before a round."""
        launches = []
        for part in self._turns(number):
            names = {name: f"{name}.{part.start}" for name in ("first", "end")}
            others = {**names, "num_sources": f"others.{part.start}"}
            collect = self._program.kernels["collect"]
            launches.append(Launch(collect, "programs", others, follows=part.start == 0))
        return launches

    def finishing(self) -> list[Launch]:
        """And what comes behind each."""
        finish, own = self._program.kernels["finish"], {"num_sources": "own_sources"}
        return [
            Launch(
                finish,
                "finishing",
                {"first": f"finished.{number}", "end": f"finished_end.{number}"} | own,
                follows=True,
            )
            for number in range(len(self._slabs.finished))
        ]

    @property
    def numbers(self) -> dict[str, int]:
        """The places of every round, how many segments of other nodes they are, and which of this
        rank's segments it is the last one of."""
        numbers = {}
        for number, finished in enumerate(self._slabs.finished):
            numbers[f"finished.{number}"] = finished.start
            numbers[f"finished_end.{number}"] = finished.stop
        for number, places in enumerate(self._slabs.rounds):
            numbers[f"round_end.{places.start}"] = places.stop
            for part in self._turns(number):
                numbers[f"first.{part.start}"], numbers[f"end.{part.start}"] = part.start, part.stop
                numbers[f"others.{part.start}"] = (self._program.num_nodes - 1) * len(part)
        return numbers

    def moving(self) -> list[Launch]:
        """Of a dispatch what brings rows where they go, by rounds."""
        forward = self._program.kernels["forward"]
        return [
            Launch(
                forward,
                "programs",
                {"first": f"first.{places.start}", "end": f"round_end.{places.start}"},
                follows=True,
            )
            for places in self._slabs.rounds
        ]

    def _turns(self, number: int) -> list[range]:
        """The places of a round whose partial rows peers send at a time."""
        places, room = self._slabs.rounds[number], self._staged_places
        cuts = range(places.start // room * room + room, places.stop, room)
        return [range(*each) for each in pairwise([places.start, *cuts, places.stop])]

    def _exchanges(
        self,
        sent: Tensor,
        received: Tensor,
        ranges: Callable[[range], Ranges],
        is_packed: bool = True,
    ) -> list[list[Exchange]]:
        """All rounds of a direction, of each what every lane carries. Several travel beside the
        list, those of a lane behind what comes before its first one if everything ``is_packed``
        then, else each behind what comes before it."""
        rails = self._rails
        rounds = [
            divided(rails.between(sent, received, ranges(places)), rails.num_lanes)
            for places in self._slabs.rounds
        ]
        is_beside, begun = _are_beside(rounds) and self._device.type == "cuda", set[int]()

        def command(what: Crossing, lane: int) -> Exchange:
            beside = Beside(self._device, lane) if is_beside else None
            if beside is not None and is_packed and lane in begun:
                beside = beside.behind()
            begun.add(lane)
            return rails.command(what, is_told=True, beside=beside, lane=lane)

        return [[command(what, lane) for lane, what in enumerate(each)] for each in rounds]


class PointExchange:
    """Of every point an f32, of the segments that a rank has taken on: of calls of one size.

    Attributes:
        sent, received: f32 [num_nodes, places, fanout], by the node that they go to, or come from.
    """

    def __init__(self, program: TritonProgram, rails: Rails, tell: Kernel, places: int) -> None:
        """``tell`` tells the host of exchanges, `tell` of kernels/device/hop.py."""
        fanout, device = program.shuffle.program.fanout, program.device
        self._rails, self._node = rails, program.node
        self.sent, self.received = (
            torch.zeros(program.num_nodes, places, fanout, dtype=torch.float32, device=device)
            for _ in range(2)
        )
        begins, ends = (Launch(tell, "one", {"place": place}) for place in ("begun", "ended"))
        exchange = rails.command(rails.between(self.sent, self.received), is_told=True)
        self._commands = program.listed([begins, exchange, ends])
        self._numbers = {"one": 1, "told": rails.told, "begun": 0, "ended": 1}

    @property
    def num_bytes(self) -> int:
        """Bytes of both."""
        return self.sent.nbytes + self.received.nbytes

    def carry_out(self) -> Tensor:
        """Exchange what has been put there; what has come, with what is of this node."""
        self._rails.submit(self._commands, self._commands.numbers(self._numbers))
        self.received[self._node] = self.sent[self._node]
        return self.received


def packing(
    program: TritonProgram, programs: Programs, places: int, num_sources: int
) -> dict[str, int]:
    """Programs that count so many segments, and others that pack them, and say of points of
    further places that they go nowhere."""
    points = places * program.shuffle.program.fanout
    useful = max(num_sources, -(-points // POINTS_PACKED))
    counting = 0 if program.is_dense else -(-num_sources // program.spec.tile_sources)
    return {"packing": counting + min(programs.dispatch, useful)}


def rail_words(program: TritonProgram, rails: Rails, slabs: Slabs) -> dict[str, int]:
    """Words of a table: of what travels."""
    return {
        "node_keys": address(program.node_keys),
        "exchanges": rails.told,
        **slabs.words,
    }


def gather_in_node(members: Membership, of_slot: Tensor) -> Tensor:
    """What every rank of the node has for its slots, [ranks of the node, num_slots]."""
    topology = members.topology
    if topology.ranks_per_node == 1:
        return of_slot[None]
    if members.device.type == "cuda":
        return all_gather(of_slot, node_group(members))
    # Without a GPU nodes have no group of their own, and they may differ in their slots.
    most = max(members.meet("gathering", len(of_slot)))
    padded = torch.nn.functional.pad(of_slot, (0, most - len(of_slot)))
    ranks = topology.node_ranks(topology.node(members.rank))
    return all_gather(padded, members.group)[ranks.start : ranks.stop, : len(of_slot)].contiguous()


def _are_beside(rounds: Sequence[Sequence[object]]) -> bool:
    """Whether what lanes carry of these travels beside the list: not if it is one exchange."""
    return sum(map(len, rounds)) > 1


def _behind(launch: Launch, exchanges: Sequence[Exchange]) -> list[Command]:
    """It when exchanges beside the list have ended."""
    return [*map(Await, exchanges), replace(launch, follows=False)]
