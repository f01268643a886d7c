"""The network hop of one rank: which rows it sends to whom, and gets from whom, in which stage.

What a rank sends lies in the order of the ranks that it goes to, what it gets in that of the ranks
that it comes from; of every such rank a stage takes some of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from fuscoc_runtime.plan.schedule import Transfers


class Part(NamedTuple):
    """Rows ``begin:end`` of all that a rank sends, or gets, and the other rank."""

    peer: int
    begin: int
    end: int


@dataclass(frozen=True, eq=False)
class Side:
    """What one rank sends (or gets). ``counts``: rows to (from) every rank; ``transfers`` count
    from the first of these."""

    transfers: Transfers
    counts: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        return sum(self.counts)

    def in_stages(self, num_stages: int) -> list[list[Part]]:
        """What travels in every stage, by ascending peer."""
        stages: list[list[Part]] = [[] for _ in range(num_stages)]
        before = list(accumulate(self.counts, initial=0))
        each = self.transfers
        columns = each.stage, each.peer, each.begin, each.end
        for stage, peer, begin, end in zip(*(column.tolist() for column in columns), strict=True):
            stages[stage].append(Part(peer, before[peer] + begin, before[peer] + end))
        return [sorted(parts) for parts in stages]


@dataclass(frozen=True, eq=False)
class Wire:
    """``num_stages``: the same on all ranks; 0 if nothing crosses the network. ``hands_over``:
    whether ranks of the plan send rows for others of their node."""

    num_stages: int
    send: Side
    receive: Side
    hands_over: bool
