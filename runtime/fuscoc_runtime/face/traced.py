"""Calls as operators see them: arguments in the spec's order, handles as tokens.

Dynamo traces this file, so it does nothing but sort arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from fuscoc_runtime.engine.arguments import NO_GRADIENT, NO_TANGENT, has_tangent, lacks_memory
from fuscoc_runtime.engine.handle import refuse_to_pickle
from fuscoc_runtime.engine.linear import weight_input
from fuscoc_runtime.engine.weights import with_weights
from fuscoc_runtime.errors import InputError
from fuscoc_runtime.face import eager, ops, tickets
from fuscoc_runtime.manifest.schema import ShuffleSpec

INFERRED = -1
"""For operators: an extent that was not passed, because a tensor's shape tells it."""


@dataclass
class Bound:
    """Arguments of a dispatch in the order of the spec; ``weights`` may be empty."""

    fields: list[Tensor]
    inputs: list[Tensor]
    extents: list[int]
    weights: list[Tensor]


@dataclass
class BoundCombine:
    """Arguments of a combine in the order of the spec; ``dims`` are sizes of the source."""

    rows: list[Tensor]
    token: Tensor
    weights: list[Tensor]
    dims: list[int]


class TracedHandle:
    """What dispatch returns in a compiled function.

    Attributes:
        token: int64 [1] on the CPU, stands for the routing; of no use in another process.
        keys, key_counts, key_offsets, row_index: as those of an ordinary handle.
        dims: the sizes that all fields share of what the way back returns.
        weights: what dispatch was given, or nothing.
        sent: what combine weighs by: these, or where it takes what dispatch has sent, copies as it
            was then.
    """

    def __init__(
        self,
        token: Tensor,
        keys: Tensor,
        key_counts: Tensor,
        key_offsets: Tensor,
        row_index: Tensor | None,
        dims: list[int],
        weights: list[Tensor],
        sent: list[Tensor],
    ) -> None:
        self.token = token
        self.keys = keys
        self.key_counts = key_counts
        self.key_offsets = key_offsets
        self.row_index = row_index
        self.dims = dims
        self.weights = weights
        self.sent = sent

    def __reduce__(self) -> Any:
        refuse_to_pickle(self)

    def __repr__(self) -> str:
        return f"<TracedHandle: {len(self.keys)} keys>"


def needs_grad(values: Iterable[Any]) -> bool:
    """Whether autograd has to see a call with these arguments."""
    return torch.is_grad_enabled() and any(
        isinstance(value, Tensor) and value.requires_grad for value in values
    )


def saves_unchecked() -> bool:
    """Whether hooks save tensors for autograd, as those of a checkpoint do: it does not look then
    whether they have been changed since, as views of a window are by the backward pass."""
    return torch.is_grad_enabled() and ops.has_hooks()


def has_complex_fields(spec: ShuffleSpec) -> bool:
    """Whether a user has complex numbers where kernels have pairs of reals."""
    return any(field.is_complex for field in spec.declared.source.fields)


def weight_name(spec: ShuffleSpec) -> str | None:
    """The input that weighs combine's rows, if there is one."""
    combine = spec.back.declared.combine
    return combine.weight.input if combine is not None and combine.weight is not None else None


def bind(
    spec: ShuffleSpec, rank: int, fields: Sequence[Any], named: Mapping[str, Any], reuses: bool
) -> Bound:
    """Sort the arguments of a dispatch; one that ``reuses`` a handle has no inputs but weights and
    numbers for casts.

    Raises:
        InputError: one is missing, is given twice, is no tensor, or is not of this call; numbers
            for a cast want a gradient.
    """
    names = [field.name for field in spec.declared.source.fields]
    inputs = list(spec.program.numbers if reuses else spec.program.given)
    extents = [] if reuses else list(spec.declared.extents)
    weight = weight_name(spec)
    if len(fields) > len(names):
        raise InputError(", ".join(names), rank, f"was given {len(fields)} tensors")
    given = dict(named)
    for name, tensor in zip(names, fields, strict=False):
        if name in given:
            raise InputError(name, rank, "was given by position and by name")
        given[name] = tensor
    for name in [*names, *inputs]:
        _check_plain(name, rank, given.get(name))
    for name in spec.program.numbers:
        if needs_grad([given[name]]):
            raise InputError(name, rank, NO_GRADIENT)
    if weight is not None and weight in given:
        _check_plain(weight, rank, given[weight])
    for name in given:
        if name not in names and name not in inputs and name not in extents and name != weight:
            raise InputError(name, rank, "is no argument of this call")
    return Bound(
        [given[name] for name in names],
        [given[name] for name in inputs],
        [given.get(name, INFERRED) for name in extents],
        [given[weight]] if weight is not None and weight in given else [],
    )


def bind_combine(
    spec: ShuffleSpec,
    rank: int,
    rows: Any,
    handle: Any,
    named: Mapping[str, Any],
    may_be_late: bool,
) -> BoundCombine:
    """Sort the arguments of a combine, whose weights ``may_be_late``: given now, not at dispatch.

    Raises:
        InputError: rows or weights are missing or no tensors, or something else was given.
    """
    weights = bind_weights(spec, rank, handle, named, may_be_late)
    tensors = bind_rows(spec, rank, rows)
    replaces = bool(named) and len(weights_of(handle)) > 0
    token = _token_without_weights(spec, rank, handle) if replaces else _token_of(handle)
    return BoundCombine(tensors, token, weights, _dims_of(spec, handle))


def bind_rows(spec: ShuffleSpec, rank: int, rows: Any) -> list[Tensor]:
    """The rows that combine takes, in the order of the spec.

    Raises:
        InputError: not a tensor for each field.
    """
    names = [field.name for field in spec.declared.source_fields]
    given = {names[0]: rows} if isinstance(rows, Tensor) else rows
    if not isinstance(given, Mapping):
        raise InputError(names[0], rank, "is no tensor")
    for name in names:
        _check_plain(name, rank, given.get(name))
    return [given[name] for name in names]


def bind_weights(
    spec: ShuffleSpec, rank: int, handle: Any, named: Mapping[str, Any], may_be_late: bool
) -> list[Tensor]:
    """The weights of a combine: given now, where they ``may_be_late``, or those of dispatch.

    Raises:
        InputError: they are missing, too late or no longer what dispatch has sent, or something
            else was given.
    """
    weight = weight_name(spec)
    for name in named:
        if name != weight or not may_be_late:
            raise InputError(name, rank, "is no argument of this call")
    for name in named:
        _check_plain(name, rank, named[name])
    check = None if named else getattr(handle, "check_weights", None)
    if check is not None:
        check()
    weights = [named[name] for name in named] or weights_of(handle)
    if weight is not None and not weights:
        raise InputError(weight, rank, "is missing")
    return weights


def _check_plain(name: str, rank: int, value: Any) -> None:
    """Operators are only given ordinary tensors: others have operators' meaning of their own.

    Raises:
        InputError: it is missing, no tensor, a sparse one, one of others, or one without data or
            memory; it has a tangent.
    """
    plain = isinstance(value, Tensor) and not is_traceable_wrapper_subclass(value)
    if not plain or value.is_meta or value.layout != torch.strided:
        raise InputError(name, rank, "is missing or no ordinary tensor")
    if torch.compiler.is_compiling():
        return
    if has_tangent(value):
        raise InputError(name, rank, NO_TANGENT)
    if lacks_memory(value):
        raise InputError(name, rank, "has no memory")


def weights_of(handle: Any) -> list[Tensor]:
    """The weights of a dispatch, as its combine takes them: one tensor, or none."""
    return handle.sent if isinstance(handle, TracedHandle) else _given_to(handle)


def _given_to(handle: Any) -> list[Tensor]:
    """The weights that a dispatch was given: one tensor, or none."""
    if isinstance(handle, TracedHandle):
        return handle.weights
    return list(getattr(handle, "weights", {}).values())


def _token_of(handle: Any) -> Tensor:
    """The token of a handle of either kind; a new one if no operator has made the handle."""
    token: Tensor | None = getattr(handle, "token", None)
    if token is not None:
        return token
    kept = getattr(handle, "kept", None)
    return tickets.issue([handle if kept is None else kept()])


def _token_without_weights(spec: ShuffleSpec, rank: int, handle: Any) -> Tensor:
    """That of the same routing as if dispatch had been given no weights: it gets others.

    Raises:
        InputError: while a function is compiled, which knows no routing.
    """
    if torch.compiler.is_compiling():
        raise InputError(weight_name(spec) or "", rank, "was given to dispatch already")
    is_traced = isinstance(handle, TracedHandle)
    routing = tickets.redeem(handle.token) if is_traced else [handle]
    return tickets.issue([replace(with_weights(each, {}), token=None) for each in routing])


def _dims_of(spec: ShuffleSpec, handle: Any) -> list[int]:
    """The sizes that all fields share of what a combine returns; ``spec`` is that of its rows."""
    if isinstance(handle, TracedHandle):
        return handle.dims
    field = spec.declared.source.fields[0]
    shape = (getattr(handle, "reply", None) or handle).source_shapes[field.name]
    return list(shape[: len(shape) - len(field.shape)])


def as_handle(spec: ShuffleSpec, handle: Any) -> Any:
    """The ordinary handle that a traced one stands for; any other as it is."""
    if not isinstance(handle, TracedHandle):
        return handle
    [found] = tickets.redeem(handle.token)
    return replace(with_weights(found, weight_input(spec, handle.weights)), token=handle.token)


def dispatch_traced(
    key: str,
    spec: ShuffleSpec,
    here: tuple[int, int],
    bound: Bound,
    handle: Any,
    weighs_as_sent: bool,
) -> tuple[dict[str, Tensor], TracedHandle]:
    """Rows by field and the handle, from the operator; ``key`` is the shuffle's, and ``here`` this
    rank, of so many. ``weighs_as_sent``: as `Executor` has it."""
    names = [field.name for field in spec.declared.fields]
    earlier = [] if handle is None else [_token_of(handle)]
    weights = bound.weights or _given_to(handle)
    kept = weights
    if weighs_as_sent and torch.compiler.is_compiling():  # a graph does not count changes
        kept = [each.clone() for each in weights]
    sent = kept if spec.is_differentiable else [each.detach() for each in kept]
    done = eager.dispatch(key, bound.fields, bound.inputs, bound.extents, sent, earlier)
    rows = dict(zip(names, done[: len(names)], strict=True))
    token, keys, key_counts, key_offsets, index = done[len(names) :]
    row_index = index if spec.program.is_compact else None
    dims = ops.source_dims(spec, bound.fields[0])
    if spec.reply is not None:
        given = bound.fields, bound.inputs, bound.extents
        is_new = handle is None
        dims = ops.reply_dims(spec, here, *given) if is_new else _dims_of(spec.reply, handle)
    return rows, TracedHandle(token, keys, key_counts, key_offsets, row_index, dims, weights, kept)


def combine_traced(key: str, spec: ShuffleSpec, bound: BoundCombine) -> dict[str, Tensor]:
    """The source's fields by name, from the operator."""
    done = eager.combine(key, bound.rows, bound.token, bound.weights, bound.dims)
    names = [field.name for field in spec.declared.source.fields]
    return dict(zip(names, done, strict=True))
