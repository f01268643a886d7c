"""Memory for results that ranks lend, where there is no GPU: see `ResultMemory`."""

from __future__ import annotations

import torch

from fuscoc_runtime.comm.windows import Allocate
from fuscoc_runtime.engine.node.state import ALIGNMENT


class Results:
    """Memory for results of a rank, each behind the one before; every `elsewhere`th has none."""

    elsewhere = 0

    def __init__(self, allocate: Allocate, rank: int, nbytes: int) -> None:
        self._part, self.num_bytes = -(-nbytes // ALIGNMENT) * ALIGNMENT, 2 * nbytes
        self._window = allocate(2 * self._part)
        self.bases, self._number = self._window.peer_bases.tolist(), rank

    def empty(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        self._number += 1
        nbytes = shape.numel() * dtype.itemsize
        if nbytes > self._part or (self.elsewhere and self._number % self.elsewhere == 0):
            return torch.empty(shape, dtype=dtype)
        part = self._window.local[self._number % 2 * self._part :][:nbytes]
        return part.view(dtype).view(shape)

    def offset(self, result: torch.Tensor) -> int:
        if not result.nbytes:
            return 0
        offset = result.data_ptr() - self._window.local.data_ptr()
        return offset if 0 <= offset < 2 * self._part else -1
