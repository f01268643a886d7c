"""Experts one behind the other: a linear layer of each on its own rows, whose numbers only the
device knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def bias_of_rows(bias: Tensor, ends: Tensor, num_rows: int) -> Tensor:
    """[num_rows, out]: of the bias [experts, out] that of each row's expert, 0 behind the last of
    the ``ends`` [experts]."""
    slots = torch.arange(num_rows, device=ends.device)
    expert = torch.searchsorted(ends, slots, right=True)
    return F.pad(bias, (0, 0, 0, 1))[expert]


def grouped_linear(rows: Tensor, ends: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """[num_rows, out]: expert i, whose weight is [out, in], on the rows [num_rows, in] up to
    ``ends[i]``, int32 on the device.

    The weights lie apart and are put beside each other for each GEMM; none of these copies is kept
    for the backward pass. Rows behind the last end hold anything, as do their gradients.
    """
    outputs: Tensor = _Grouped.apply(rows, ends, *weights)  # type: ignore[no-untyped-call]
    return outputs


class _Grouped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, ends: Tensor, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(rows, ends, *weights)
        return F.grouped_mm(rows, torch.stack(weights).transpose(1, 2), offs=ends)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, ends, *weights = ctx.saved_tensors
        gradient = gradient.contiguous()
        of_rows: Tensor | None = None
        of_weights: tuple[Tensor | None, ...] = (None,) * len(weights)
        if ctx.needs_input_grad[0]:
            of_rows = F.grouped_mm(gradient, torch.stack(weights), offs=ends)
        if any(ctx.needs_input_grad[2:]):
            of_weights = F.grouped_mm(gradient.T, rows, offs=ends).unbind()
        return of_rows, None, *of_weights
