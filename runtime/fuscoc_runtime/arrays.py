"""Columns of integers: tensors of PyTorch on any device, or arrays of numpy.

A plan is made of either, by the same code. A call plans on its compute device, in tensors. The
compiler plans on the host, in arrays of numpy: to load PyTorch would take it longer than all else.
So such code asks a column for its ``namespace``, and takes from that what both modules have.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Array: TypeAlias = "Tensor"
"""A tensor, or an array of numpy. Who checks types takes it for a tensor, as calls do; code that
takes both keeps to what both have."""


def namespace(array: Array | NDArray[Any]) -> Any:
    """The module whose functions take ``array``: numpy or torch."""
    return np if isinstance(array, np.ndarray) else sys.modules["torch"]


def on_host(array: Array | NDArray[Any]) -> Any:
    """The same values as an array of numpy, which shares the memory of what is on the host."""
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()


def array_on(array: Array | NDArray[Any], device: torch.device | None) -> Any:
    """The same values as a tensor on ``device``, without one as an array of numpy."""
    if device is None:
        return on_host(array)
    import torch

    return torch.as_tensor(array).to(device)


def split(array: Any, sizes: Sequence[int]) -> list[Any]:
    """Parts of so many rows, one behind the other, which are all that there are."""
    if sum(sizes) != len(array):
        raise ValueError(f"{len(array)} rows are no parts of {list(sizes)}")
    return [array[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]
