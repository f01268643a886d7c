"""The legs of flows as commands of lists that are made once: what each carries is filled in before
a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fuscoc_runtime.comm.rails import Beside, Blank, Rails
from fuscoc_runtime.engine.node.flow_memory import FlowMemory
from fuscoc_runtime.engine.node.ways import LEG, Ways, on_lanes
from fuscoc_runtime.kernels.commands import Await, Command, CommandList


@dataclass(frozen=True, eq=False)
class Going:
    """The ways of one dispatch, with what kernels read of them, ``parts`` of `Ways` on the device;
    rows travel on so many lanes. Transfers are made for the first call that needs them."""

    ways: Ways
    parts: Tensor
    num_lanes: int
    _made: dict[bool, tuple[FlowMemory, list[NDArray[Any]]]] = field(default_factory=dict)

    def transfers(self, memory: FlowMemory, is_back: bool) -> list[NDArray[Any]]:
        """Of every leg and lane, or of those back."""
        known = self._made.get(is_back)
        if known is not None and known[0] is memory:
            return known[1]
        moves = on_lanes(self.ways.moves, self.num_lanes, is_back)
        count = self.ways.num_legs * self.num_lanes
        bounds = np.searchsorted(moves[:, LEG], np.arange(count + 1)).tolist()
        made = memory.transfers(moves, is_back)
        found = [made[begin:end].reshape(-1) for begin, end in pairwise(bounds)]
        self._made[is_back] = memory, found
        return found


class Posts:
    """A list of so many legs on so many lanes, or fewer legs; lanes begin each of theirs when the
    one before has ended."""

    def __init__(
        self,
        rails: Rails,
        memory: FlowMemory,
        before: Sequence[Command],
        behind: Sequence[Command],
        num_legs: int,
        lanes: Sequence[Beside | None],
        listed: Callable[[Sequence[Command]], CommandList],
    ) -> None:
        """``before``, ``behind``: commands around the legs, of which ``listed`` makes a list."""
        self._memory, self._blanks = memory, list[Blank]()
        for leg in range(num_legs):
            for lane, each in enumerate(lanes):
                beside = each.behind() if each is not None and leg else each
                self._blanks.append(rails.blank(memory.local, beside, lane))
        commands = [each.command for each in self._blanks]
        ends = [Await(each) for each in commands[len(commands) - len(lanes) :]] if commands else []
        self.commands = listed([*before, *commands, *ends, *behind])
        self._nothing = memory.transfers(np.zeros((0, 5), np.int64), False).reshape(-1)

    def fill(self, going: Going, is_back: bool) -> None:
        """What travels in the calls that follow."""
        transfers = going.transfers(self._memory, is_back)
        for number, blank in enumerate(self._blanks):
            blank.fill(transfers[number] if number < len(transfers) else self._nothing)


def room_for_legs(num_legs: int) -> int:
    """Legs of a list that has them: few lists serve all numbers."""
    return 1 << (num_legs - 1).bit_length() if num_legs else 0


def besides(device: torch.device, known: dict[int, Beside], count: int) -> list[Beside | None]:
    """How what so many lanes carry travels beside lists, which nothing does on the CPU."""
    if device.type != "cuda":
        return [None] * count
    for number in range(len(known), count):
        known[number] = Beside(device, number)
    return [known[number] for number in range(count)]
