"""Dispatch on one rank: arguments -> rows in the target layout."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fuscoc_runtime.comm.requests import Request, Window
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
from fuscoc_runtime.engine.machine import Held, Machine
from fuscoc_runtime.engine.relation import evaluate_relation
from fuscoc_runtime.engine.steps import run_steps
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.plan import Points, RankPlan, plan_rank
from fuscoc_runtime.plan.agree import agree, attempt

Prepared = tuple[Arguments, Points | RankPlan]
"""Checked arguments, and what to plan for them, or the plan where it never changes."""


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

    Raises, on every rank, whatever is wrong on any of them before anything is moved.
    """
    started = time.perf_counter()
    machine.num_dispatches += 1
    arguments, plan = yield from _plan(machine, _prepare(machine, positional, given))
    planning_ms = (time.perf_counter() - started) * 1e3

    windows = yield dispatch_windows(machine, plan)
    target = window_rows(machine, plan, windows, "target")
    machine.held = Held(machine.num_dispatches, _addresses(windows, target))
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
            row_bytes(machine, "target"),
            planning_ms,
            machine.identity,
            machine.num_dispatches,
        ),
    )


def _addresses(windows: Mapping[str, Window], buffers: Iterable[str]) -> tuple[range, ...]:
    parts = [windows[name].local for name in buffers]
    return tuple(range(part.data_ptr(), part.data_ptr() + part.numel()) for part in parts)


def _prepare(
    machine: Machine, positional: Sequence[Tensor], given: Mapping[str, Any]
) -> Prepared | FuscoRuntimeError:
    """Everything a rank does alone; an error is returned, for the ranks to raise it together."""

    def prepare() -> Prepared:
        arguments = machine.checker.dispatch_arguments(positional, given)
        return arguments, machine.plan or evaluate_relation(machine, arguments)

    return attempt(machine.context.rank, prepare)


def _plan(
    machine: Machine, prepared: Prepared | FuscoRuntimeError
) -> Generator[Request, Any, tuple[Arguments, RankPlan]]:
    """The plan for what was prepared: the one that a static shuffle keeps, or one made now.

    Either way the ranks meet: they raise an error of any of them together, and none overwrites
    another's window while that is still at work on the previous call's rows.
    """
    context = machine.context
    if isinstance(prepared, FuscoRuntimeError):
        planned = machine.plan is not None
        yield from agree(prepared, machine.device) if planned else plan_rank(context, prepared)
        raise prepared
    arguments, points = prepared
    if isinstance(points, RankPlan):
        yield from agree(None, machine.device)
        return arguments, points
    plan = yield from plan_rank(context, points)
    if machine.shuffle.is_static:
        machine.plan = plan
    return arguments, plan
