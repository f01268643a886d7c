"""Memory for results that peers store into, with the lives of ordinary tensors.

PyTorch's allocator knows when memory may be used again: which stream it belongs to, and which
others have it recorded. So it has a pool here, whose one segment the peers have mapped, and results
are tensors of that pool. Tensors that are made over memory by other means are none of its: it
ignores for which streams they are recorded, and autograd records gradients.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

NUM_RESULTS = 2
"""Results of full size that there is memory for: one that is kept while the next one comes."""

LEAST_BYTES, LEAST_SEGMENT, ROUNDING = 2 << 20, 16 << 20, 512
"""PyTorch's allocator has smaller tensors in other segments, makes small segments larger than
asked, and rounds sizes up."""

_log = logging.getLogger("fuscoc.runtime")


class ResultMemory(Protocol):
    """What a rank lends of its memory while a result comes.

    Attributes:
        bases: where it begins on every rank of the node, as mapped here.
        num_bytes: of this rank.
    """

    bases: Sequence[int]
    num_bytes: int

    def empty(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        """As `torch.empty`, and in this memory if there is room."""
        ...

    def offset(self, result: Tensor) -> int:
        """Bytes before a result, -1 if it lies elsewhere; 0 for one that has none."""
        ...


class PooledResults:
    """Memory in the one ``segment`` of a pool of PyTorch's.

    A pool that has no room would allocate more, which peers have not mapped. So it is looked at
    first; then a result has memory as all tensors have.
    """

    def __init__(
        self, pool: torch.cuda.MemPool, segment: range, bases: Sequence[int], mapped: Any
    ) -> None:
        """``segment`` are its addresses; ``mapped`` keeps that of the peers mapped."""
        self.bases, self.num_bytes = bases, len(segment)
        self._pool, self._segment, self._mapped = pool, segment, mapped

    def empty(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        """As `ResultMemory` has it."""
        nbytes = shape.numel() * dtype.itemsize
        if not self._has_room(max(nbytes, LEAST_BYTES)):
            return torch.empty(shape, dtype=dtype, device=device)
        with torch.cuda.use_mem_pool(self._pool):
            memory = torch.empty(max(nbytes, LEAST_BYTES), dtype=torch.uint8, device=device)
        if memory.data_ptr() not in self._segment:  # a setting of the allocator's leaves it alone
            _log.info("results are staged: PyTorch's allocator does not split what it has")
            self._segment = range(0)
        return memory[:nbytes].view(dtype).view(shape).data  # which is no view to autograd

    def offset(self, result: Tensor) -> int:
        """As `ResultMemory` has it."""
        if not result.nbytes:  # nobody stores there
            return 0
        address = result.data_ptr()
        return address - self._segment.start if address in self._segment else -1

    def _has_room(self, nbytes: int) -> bool:
        """Whether so many bytes are free on the current stream, to which a segment belongs for
        good. In a capture none are: what a graph writes to has to be its own."""
        if torch.cuda.is_current_stream_capturing():
            return False
        stream = torch.cuda.current_stream().cuda_stream
        return any(
            segment["address"] == self._segment.start
            and segment["stream"] == stream
            and any(
                block["state"] == "inactive" and block["size"] >= -(-nbytes // ROUNDING) * ROUNDING
                for block in segment["blocks"]
            )
            for segment in torch.cuda.memory_snapshot(self._pool.id)  # type: ignore[no-untyped-call]
        )
