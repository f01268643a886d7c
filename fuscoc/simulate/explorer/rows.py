"""What the rows of a picture over time are: ranks or other owners of links, or groups of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuscoc.simulate.record import Int64Array

MAX_ROWS = 128
"""Rows of a picture that can be told apart."""

MIN_ROWS = 32
"""Nodes of a cluster whose rows are nodes; those of fewer would be too much in one row."""


@dataclass(frozen=True, eq=False)
class Rows:
    """``first``: int64 [num_rows], ascending, the first of the ``size`` numbers in every row."""

    first: Int64Array
    size: int

    @classmethod
    def of(cls, known: Int64Array, group: int) -> Rows:
        """For the numbers ``known``, ascending: a row each, or ``group`` in a row if too many."""
        if len(known) <= MAX_ROWS:
            return cls(known, 1)
        return cls(np.arange(0, int(known[-1]) + 1, group), group)

    def place(self, numbers: Int64Array) -> Int64Array:
        """The rows of numbers that are in any."""
        return np.searchsorted(self.first, numbers, side="right") - 1


def row_ranks(num_ranks: int, node: int) -> int:
    """How many ranks share a row of a picture if there are too many for one each.

    Those of a node, of several nodes where there are many, or of an even part of a large node.
    """
    if num_ranks < node * MIN_ROWS:
        parts = (part for part in range(1, node + 1) if node % part == 0)
        return next(part for part in parts if num_ranks <= part * MAX_ROWS)
    return node * -(-num_ranks // (node * MAX_ROWS))
