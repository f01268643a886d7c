"""What a program has chosen for PyTorch, which the runtime's own tensors do not follow."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def on_the_cpu_by_default() -> AbstractContextManager[object]:
    """What the runtime makes without a word about devices is for the host, whatever default a
    program has set."""
    usual = torch.device("cpu")
    return nullcontext() if torch.get_default_device() == usual else usual
