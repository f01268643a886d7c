"""Combine on one rank: rows in the target layout -> their reduction in the source layout."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.comm.requests import AllToAll, Request
from fuscoc_runtime.engine.buffers import (
    Buffers,
    combine_windows,
    named,
    private_rows,
    window_rows,
)
from fuscoc_runtime.engine.dtypes import TORCH_DTYPES
from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.engine.steps import run_steps
from fuscoc_runtime.errors import FuscoRuntimeError, InputError
from fuscoc_runtime.plan import RankPlan
from fuscoc_runtime.plan.agree import agree


def combine(
    machine: Machine,
    rows: Tensor | Mapping[str, Tensor],
    handle: Handle,
    given: Mapping[str, Any],
) -> Generator[Request, Any, dict[str, Tensor]]:
    """Collective over all ranks. Returns the source's fields by name, in its shapes.

    Every source segment becomes the weighted sum (or, for ``reverse``, the copy) of the rows of
    its points; 0 where all its points were dropped. Cells outside every segment are 0.

    Raises, on every rank, whatever is wrong on any of them before anything is moved.
    """
    checked = _check(machine, rows, handle, given)
    # Also the barrier that lets ranks overwrite each other's windows of the previous call.
    yield from agree(checked if isinstance(checked, FuscoRuntimeError) else None, machine.device)
    if isinstance(checked, FuscoRuntimeError):
        raise checked
    row_tensors, weights = checked
    plan = handle.plan
    received = yield from _exchange_weights(weights, plan)

    windows = yield combine_windows(machine, plan)
    tensors = {
        **named("rows", row_tensors),
        **received,
        **window_rows(machine, plan, windows, "staging"),
        **window_rows(machine, plan, windows, "forward_staging"),
        **private_rows(machine, "return_slices", plan.rows.landing),
        **named("result", _results(machine, handle)),
    }
    buffers = Buffers(tensors, windows)
    steps = machine.shuffle.combine_steps
    yield from run_steps(machine, steps.steps if steps is not None else (), plan, buffers)
    return buffers.rows("result")


def _check(
    machine: Machine,
    rows: Tensor | Mapping[str, Tensor],
    handle: Handle,
    given: Mapping[str, Any],
) -> tuple[dict[str, Tensor], Tensor | None] | FuscoRuntimeError:
    try:
        if machine.shuffle.combine_steps is None:
            rank = machine.context.rank
            raise InputError(machine.shuffle.name, rank, "has no combine in its spec")
        checked = machine.checker.rows(rows, handle.num_slots)
        return checked, machine.checker.weights(given, handle.extents)
    except FuscoRuntimeError as error:
        return error


def _exchange_weights(
    weights: Tensor | None, plan: RankPlan
) -> Generator[Request, Any, dict[str, Tensor]]:
    """Every live point's weight to the rank that holds the point's row."""
    if weights is None:
        return {}
    ordered = weights.reshape(-1)[plan.point_order]
    received = yield AllToAll(ordered, plan.point_send_counts, plan.point_recv_counts)
    return {"weights": received}


def _results(machine: Machine, handle: Handle) -> dict[str, Tensor]:
    return {
        field.name: torch.zeros(
            handle.source_shapes[field.name],
            dtype=TORCH_DTYPES[field.dtype],
            device=machine.device,
        )
        for field in machine.shuffle.source.fields
    }
