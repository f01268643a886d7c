"""Descriptor lists in rounds: which entries belong to which, in the order of the wire."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from fuscoc_runtime.plan import DescriptorList
from fuscoc_runtime.plan.arrays import iota


@dataclass(frozen=True)
class Entries:
    """Which entries of a list belong to which round: ``parts[r]`` are those of round ``r``."""

    before: range
    parts: tuple[range, ...]

    @classmethod
    def cut(cls, counts: Iterable[int], num_before: int = 0) -> Entries:
        parts, begin = [], num_before
        for count in counts:
            parts.append(range(begin, begin + count))
            begin += count
        return cls(range(num_before), tuple(parts))


def in_order(columns: DescriptorList, order: Tensor | None, place: str) -> DescriptorList:
    """A list in wire order; ``place`` is the column that counts its entries."""
    if order is None:
        return columns
    moved = {name: column[order] for name, column in columns.items()}
    return {**moved, place: iota(order)}
