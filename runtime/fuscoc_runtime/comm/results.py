"""Memory for results that peers store into, with the lives of ordinary tensors.

PyTorch's allocator knows when memory may be used again: which stream it belongs to, and which
others have it recorded. So it has a pool here, whose one segment the peers have mapped, and results
are tensors of that pool. Tensors that are made over memory by other means are none of its: it
ignores for which streams they are recorded, and autograd records gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

NUM_RESULTS = 2
"""Results of full size that there is memory for: one that is kept while the next one comes."""

FEW_SMS, LENT_BYTES = 48, 16 << 20
"""With fewer SMs results of so many bytes and more are lent. On all of them NVLink is nearly as
busy where results are staged, and to have no part free then costs more than to have one gains."""

LEAST_PART, PART_STEP = 12 << 20, 2 << 20
"""Bytes of a part: below 10 MiB PyTorch's allocator makes larger segments than it was asked, and
would find room there that peers have not mapped; others have a multiple of so many bytes."""


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
    """Parts of the one ``segment`` of a pool of PyTorch's, one for each of `NUM_RESULTS`.

    A pool that has no part free would allocate more, which peers have not mapped. So the results
    that are kept are counted, and while there are so many the next ones have memory as all tensors
    have. A part that nothing keeps may still be read on a stream that it was recorded for. The pool
    then gives other memory, once: that is held, so that nobody gets it again, and from then on the
    pool is looked at before it is asked, which takes the host 0.2 ms.
    """

    def __init__(
        self, pool: torch.cuda.MemPool, segment: range, bases: Sequence[int], mapped: Any
    ) -> None:
        """``segment`` are its addresses; ``mapped`` keeps that of the peers mapped."""
        self.bases, self.num_bytes = bases, len(segment)
        self._pool, self._segment, self._mapped = pool, segment, mapped
        self._part_bytes = self.num_bytes // NUM_RESULTS
        self._stream = torch.cuda.current_stream().cuda_stream
        self._kept: list[StorageWeakRef] = []
        self._other: Tensor | None = None

    def empty(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        """As `ResultMemory` has it."""
        nbytes = shape.numel() * dtype.itemsize
        if not 0 < nbytes <= self._part_bytes or not self._has_room():
            return torch.empty(shape, dtype=dtype, device=device)
        with torch.cuda.use_mem_pool(self._pool):
            memory = torch.empty(self._part_bytes, dtype=torch.uint8, device=device)
        if memory.data_ptr() not in self._segment:
            if self._other is not None:  # a setting of the allocator's leaves its blocks alone
                self._segment = range(0)
            self._other = memory
            return torch.empty(shape, dtype=dtype, device=device)
        self._kept.append(StorageWeakRef(memory.untyped_storage()))  # type: ignore[no-untyped-call]
        return memory[:nbytes].view(dtype).view(shape).data  # which is no view to autograd

    def offset(self, result: Tensor) -> int:
        """As `ResultMemory` has it."""
        if not result.nbytes:  # nobody stores there
            return 0
        address = result.data_ptr()
        return address - self._segment.start if address in self._segment else -1

    def _has_room(self) -> bool:
        """Whether a part is free on the current stream: a segment belongs to that on which it was
        made. In a capture none is, since what a graph writes to has to be its own."""
        self._kept = [each for each in self._kept if not _is_gone(each)]
        return (
            len(self._segment) > 0
            and len(self._kept) < NUM_RESULTS
            and torch.cuda.current_stream().cuda_stream == self._stream
            and not torch.cuda.is_current_stream_capturing()
            and (self._other is None or self._is_free())
        )

    def _is_free(self) -> bool:
        return any(
            block["state"] == "inactive" and block["size"] >= self._part_bytes
            for segment in torch.cuda.memory_snapshot(self._pool.id)  # type: ignore[no-untyped-call]
            if segment["address"] == self._segment.start
            for block in segment["blocks"]
        )


def _is_gone(storage: StorageWeakRef) -> bool:
    """Whether no tensor keeps it."""
    return bool(storage.expired())  # type: ignore[no-untyped-call]
