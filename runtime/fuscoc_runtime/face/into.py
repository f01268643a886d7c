"""Rows that go on into memory of the caller's, which is what their dispatch returns then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.engine.into import NOWHERE, Given, Into
from fuscoc_runtime.engine.row_kernels import accumulate_rows, put_rows, take_rows


def put(
    into: Into, given: Given, rows: Mapping[str, Tensor], handle: Any
) -> Tensor | dict[str, Tensor]:
    """Put rows [num_slots, *field shape] that a dispatch has brought where they go, or add them to
    what is there: the memory that the call was given, which is changed in place.

    Its gradient is theirs where they go. Where rows are put, the memory's own is masked.
    """
    filled = handle.row_of_slot >= 0 if isinstance(handle, Handle) else handle.launched.filled
    by_slot = given.places.view(-1, into.parts_of_row)
    places = into.latest = torch.where(filled[:, None], by_slot, NOWHERE).flatten()
    way = _Put if into.spec.kind == "copy" else _Add
    done = {
        name: way.apply(memory, rows[name], places)  # type: ignore[no-untyped-call]
        for name, memory in given.memory.items()
    }
    return next(iter(done.values())) if len(done) == 1 else done


def _change(
    by: Callable[[Tensor, Tensor, Tensor], None],
    ctx: Any,
    memory: Tensor,
    rows: Tensor,
    places: Tensor,
) -> Tensor:
    ctx.mark_dirty(memory)
    ctx.save_for_backward(places)
    ctx.shape = rows.shape
    if rows.numel():
        cut = rows.contiguous().view(len(places), -1)
        by(cut, places, memory.view(-1, cut.shape[1]))
    return memory


class _Add(torch.autograd.Function):
    """``memory`` with the parts of ``rows`` added to it at ``places``, in their order."""

    @staticmethod
    def forward(ctx: Any, memory: Tensor, rows: Tensor, places: Tensor) -> Tensor:
        return _change(accumulate_rows, ctx, memory, rows, places)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (places,) = ctx.saved_tensors
        if not ctx.shape.numel():
            return gradient, gradient.new_empty(ctx.shape), None
        parts = gradient.contiguous().view(-1, ctx.shape.numel() // len(places))
        return gradient, take_rows(parts, places).view(ctx.shape), None


class _Put(torch.autograd.Function):
    """``memory`` with the parts of ``rows`` at ``places``."""

    @staticmethod
    def forward(ctx: Any, memory: Tensor, rows: Tensor, places: Tensor) -> Tensor:
        return _change(put_rows, ctx, memory, rows, places)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (places,) = ctx.saved_tensors
        if not ctx.shape.numel():
            return gradient, gradient.new_empty(ctx.shape), None
        of_memory = gradient.clone(memory_format=torch.contiguous_format)
        parts = of_memory.view(-1, ctx.shape.numel() // len(places))
        of_rows = take_rows(parts, places)
        put_rows(torch.zeros_like(of_rows), places, parts)
        return of_memory, of_rows.view(ctx.shape), None
