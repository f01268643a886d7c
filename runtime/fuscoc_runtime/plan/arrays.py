"""Small array idioms of the planner; everything is int64 and stays on its device.

None of them makes the host wait for the device: sizes that depend on values are passed in, and
small host arrays are sent through pinned memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fuscoc_runtime.plan.flows import Int64Array


def before(counts: Int64Array) -> Int64Array:
    """Sum of everything before, on the host: [2, 3, 4] -> [0, 2, 5]."""
    return np.asarray(np.cumsum(counts) - counts)


def stable_order(values: Tensor, num_values: int) -> Tensor:
    """Indices that sort ``values``, 0 to ``num_values`` - 1 each, ties in their present order.

    A GPU sorts by eight bits at a time, with a launch for these, so keys are no wider than needed.
    """
    narrow = (each for each in (torch.int16, torch.int32) if num_values <= torch.iinfo(each).max)
    return torch.sort(values.to(next(narrow, torch.int64)), stable=True).indices


def iota(like: Tensor) -> Tensor:
    """0, 1, 2, ... as many as ``like`` has elements."""
    return torch.arange(len(like), dtype=torch.int64, device=like.device)


def columns(table: Tensor) -> tuple[Tensor, ...]:
    """The columns of a table, each dense: kernels are given their addresses."""
    return table.t().contiguous().unbind(0)


def differs(values: Tensor) -> Tensor:
    """Mask of the elements that differ from the one before; the first one does."""
    mask = torch.ones_like(values, dtype=torch.bool)
    torch.ne(values[1:], values[:-1], out=mask[1:])
    return mask


def count(values: Tensor, num_values: int, mask: Tensor | None = None) -> Tensor:
    """How often each of 0 .. num_values - 1 occurs, where ``mask`` is true."""
    ones = torch.ones_like(values) if mask is None else mask.long()
    counts = torch.zeros(num_values, dtype=torch.int64, device=values.device)
    return counts.scatter_add_(0, values, ones)


def allocate(sizes: Sequence[int], device: torch.device) -> tuple[Tensor, ...]:
    """int64 arrays of so many elements, in one piece of memory."""
    memory = torch.empty(sum(sizes), dtype=torch.int64, device=device)
    return torch.split_with_sizes(memory, sizes)


def upload(tables: Sequence[Int64Array], device: torch.device) -> list[Tensor]:
    """Host tables on ``device``, in one copy that the host does not wait for."""
    if device.type != "cuda":
        return [torch.from_numpy(table) for table in tables]
    joined = torch.from_numpy(np.concatenate([table.reshape(-1) for table in tables]))
    sent = joined.pin_memory().to(device, non_blocking=True)
    parts = sent.split_with_sizes([table.size for table in tables])
    return [part.view(table.shape) for part, table in zip(parts, tables, strict=True)]
