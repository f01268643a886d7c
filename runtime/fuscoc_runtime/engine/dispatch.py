"""Dispatch on one rank: arguments -> rows in the target layout."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fuscoc_runtime.comm.requests import Request, Window
from fuscoc_runtime.engine.arguments import Arguments
from fuscoc_runtime.engine.buffers import (
    Buffers,
    dispatch_windows,
    named,
    row_bytes,
    window_rows,
)
from fuscoc_runtime.engine.handle import Handle, check_handle, meet_with_handle
from fuscoc_runtime.engine.machine import Held, Machine
from fuscoc_runtime.engine.meeting import meet
from fuscoc_runtime.engine.numbers import cast_numbers
from fuscoc_runtime.engine.path import PreparedPath
from fuscoc_runtime.engine.relation import evaluate_relation
from fuscoc_runtime.engine.reply import plan_reply
from fuscoc_runtime.engine.weights import exchange, sent_weights, travelling
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.plan import Points, RankPlan, plan_rank
from fuscoc_runtime.plan.agree import attempt
from fuscoc_runtime.plan.planner import num_sources, plan_with_weights

Prepared = tuple[Arguments, Points | RankPlan]
"""Checked arguments, and what to plan for them, or the plan where it never changes."""


@dataclass(frozen=True, eq=False)
class Dispatched:
    """Rows by field, [num_rows, *field shape], and the handle that combine takes.

    The rows are views of the window into which peers store: they last until this rank's next
    dispatch. Padding rows hold whatever was there before. The rows of a compact target are the
    segments that this rank got, by source rank, then source: ``handle.row_index`` says which of
    them a slot refers to.
    """

    rows: dict[str, Tensor]
    handle: Handle


def dispatch(
    machine: Machine,
    positional: Sequence[Tensor],
    given: Mapping[str, Any],
    earlier: Handle | None = None,
    problem: FuscoRuntimeError | None = None,
) -> Generator[Request, Any, Dispatched]:
    """Collective over all ranks. ``positional`` and ``given`` are the user's arguments.

    Weights of combine may be among them. With the handle of an ``earlier`` dispatch, the others are
    only the source's fields, and numbers that casts compute with: they go where those of that
    dispatch went, and nothing is planned. A rank that knows a ``problem`` already only takes part
    to raise it.

    Raises, on every rank, whatever is wrong on any of them before anything is moved.
    """
    started = time.perf_counter()
    with machine.tracer.span("plan", "the lists"):
        prepared = problem or _prepare(machine, positional, given, earlier)
        arguments, plan, received = yield from _plan(machine, prepared, earlier)
    planning_ms = (time.perf_counter() - started) * 1e3
    machine.num_dispatches += 1  # now that all ranks make this call
    reply = None if earlier is None else earlier.reply  # now that it is known to be a handle

    windows = yield dispatch_windows(machine, plan.max_rows)
    target = window_rows(machine, plan.rows.target, windows, "target")
    carried = {}
    if plan.wire.hands_over:
        carried = window_rows(machine, plan.rows.carried, windows, "carried")
    machine.held = Held(machine.num_dispatches, _addresses(windows, target))
    numbers = cast_numbers(machine.shuffle, arguments.inputs)
    read = {**named("source", arguments.fields), **named("numbers", numbers)}
    buffers = Buffers({**read, **carried, **target}, windows)
    path = PreparedPath(machine, machine.shuffle.program.dispatch, plan, buffers)
    yield from path.run()
    if machine.shuffle.program.is_static:
        machine.plan = plan
    if machine.reply is not None and reply is None:
        with machine.tracer.span("plan", "the reply"):
            reply = yield from plan_reply(machine.reply, arguments, plan)
    shapes = {name: tensor.shape for name, tensor in arguments.fields.items()}
    return Dispatched(
        buffers.rows("target"),
        Handle(
            plan,
            machine.context.topology,
            arguments.extents,
            shapes,
            row_bytes(machine, "target"),
            row_bytes(machine, "slices"),
            planning_ms,
            machine.identity,
            machine.num_dispatches,
            arguments.weights,
            machine.shuffle.program.is_compact,
            sent_weights=sent_weights(machine, arguments.weights, received),
            reply=reply,
        ),
    )


def _addresses(windows: Mapping[str, Window], buffers: Iterable[str]) -> tuple[range, ...]:
    parts = [windows[name].local for name in buffers]
    return tuple(range(part.data_ptr(), part.data_ptr() + part.numel()) for part in parts)


def _prepare(
    machine: Machine,
    positional: Sequence[Tensor],
    given: Mapping[str, Any],
    earlier: Handle | None,
) -> Prepared | FuscoRuntimeError:
    """Everything a rank does alone; an error is returned, for the ranks to raise it together."""

    def prepare() -> Prepared:
        if earlier is not None:
            check_handle(machine, earlier)
            arguments = machine.checker.fields_again(
                positional, given, earlier.source_shapes, earlier.extents
            )
            return replace(
                arguments, weights={**earlier.weights, **arguments.weights}
            ), earlier.plan
        arguments = machine.checker.dispatch_arguments(positional, given)
        return arguments, machine.plan or evaluate_relation(machine, arguments)

    def checked() -> Prepared:
        arguments, planned = prepare()
        machine.checker.check_not_lent(arguments, machine.lends)
        return arguments, planned

    return attempt(machine.context.rank, checked)


def _plan(
    machine: Machine, prepared: Prepared | FuscoRuntimeError, earlier: Handle | None
) -> Generator[Request, Any, tuple[Arguments, RankPlan, Tensor | None]]:
    """The plan for what was prepared: an earlier one, that of a static shuffle, or one made now;
    and weights that have travelled.

    Either way the ranks meet: they raise an error of any of them together, and none overwrites
    another's window while that is still at work on the previous call's rows.
    """
    context = machine.context
    call = "a dispatch" if earlier is None else "a dispatch by a handle"
    if isinstance(prepared, FuscoRuntimeError):
        planned = machine.plan is not None or earlier is not None
        yield from meet(machine, prepared, call) if planned else plan_rank(context, prepared)
        raise prepared
    arguments, points = prepared
    if isinstance(points, RankPlan):
        yield from meet_with_handle(machine, earlier, call)
        weights = travelling(machine, arguments.weights, points.num_sources)
        return arguments, points, None if weights is None else (yield exchange(weights, points))
    weights = travelling(machine, arguments.weights, num_sources(context, points))
    plan, received = yield from plan_with_weights(context, points, weights)
    return arguments, plan, received
