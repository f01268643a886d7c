"""What ``check_plan`` raises, and the lists it raises it about.

A violation says which descriptor breaks which invariant. Descriptor lists of all ranks are laid end
to end, and the rows that they send over the network, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from fuscoc.testing.arrays import Ints

HOPS = {
    "carry": "NVLink, to senders",
    "carried": "network",
    "net_send": "network",
    "direct": "NVLink",
    "forward": "NVLink",
    "local": "local",
    "reduce_direct": "NVLink, back",
    "reduce_forward": "NVLink, back",
    "reduce_node": "network, back",
    "hand_back": "NVLink, back",
    "reduce_source": "local, back",
}


class PlanViolation(AssertionError):
    """A plan that breaks an invariant.

    Attributes:
        invariant: name of the check in ``fuscoc.testing.invariants``.
        problem: what is wrong, in one sentence.
        list: the descriptor list at fault, if it is one.
        rank: the rank that holds it.
        index: the descriptor's position in the list.
        hop: the leg of the path that the list describes.
    """

    def __init__(
        self,
        invariant: str,
        problem: str,
        *,
        list: str | None = None,
        rank: int | None = None,
        index: int | None = None,
        descriptor: str = "",
    ) -> None:
        self.invariant = invariant
        self.problem = problem
        self.list = list
        self.rank = rank
        self.index = index
        self.hop = HOPS.get(list) if list is not None else None
        self.descriptor = descriptor
        super().__init__(invariant, problem, list, rank, index)

    def __str__(self) -> str:
        where = ""
        if self.list is not None:
            where += self.list if self.index is None else f"{self.list}[{self.index}]"
        if self.rank is not None:
            where += f" on rank {self.rank}"
        if self.hop is not None:
            where += f" ({self.hop} hop)"
        if self.descriptor:
            where += f" {{{self.descriptor}}}"
        return (
            f"{self.invariant}: {where.strip()}: {self.problem}"
            if where
            else (f"{self.invariant}: {self.problem}")
        )


@dataclass(frozen=True, eq=False)
class Table:
    """One list of all ranks, end to end: int64 [num_descriptors] each.

    ``rank`` holds a descriptor, at position ``index`` of its list. ``begin`` [num_ranks + 1] is
    where the descriptors of every rank begin.
    """

    name: str
    rank: Ints
    index: Ints
    begin: Ints
    columns: Mapping[str, Ints]

    def __getitem__(self, column: str) -> Ints:
        return self.columns[column]

    def __len__(self) -> int:
        return len(self.rank)

    def fail(self, invariant: str, problem: str, at: int) -> NoReturn:
        """Raise about the descriptor at position ``at`` of the table."""
        shown = [f"{name} {column[at]}" for name, column in self.columns.items()]
        raise PlanViolation(
            invariant,
            problem,
            list=self.name,
            rank=int(self.rank[at]),
            index=int(self.index[at]),
            descriptor=", ".join(shown),
        )


@dataclass(frozen=True, eq=False)
class Sent:
    """What ranks send over the network: the rows of ``net_send``, then those of ``carried``.

    int64 [num_rows] each. ``rank``: who sends it; ``source``: whose it is; ``row``: its place among
    all that ``rank`` sends, by forwarder; ``segment``: as in ``PlanFacts.segments``.
    """

    own: Table
    carried: Table
    rank: Ints
    source: Ints
    row: Ints
    segment: Ints

    def __len__(self) -> int:
        return len(self.rank)

    def fail(self, invariant: str, problem: str, at: int) -> NoReturn:
        """Raise about the row at position ``at``."""
        if at < len(self.own):
            self.own.fail(invariant, problem, at)
        self.carried.fail(invariant, problem, at - len(self.own))
