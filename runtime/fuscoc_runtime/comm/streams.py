"""Streams that all shuffles of a GPU share."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


@cache
def shared_stream(device: torch.device, use: str, priority: int = 0) -> Any:
    """The same one for all shuffles of a GPU, whose calls follow each other anyway. A GPU has few
    hardware queues, and streams that share one wait for each other."""
    return torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
