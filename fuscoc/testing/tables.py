"""Descriptor lists of all ranks laid end to end, and what they say of the network hop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from fuscoc.testing.arrays import Ints
from fuscoc.testing.violations import PlanViolation


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
