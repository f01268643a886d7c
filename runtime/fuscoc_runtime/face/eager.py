"""The operators of ``ops`` where autograd alone sees them: by functions of its own.

An operator that takes lists of tensors goes through PyTorch's dispatcher in Python, which costs the
host more than the call of an engine. Formulae are the operators', and so is what is done. Compilers
get the operators, and so do modes that look at these. Dynamo traces this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.face import ops

Dispatch = tuple[
    str, Sequence[Tensor], Sequence[Tensor], Sequence[int], Sequence[Tensor], Sequence[Tensor]
]
Combine = tuple[str, Sequence[Tensor], Tensor, Sequence[Tensor], Sequence[int]]


def dispatch(*given: *Dispatch) -> Sequence[Tensor]:
    """`ops.dispatch`."""
    _, fields, *_ = given
    done: Sequence[Tensor] = (
        ops.dispatch(*given) if _sees_operators() else _Dispatch.apply(given, *fields)  # type: ignore[no-untyped-call]
    )
    return done


def combine(*given: *Combine) -> Sequence[Tensor]:
    """`ops.combine`."""
    _, rows, _, weights, _ = given
    done: Sequence[Tensor] = (
        ops.combine(*given) if _sees_operators() else _Combine.apply(given, *rows, *weights)  # type: ignore[no-untyped-call]
    )
    return done


def _sees_operators() -> bool:
    """Whether somebody beside autograd looks at operators."""
    return torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0


class _Dispatch(torch.autograd.Function):
    """Of the fields, which come behind all that the operator is given."""

    @staticmethod
    def forward(ctx: Any, given: Dispatch, *fields: Tensor) -> tuple[Tensor, ...]:
        done = ops.dispatched(*given)
        ops.dispatch_context(ctx, given, done)
        return tuple(done)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        pull = ops.pull if torch.is_grad_enabled() else ops.pulled  # that refuses a second one
        _, fields, *_ = ops.dispatch_gradients(ctx, grads, pull)
        return None, *fields


class _Combine(torch.autograd.Function):
    """Of rows and weights, in the same way."""

    @staticmethod
    def forward(ctx: Any, given: Combine, *tensors: Tensor) -> tuple[Tensor, ...]:
        done = ops.combined(*given)
        ops.combine_context(ctx, given, done)
        return tuple(done)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        again = ops.combine_backward if torch.is_grad_enabled() else ops.combined_backward
        _, rows, _, weights, _ = ops.combine_gradients(ctx, grads, again)
        return None, *rows, *weights
