"""Combine on one rank: rows in the target layout -> their reduction in the source layout."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fuscoc_runtime.comm.requests import HeldWindows, Request, Window
from fuscoc_runtime.comm.windows import fitting
from fuscoc_runtime.engine.buffers import (
    Buffers,
    combine_windows,
    named,
    window_rows,
)
from fuscoc_runtime.engine.handle import Handle, check_handle, meet_with_handle, overwritten
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.engine.meeting import meet
from fuscoc_runtime.engine.path import PreparedPath
from fuscoc_runtime.engine.reply import own_handle
from fuscoc_runtime.engine.row_fields import like_the_source
from fuscoc_runtime.engine.weights import MISSING, named_weights, weights_of_rows, word
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.plan.agree import attempt

CALL = "a combine"


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
    checked = attempt(machine.context.rank, lambda: _check(machine, rows, handle, given))
    handle = handle if isinstance(checked, FuscoRuntimeError) else own_handle(machine, handle)
    held = yield HeldWindows()
    if isinstance(checked, FuscoRuntimeError):
        yield from meet(machine, checked, CALL)
        raise checked
    row_tensors, weights = checked
    sent, plan = handle.sent_weights, handle.plan
    needed = combine_windows(machine, plan.max_rows)
    there = fitting(held, needed.nbytes)
    del held

    def prepare(windows: Mapping[str, Window], received: Mapping[str, Tensor]) -> _Prepared:
        shapes = handle.source_shapes
        results = like_the_source(machine.shuffle.program, shapes, machine.device)
        tensors = {
            **named("rows", row_tensors),
            **received,
            **window_rows(machine, plan.rows.staging, windows, "staging"),
            **window_rows(machine, plan.rows.forward_staging, windows, "forward_staging"),
            **named("result", results),
        }
        buffers = Buffers(tensors, windows)
        path = machine.shuffle.program.combine
        assert path is not None
        return _Prepared(buffers, PreparedPath(machine, path, plan, buffers), received)

    ready: _Prepared | None = None
    mine = word(sent, handle.weights, given)

    def prepare_alone() -> None:
        """If windows are large enough, and the weights of this rank's rows are those that came
        with dispatch, nobody else is needed."""
        nonlocal ready
        if there is not None and weights is None:
            ready = prepare(there, {})
        elif there is not None and sent is not None and not mine & MISSING:
            ready = prepare(there, named_weights(machine, sent.received))

    words = yield from meet_with_handle(machine, handle, CALL, mine, prepare_alone)
    received = yield from weights_of_rows(machine, weights, plan, sent, words)
    windows = yield needed
    if ready is None or not ready.uses(received):
        ready = prepare(windows, received)
    yield from ready.path.run()
    return ready.buffers.rows("result")


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A combine that is ready to run, with the weights of its rows by name, if there are any."""

    buffers: Buffers
    path: PreparedPath
    weights: Mapping[str, Tensor]

    def uses(self, weights: Mapping[str, Tensor]) -> bool:
        """Whether it is with these weights."""
        return all(self.weights[name] is tensor for name, tensor in weights.items())


def _check(
    machine: Machine,
    rows: Tensor | Mapping[str, Tensor],
    handle: Handle,
    given: Mapping[str, Any],
) -> tuple[dict[str, Tensor], Tensor | None]:
    """The rows and the weights, if nothing is wrong with them on this rank."""
    problem = machine.checker.problem
    if machine.shuffle.program.combine is None:
        raise problem(machine.shuffle.name, "has no combine in its spec")
    asked = machine.asks or machine
    check_handle(asked, handle)
    checked = machine.checker.rows(rows, handle.num_slots)
    if handle.number != asked.held.dispatch:
        for name, tensor in _by_field(machine, rows).items():
            if asked.lends(tensor):
                raise problem(name, overwritten(handle.number, asked.held.dispatch))
    own = own_handle(machine, handle)
    return checked, machine.checker.weights({**own.weights, **given}, own.extents)


def _by_field(machine: Machine, rows: Tensor | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return (
        {machine.shuffle.program.buffers["source"][0].name: rows}
        if isinstance(rows, Tensor)
        else rows
    )
