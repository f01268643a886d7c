"""What comparisons of whole models have in common, on CPU ranks and on those of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def device_of(group: Any) -> torch.device:
    on_gpu = dist.get_backend(group) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def far_apart(pairs: Mapping[str, tuple[Tensor, Tensor]]) -> list[str]:
    """Pairs that differ by more than a few roundings of bf16, all their elements together."""
    errors = {
        label: ((one - other).norm() / other.norm().clamp(min=2**-60)).item()
        for label, (one, other) in pairs.items()
    }
    return [f"{label} is off by {each:.1e}" for label, each in errors.items() if not each <= 2**-6]
