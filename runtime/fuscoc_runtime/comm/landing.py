"""Where bytes of the device land on the host."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Landing:
    """Pinned memory for one tensor that the host waits for, and when it is there."""

    def __init__(self) -> None:
        self._memory: Tensor | None = None
        self.copied: Any = None

    def copy(self, sent: Tensor) -> Tensor:
        """Where bytes will be when ``copied`` has ended. The copy before has."""
        if self._memory is None or self._memory.numel() < sent.numel():
            self._memory = torch.empty(
                2 * sent.numel(), dtype=torch.uint8, device="cpu", pin_memory=True
            )
            self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copy = self._memory[: sent.numel()].copy_(sent, non_blocking=True)
        self.copied.record()
        return copy


def as_bytes(tensor: Tensor) -> Tensor:
    """The tensor's bytes, 1-D; a view if it is contiguous."""
    return tensor.contiguous().view(-1).view(torch.uint8)
