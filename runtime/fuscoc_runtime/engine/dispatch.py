"""Dispatch on one rank: arguments -> rows in the target layout."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fuscoc_runtime.comm.requests import Request
from fuscoc_runtime.engine.arguments import Arguments
from fuscoc_runtime.engine.buffers import (
    Buffers,
    dispatch_windows,
    named,
    private_rows,
    row_bytes,
    window_rows,
)
from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.engine.relation import evaluate_relation
from fuscoc_runtime.engine.steps import run_steps
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.plan import Points, RankPlan, plan_rank


@dataclass(frozen=True, eq=False)
class Dispatched:
    """Rows by field, [num_slots, *field shape], and the handle that combine takes.

    The rows are views of the window into which peers store: they last until this rank's next
    dispatch. Padding rows hold whatever was there before.
    """

    rows: dict[str, Tensor]
    handle: Handle


def dispatch(
    machine: Machine, positional: Sequence[Tensor], given: Mapping[str, Any]
) -> Generator[Request, Any, Dispatched]:
    """Collective over all ranks. ``positional`` and ``given`` are the user's arguments.

    Raises, on every rank, whatever is wrong on any of them before anything is moved. Where a static
    shuffle has its plan already, the ranks have nothing to agree on: then a wrong argument is
    raised only on the rank that has it.
    """
    started = time.perf_counter()
    if machine.plan is not None:
        arguments, plan = machine.checker.dispatch_arguments(positional, given), machine.plan
    else:
        arguments, plan = yield from _plan(machine, positional, given)
    planning_ms = (time.perf_counter() - started) * 1e3

    windows = yield dispatch_windows(machine, plan)
    target = window_rows(machine, plan, windows, "target")
    tensors = {
        **named("source", arguments.fields),
        **private_rows(machine, "slices", plan.rows.slices),
        **private_rows(machine, "landing", plan.rows.landing),
        **target,
    }
    buffers = Buffers(tensors, windows)
    yield from run_steps(machine, machine.shuffle.dispatch.steps, plan, buffers)
    shapes = {name: tensor.shape for name, tensor in arguments.fields.items()}
    return Dispatched(
        buffers.rows("target"),
        Handle(
            plan,
            machine.context.topology,
            arguments.extents,
            shapes,
            row_bytes(machine),
            planning_ms,
        ),
    )


def _plan(
    machine: Machine, positional: Sequence[Tensor], given: Mapping[str, Any]
) -> Generator[Request, Any, tuple[Arguments, RankPlan]]:
    """Checked arguments and the plan for them, which is kept if it is the plan for all."""
    prepared = _prepare(machine, positional, given)
    if isinstance(prepared, FuscoRuntimeError):
        yield from plan_rank(machine.context, prepared)
        raise prepared
    arguments, points = prepared
    plan = yield from plan_rank(machine.context, points)
    if machine.shuffle.is_static:
        machine.plan = plan
    return arguments, plan


def _prepare(
    machine: Machine, positional: Sequence[Tensor], given: Mapping[str, Any]
) -> tuple[Arguments, Points] | FuscoRuntimeError:
    """Everything a rank does alone; an error is returned, for the ranks to raise it together."""
    try:
        arguments = machine.checker.dispatch_arguments(positional, given)
        return arguments, evaluate_relation(machine, arguments)
    except FuscoRuntimeError as error:
        return error
