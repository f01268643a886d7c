"""Small array idioms of the planner; everything is int64 and stays on its device.

None of them makes the host wait for the device: sizes that depend on values are passed in, and
small host arrays are sent through pinned memory. What they take and give is of one kind, tensors or
arrays of numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fuscoc_runtime.arrays import Array, namespace
from fuscoc_runtime.plan.flows import Int64Array

if TYPE_CHECKING:
    import torch


def before(counts: Int64Array) -> Int64Array:
    """Sum of everything before, on the host: [2, 3, 4] -> [0, 2, 5]."""
    return np.asarray(np.cumsum(counts) - counts)


def stable_order(values: Array, num_values: int) -> Array:
    """Indices that sort ``values``, 0 to ``num_values`` - 1 each, ties in their present order.

    Both kinds sort by some bits at a time, a GPU with a launch for these, so keys are no wider than
    needed.
    """
    narrow = next((each for each in ("int16", "int32") if num_values <= np.iinfo(each).max), None)
    if isinstance(values, np.ndarray):
        return np.argsort(values.astype(narrow or "int64"), kind="stable")
    keys = values if narrow is None else values.to(getattr(namespace(values), narrow))
    return keys.sort(stable=True).indices


def ascending(values: Array) -> tuple[Array, Array]:
    """Any values in ascending order, ties in their present order, and the indices that sort
    them."""
    if isinstance(values, np.ndarray):
        order = np.argsort(values, kind="stable")
        return values[order], order
    ordered, order = values.sort(stable=True)
    return ordered, order


def iota(like: Array) -> Array:
    """0, 1, 2, ... as many as ``like`` has elements."""
    if isinstance(like, np.ndarray):
        return np.arange(len(like))
    xp = namespace(like)
    numbers: Array = xp.arange(len(like), dtype=xp.int64, device=like.device)
    return numbers


def empty(length: int, like: Array) -> Array:
    """So many numbers that nobody has said yet, of the kind of ``like``."""
    return np.empty(length, np.int64) if isinstance(like, np.ndarray) else like.new_empty(length)


def columns(table: Array) -> tuple[Array, ...]:
    """The columns of a table, each dense: kernels are given their addresses."""
    if isinstance(table, np.ndarray):
        return tuple(np.ascontiguousarray(table.T))
    return table.t().contiguous().unbind(0)


def take_rows(table: Array, order: Array) -> Array:
    """Rows of a table, in an order."""
    # What ``table[order]`` takes four times as long for in numpy, where rows are short.
    return table.take(order, axis=0) if isinstance(table, np.ndarray) else table[order]


def every(step: int, values: Array) -> Array:
    """The first of every ``step`` values, dense."""
    found = values[::step]
    return np.ascontiguousarray(found) if isinstance(found, np.ndarray) else found.contiguous()


def positions(mask: Array) -> Array:
    """Where ``mask`` is true; the host waits for the device."""
    return np.flatnonzero(mask) if isinstance(mask, np.ndarray) else mask.nonzero().flatten()


def highest_so_far(values: Array) -> Array:
    """The highest of every element and those before it."""
    if isinstance(values, np.ndarray):
        return np.maximum.accumulate(values)
    return values.cummax(0).values


def differs(values: Array) -> Array:
    """Mask of the elements that differ from the one before; the first one does."""
    xp = namespace(values)
    mask: Array = xp.ones_like(values, dtype=xp.bool_ if xp is np else xp.bool)
    xp.not_equal(values[1:], values[:-1], out=mask[1:])
    return mask


def count(values: Array, num_values: int, mask: Array | None = None) -> Array:
    """How often each of 0 .. num_values - 1 occurs, where ``mask`` is true."""
    if isinstance(values, np.ndarray):
        return np.bincount(values if mask is None else values[mask], minlength=num_values)
    ones = namespace(values).ones_like(values) if mask is None else mask.long()
    return values.new_zeros(num_values).scatter_add_(0, values, ones)


def upload(tables: Sequence[Int64Array], device: torch.device | None) -> list[Array]:
    """Host tables on ``device``, in one copy that the host does not wait for; without one as they
    are."""
    if device is None:
        as_they_are: list[Any] = list(tables)
        return as_they_are
    import torch

    if device.type != "cuda":
        return [torch.from_numpy(table) for table in tables]
    joined = torch.from_numpy(np.concatenate([table.reshape(-1) for table in tables]))
    sent = joined.pin_memory().to(device, non_blocking=True)
    parts = sent.split_with_sizes([table.size for table in tables])
    return [part.view(table.shape) for part, table in zip(parts, tables, strict=True)]
