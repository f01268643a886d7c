"""Array idioms of the checks; int64 numpy arrays throughout."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fuscoc_runtime.arrays import Array, on_host

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def ints(values: Iterable[int] | Array) -> Ints:
    """An int64 array of a tensor, of another array or of numbers."""
    if isinstance(values, Tensor | np.ndarray):
        return np.asarray(on_host(values), dtype=np.int64)
    return np.asarray(list(values), dtype=np.int64)


def joined(parts: Iterable[Ints]) -> Ints:
    """Concatenation that also takes no parts at all."""
    return np.concatenate([np.zeros(0, np.int64), *parts])


def before(counts: Ints) -> Ints:
    """Sum of everything before: [2, 3, 4] -> [0, 2, 5]."""
    return np.asarray(counts.cumsum() - counts)


def ranges(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """All positions of the ranges ``begin[g] <= p < end[g]``: (g, p) of each, range by range."""
    length = end - begin
    group = np.repeat(np.arange(len(begin)), length)
    return group, np.arange(len(group)) - before(length)[group] + begin[group]


def group_ids(*columns: Ints) -> Ints:
    """Equal rows get equal numbers, counted from 0."""
    if len(columns[0]) == 0:
        return np.zeros(0, np.int64)
    order = np.lexsort(columns)
    new = np.zeros(len(order), np.bool_)
    for column in columns:
        sorted_column = column[order]
        new[1:] |= sorted_column[1:] != sorted_column[:-1]
    ids = np.empty(len(order), np.int64)
    ids[order] = new.cumsum()
    return ids


def first(mask: Bools) -> int | None:
    """Position of the first true element."""
    return int(mask.argmax()) if mask.any() else None


def repeated(ids: Ints) -> int | None:
    """Position of the first element that has occurred before."""
    seen = np.ones(len(ids), np.bool_)
    seen[np.unique(ids, return_index=True)[1]] = False
    return first(seen)
