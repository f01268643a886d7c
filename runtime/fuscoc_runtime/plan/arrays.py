"""Small array idioms of the planner; everything is int64 and stays on its device."""

from __future__ import annotations

import torch
from torch import Tensor


def exclusive_cumsum(counts: Tensor, dim: int = 0) -> Tensor:
    """Sum of everything before: [2, 3, 4] -> [0, 2, 5]."""
    return counts.cumsum(dim) - counts


def stable_order(values: Tensor) -> Tensor:
    """Indices that sort ``values``, ties in their present order."""
    return torch.sort(values, stable=True).indices


def inverse(order: Tensor) -> Tensor:
    """Where each element went: ``inverse(order)[order[i]] == i``."""
    positions = torch.empty_like(order)
    positions[order] = iota(order)
    return positions


def iota(like: Tensor) -> Tensor:
    """0, 1, 2, ... as many as ``like`` has elements."""
    return torch.arange(len(like), dtype=torch.int64, device=like.device)


def columns(table: Tensor) -> tuple[Tensor, ...]:
    """The columns of a table, each dense: kernels are given their addresses."""
    return table.t().contiguous().unbind(0)


def starts(*values: Tensor) -> Tensor:
    """Mask of the first row and of rows that differ from the row before in any of ``values``."""
    mask = torch.ones_like(values[0], dtype=torch.bool)
    mask[1:] = False
    for column in values:
        mask[1:] |= column[1:] != column[:-1]
    return mask


def indices(mask: Tensor) -> Tensor:
    """Positions of the true elements, ascending."""
    return torch.nonzero(mask).flatten()


def count(values: Tensor, num_values: int) -> Tensor:
    """How often each of 0 .. num_values - 1 occurs."""
    return torch.bincount(values, minlength=num_values)
