"""Rows that go on into memory of the caller's, which is what their dispatch returns then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.engine.into import NOWHERE, Given, Into
from fuscoc_runtime.engine.row_kernels import put_rows, take_rows


def put(
    into: Into, given: Given, rows: Mapping[str, Tensor], handle: Any
) -> Tensor | dict[str, Tensor]:
    """Put rows [num_slots, *field shape] that a dispatch has brought where they go: the memory that
    the call was given, which is changed in place.

    Its gradient is masked where rows are put, and is theirs there.
    """
    filled = handle.row_of_slot >= 0 if isinstance(handle, Handle) else handle.launched.filled
    goes = filled.repeat_interleave(into.parts_of_row)
    places = torch.where(goes, given.places, NOWHERE)
    done = {
        name: _Put.apply(memory, rows[name], places, into.parts_of_row)  # type: ignore[no-untyped-call]
        for name, memory in given.memory.items()
    }
    return next(iter(done.values())) if len(done) == 1 else done


class _Put(torch.autograd.Function):
    """``memory`` with the parts of ``rows`` at ``places``."""

    @staticmethod
    def forward(ctx: Any, memory: Tensor, rows: Tensor, places: Tensor, parts: int) -> Tensor:
        ctx.mark_dirty(memory)
        ctx.save_for_backward(places)
        ctx.shape, ctx.parts = rows.shape, parts
        cut = rows.contiguous().view(len(places), -1)
        put_rows(cut, places, memory.view(-1, cut.shape[1]) if cut.numel() else memory)
        return memory

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (places,) = ctx.saved_tensors
        of_rows = of_memory = None
        gradient = gradient.contiguous()
        width = ctx.shape.numel() // max(1, len(places))
        if ctx.needs_input_grad[1]:
            of_rows = gradient.new_zeros(ctx.shape)
            if of_rows.numel():
                index = places.clamp(min=NOWHERE)
                of_rows = take_rows(gradient.view(-1, width), index).view(ctx.shape)
        if ctx.needs_input_grad[0]:
            of_memory = gradient.clone()
            if width and len(places):
                nothing = gradient.new_zeros(len(places), width)
                put_rows(nothing, places, of_memory.view(-1, width))
        return of_memory, of_rows, None, None
