"""The way that a call takes: straight to the engine, as an operator, or beside other work.

What autograd or a compiler has to see goes through the operators of ``ops``, everything else to the
engine, whose rows are views. Arguments that do not fit go to the engine either way: there ranks
tell each other, so that all of them raise the error. Dynamo traces this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from fuscoc_runtime.engine.arguments import has_tangent
from fuscoc_runtime.engine.ends import Event
from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.engine.into import Into
from fuscoc_runtime.engine.node.engine import current_device
from fuscoc_runtime.engine.node.exact_engine import Doubt, ExactEngine
from fuscoc_runtime.engine.node.exact_handle import ExactHandle
from fuscoc_runtime.engine.node.handle import NodeHandle
from fuscoc_runtime.engine.streams import call_order
from fuscoc_runtime.errors import FuscoRuntimeError, InputError
from fuscoc_runtime.face.complexes import as_complex, as_reals, rows_as_reals
from fuscoc_runtime.face.executor import Executor
from fuscoc_runtime.face.into import put
from fuscoc_runtime.face.traced import (
    TracedHandle,
    as_handle,
    bind,
    bind_combine,
    combine_traced,
    dispatch_traced,
    needs_grad,
    saves_unchecked,
    weight_name,
    weights_of,
)
from fuscoc_runtime.manifest.declared import FieldSpec
from fuscoc_runtime.plan.agree import attempt

T = TypeVar("T")

AnyHandle = Handle | NodeHandle | ExactHandle | TracedHandle


def dispatch(
    executor: Executor,
    fields: Sequence[Tensor],
    named: Mapping[str, Any],
    handle: AnyHandle | None,
    async_op: bool,
    after: torch.cuda.Event | None,
) -> Any:
    """``Shuffle.dispatch`` of one that repeats none: rows and handle, and an event with
    ``async_op``."""
    _check_mode(executor)
    _check_after(executor, after, async_op)
    fields, named = as_reals(executor.spec.declared.source.fields, fields, named)

    def call() -> tuple[Any, Any]:
        if executor.into is not None:
            return _dispatch_into(executor, executor.into, fields, named, handle)
        sources = [
            *fields,
            *(named.get(field.name) for field in executor.spec.declared.source.fields),
        ]
        if torch.compiler.is_compiling() or needs_grad(sources) or saves_unchecked():
            return _dispatch_fresh(executor, fields, named, handle)
        return _dispatch_now(executor, fields, named, handle)

    if not async_op:
        return call()
    (rows, new), event = _beside(executor, call, [fields, named, handle], after)
    return rows, new, event


def dispatch_fresh(
    executor: Executor,
    fields: Sequence[Tensor],
    named: Mapping[str, Any],
    handle: AnyHandle | None,
) -> tuple[Any, Any]:
    """``Shuffle.dispatch_fresh``: by the operator, whose rows are tensors of their own."""
    _check_mode(executor)
    fields, named = as_reals(executor.spec.declared.source.fields, fields, named)
    if executor.into is not None:
        return _dispatch_into(executor, executor.into, fields, named, handle)
    return _dispatch_fresh(executor, fields, named, handle)


def _dispatch_fresh(
    executor: Executor,
    fields: Sequence[Tensor],
    named: Mapping[str, Any],
    handle: AnyHandle | None,
) -> tuple[Any, Any]:
    spec, rank = executor.spec, executor.engine.members.rank
    weight = weight_name(spec)
    sent = [*fields, *(value for name, value in named.items() if name != weight)]
    returned = [value for name, value in named.items() if name == weight]
    if (
        (needs_grad(sent) and not spec.sends_differentiably)
        or (needs_grad(returned) and not spec.back.is_differentiable)
        or _have_tangents([*sent, *returned])
    ):
        return _dispatch_now(executor, fields, named, handle)  # raises it on every rank
    try:
        bound = bind(spec, rank, fields, named, handle is not None)
    except InputError:
        if torch.compiler.is_compiling():
            raise
        return _dispatch_now(executor, fields, named, handle)  # raises it on every rank
    here = rank, executor.engine.members.topology.num_ranks
    as_sent = executor.weighs_as_sent
    rows, traced = dispatch_traced(executor.key, spec, here, bound, handle, as_sent)
    if torch.compiler.is_compiling():
        return _unwrap(rows, spec.declared.fields), traced
    return _unwrap(rows, spec.declared.fields), as_handle(spec, traced)


def _dispatch_into(
    executor: Executor,
    into: Into,
    fields: Sequence[Tensor],
    named: Mapping[str, Any],
    handle: AnyHandle | None,
) -> tuple[Any, Any]:
    """A dispatch whose rows go on into memory of the caller's, which it returns."""
    rank = executor.engine.members.rank
    if torch.compiler.is_compiling():
        raise InputError(into.spec.argument, rank, "is changed in place: call this uncompiled")
    repeats, given_all = executor.into_repeats, named
    if repeats is not None and handle is None and not saves_unchecked():
        found = executor.repeat_into(fields, named)
        if found is not None:
            return found
    own, named = into.split(named)
    if handle is not None:  # tells what both need
        named = {name: value for name, value in named.items() if name not in own}
    sources = [*fields, *named.values()]
    num_slots = getattr(handle, "num_slots", None)
    with current_device(executor.engine.members.device):
        given = attempt(rank, lambda: into.prepare(own, sources, num_slots))
        if isinstance(given, FuscoRuntimeError):
            return _dispatch_now(executor, fields, named, handle, given)  # raises it on every rank
        kept = needs_grad([*sources, *given.memory.values()]) or saves_unchecked()
        problem: FuscoRuntimeError | Doubt | None
        if kept or handle is not None or not isinstance(executor.engine, ExactEngine):
            problem = into.fault(given)
        else:  # the wait for what is planned is one for this, too
            problem = Doubt(given.lost.sum(0, keepdim=True), partial(into.fault, given))
    if handle is None:
        named = into.told(named, given)
    if kept and problem is None:
        rows, new = _dispatch_fresh(executor, fields, named, handle)
    else:
        rows, new = _dispatch_now(executor, fields, named, handle, problem)
    by_field = rows if isinstance(rows, Mapping) else {executor.spec.declared.fields[0].name: rows}
    device = executor.engine.members.device
    with current_device(device), call_order(device).turn():  # before the next rows come there
        changed = put(into, given, by_field, new)
    if repeats is not None and handle is None and not kept:
        repeats.remember(fields, given_all, given, new)
    return changed, new


def _dispatch_now(
    executor: Executor,
    fields: Sequence[Tensor],
    named: Mapping[str, Any],
    handle: AnyHandle | None,
    problem: FuscoRuntimeError | Doubt | None = None,
) -> tuple[Any, Any]:
    earlier = None if handle is None else as_handle(executor.spec, handle)
    rows, new = executor.dispatch(fields, named, earlier, problem)
    return _unwrap(rows, executor.spec.declared.fields), new


def combine(
    executor: Executor,
    rows: Tensor | Mapping[str, Tensor],
    handle: AnyHandle,
    inputs: Mapping[str, Tensor],
    async_op: bool,
    after: torch.cuda.Event | None,
) -> Any:
    """``Shuffle.combine`` of one that repeats none: the result, and an event with ``async_op``."""
    _check_mode(executor)
    _check_after(executor, after, async_op)
    specs = executor.spec.back.declared.source.fields
    rows = rows_as_reals(specs, rows)

    def call() -> Any:
        return _unwrap(_combine(executor, rows, handle, inputs), specs)

    return call() if not async_op else _beside(executor, call, [rows, inputs, handle], after)


def _combine(
    executor: Executor,
    rows: Tensor | Mapping[str, Tensor],
    handle: AnyHandle,
    inputs: Mapping[str, Tensor],
) -> Mapping[str, Tensor]:
    spec, rank = executor.spec.back, executor.engine.members.rank
    given = rows.values() if isinstance(rows, Mapping) else [rows]
    tensors = [*given, *(inputs.values() or weights_of(handle))]
    if torch.compiler.is_compiling() or (
        needs_grad(tensors) and spec.is_differentiable and not _have_tangents(tensors)
    ):
        try:
            bound = bind_combine(spec, rank, rows, handle, inputs, executor.takes_late_weights)
        except InputError:
            if torch.compiler.is_compiling():
                raise  # otherwise below, on every rank
        else:
            return combine_traced(executor.back_key, spec, bound)
    return executor.combine(rows, as_handle(executor.spec, handle), inputs)


def _have_tangents(values: Sequence[Any]) -> bool:
    """Whether the engine refuses some of them, of which operators would say less."""
    return not torch.compiler.is_compiling() and any(map(has_tangent, values))


def _check_mode(executor: Executor) -> None:
    """Refuse a call where no new tensor holds numbers, so that not even ranks could agree on it."""
    if torch.compiler.is_compiling() or not torch._C._len_torch_dispatch_stack():
        return
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        problem = "is called in a FakeTensorMode: call it outside, or compile the call"
        raise InputError(executor.spec.name, executor.engine.members.rank, problem)


def _check_after(executor: Executor, after: object, async_op: bool) -> None:
    if after is None:
        return
    rank = executor.engine.members.rank
    if not async_op:
        raise InputError("after", rank, "is given without async_op=True")
    if not isinstance(after, torch.cuda.Event):
        problem = f"is a {type(after).__name__}; it must be a torch.cuda.Event"
        raise InputError("after", rank, problem)


def _beside(
    executor: Executor, call: Callable[[], T], given: Sequence[Any], after: Any
) -> tuple[T, Event]:
    """Make the call on the communication stream; a graph's order is its compiler's affair."""
    if torch.compiler.is_compiling():
        return call(), Event()
    return executor.beside(call, given, after)


def _unwrap(
    fields: Mapping[str, Tensor], specs: Sequence[FieldSpec]
) -> Tensor | Mapping[str, Tensor]:
    """One tensor, or several by name, as the user knows them."""
    fields = as_complex(specs, fields)
    return next(iter(fields.values())) if len(fields) == 1 else fields
