"""Operators of ``torch.library``: what ``torch.compile`` and autograd see of a shuffle.

``fuscoc::dispatch``, ``combine``, and their backward passes ``pull`` and ``combine_backward``. A
shuffle is named by the key under which it is registered in this process, a routing by its token
(``fuscoc_runtime.face.tickets``). All results are tensors of their own, never views of windows, and
everything that a routing needs later is copied: a compiled graph may reuse the memory of what it
passed as soon as nothing in the graph reads it.

Sizes that a compiled graph has to know come from the spec: a packed target has its capacity where
that is fixed and otherwise a size that only running tells; a dense one its declared length.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.engine.linear import LinearMaps
from fuscoc_runtime.engine.numbers import factors
from fuscoc_runtime.errors import ClosedError, InputError
from fuscoc_runtime.face import tickets
from fuscoc_runtime.manifest.declared import FieldSpec
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.scalar import Extent, Load, Scope, builtin_extents, evaluate, subexpressions

DIFFERENTIABLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(eq=False)
class Registered:
    """A shuffle that operators may name.

    ``rank`` and ``num_ranks`` are for extents, ``num_rows`` and ``num_slots`` those of the target
    where they are fixed, ``num_local_keys`` the number of this rank's keys where routing does not
    decide it.
    """

    maps: LinearMaps
    rank: int
    num_ranks: int
    num_rows: int | None
    num_slots: int | None
    num_local_keys: int | None

    @property
    def spec(self) -> ShuffleSpec:
        return self.maps.spec


_numbers = itertools.count()
_registered: WeakValueDictionary[str, Registered] = WeakValueDictionary()


def register(shuffle: Registered, digest: str) -> str:
    """The key of a shuffle, for as long as the caller keeps ``shuffle``.

    ``digest`` tells specs apart. Code that a compiler caches on disk has sizes built in, so the key
    is another one wherever these are, in a job of other ranks for example.
    """
    rank, num_rows, num_slots = shuffle.rank, shuffle.num_rows, shuffle.num_slots
    sizes = (rank, shuffle.num_ranks, num_rows, num_slots, shuffle.num_local_keys)
    identity = hashlib.sha256(f"{digest} {sizes}".encode()).hexdigest()
    key = f"{shuffle.spec.name}.{identity[:12]}.{next(_numbers)}"
    _registered[key] = shuffle
    return key


def unregister(key: str) -> None:
    """Forget a shuffle."""
    _registered.pop(key, None)


def find(key: str) -> Registered:
    """The shuffle of that key.

    Raises:
        ClosedError: it was closed, or code that was compiled in another process names it.
    """
    found = _registered.get(key)
    if found is None:
        raise ClosedError(f"the shuffle {key}")
    return found


def dispatched(
    shuffle: str,
    fields: Sequence[Tensor],
    inputs: Sequence[Tensor],
    extents: Sequence[int],
    weights: Sequence[Tensor],
    earlier: Sequence[Tensor],
) -> list[Tensor]:
    """Rows of every field, the token of the routing, keys, key_counts, key_offsets and row_index.

    ``inputs`` are all but weights, in the spec's order; ``extents`` too, -1 where a tensor's shape
    tells. ``earlier`` holds the token of a routing to be used again, instead of inputs.
    """
    found = find(shuffle)
    held = [tensor.clone() for tensor in inputs], [tensor.clone() for tensor in weights]
    handles = tickets.redeem(earlier[0]) if earlier else ()
    rows, routing = found.maps.dispatch(list(fields), held[0], extents, held[1], handles)
    first = routing[0]
    index = first.row_index
    index = first.keys[:0] if index is None else index.clone()
    layout = first.keys, first.key_counts, first.key_offsets, index
    return [*rows, tickets.issue(routing), *layout]


dispatch = torch.library.custom_op(
    "fuscoc::dispatch",
    dispatched,
    mutates_args=(),
    schema="(str shuffle, Tensor[] fields, Tensor[] inputs, SymInt[] extents, Tensor[] weights, "
    "Tensor[] earlier) -> Tensor[]",
)


@dispatch.register_fake
def _(
    shuffle: str,
    fields: Sequence[Tensor],
    inputs: Sequence[Tensor],
    extents: Sequence[Any],
    weights: Sequence[Tensor],
    earlier: Sequence[Tensor],
) -> list[Tensor]:
    found = find(shuffle)
    num_rows = _fake_length(found, fields, inputs, extents, reuses=bool(earlier))
    like = fields[0]
    keys = found.num_local_keys
    num_keys: Any = keys if keys is not None else torch.library.get_ctx().new_dynamic_size()
    counts = [
        like.new_empty(size, dtype=torch.int64) for size in (num_keys, num_keys, num_keys + 1)
    ]
    num_indices: Any = found.num_slots if found.spec.program.is_compact else 0
    if num_indices is None:
        num_indices = torch.library.get_ctx().new_dynamic_size()
    return [
        *(_fake_rows(like, num_rows, field) for field in found.spec.declared.fields),
        torch.empty(1, dtype=torch.int64, device="cpu"),
        *counts,
        like.new_empty(num_indices, dtype=torch.int64),
    ]


def combined(
    shuffle: str,
    rows: Sequence[Tensor],
    token: Tensor,
    weights: Sequence[Tensor],
    dims: Sequence[int],
) -> list[Tensor]:
    """The spec's combine: the source's fields, each [*dims, *cell shape]."""
    return find(shuffle).maps.combine(list(rows), tickets.redeem(token), list(weights))


combine = torch.library.custom_op(
    "fuscoc::combine",
    combined,
    mutates_args=(),
    schema="(str shuffle, Tensor[] rows, Tensor token, Tensor[] weights, SymInt[] dims) "
    "-> Tensor[]",
)


def pulled(
    shuffle: str, rows: Sequence[Tensor], token: Tensor, dims: Sequence[int]
) -> list[Tensor]:
    """The transpose of dispatch: the sum of every segment's rows, without weights."""
    return find(shuffle).maps.pull(list(rows), tickets.redeem(token))


pull = torch.library.custom_op(
    "fuscoc::pull",
    pulled,
    mutates_args=(),
    schema="(str shuffle, Tensor[] rows, Tensor token, SymInt[] dims) -> Tensor[]",
)


@combine.register_fake
def _(
    shuffle: str,
    rows: Sequence[Tensor],
    token: Tensor,
    weights: Sequence[Tensor],
    dims: Sequence[Any],
) -> list[Tensor]:
    return _fake_fields(find(shuffle).spec, rows[0], dims)


@pull.register_fake
def _(shuffle: str, rows: Sequence[Tensor], token: Tensor, dims: Sequence[Any]) -> list[Tensor]:
    return _fake_fields(find(shuffle).spec, rows[0], dims)


def combined_backward(
    shuffle: str,
    grads: Sequence[Tensor],
    rows: Sequence[Tensor],
    token: Tensor,
    weights: Sequence[Tensor],
    num_rows: int,
) -> list[Tensor]:
    """Gradients of combine's rows, of which it was given ``num_rows``, and, if ``rows`` are given,
    behind them those of its weights."""
    maps, routing = find(shuffle).maps, tickets.redeem(token)
    done = maps.combine_backward(list(grads), list(rows), routing, list(weights), num_rows)
    return [*done[0], *done[1]]


combine_backward = torch.library.custom_op(
    "fuscoc::combine_backward",
    combined_backward,
    mutates_args=(),
    schema="(str shuffle, Tensor[] grads, Tensor[] rows, Tensor token, Tensor[] weights, "
    "SymInt num_rows) -> Tensor[]",
)


@combine_backward.register_fake
def _(
    shuffle: str,
    grads: Sequence[Tensor],
    rows: Sequence[Tensor],
    token: Tensor,
    weights: Sequence[Tensor],
    num_rows: Any,
) -> list[Tensor]:
    fields = find(shuffle).spec.declared.fields
    grad_rows = [_fake_rows(grads[0], num_rows, field) for field in fields]
    return [*grad_rows, *(torch.empty_like(each) for each in weights if rows)]


def dispatch_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.shuffle, fields, *others = inputs
    spec = find(ctx.shuffle).spec
    given, earlier = others[0], others[3]
    names = spec.program.numbers if len(earlier) else spec.program.given
    numbers = [
        each for at, each in enumerate(given) if names[at % len(names)] in spec.program.numbers
    ]
    ctx.differentiable = [field.dtype in DIFFERENTIABLE for field in fields]
    ctx.no_grads = [_no_grads(each) for each in others]
    ctx.dims = source_dims(spec, fields[0])
    ctx.num_fields = len(output) - 5
    _save(ctx, output[ctx.num_fields], *numbers)


def dispatch_gradients(
    ctx: Any, grads: Sequence[Tensor], pull: Callable[..., list[Tensor]] = pull
) -> tuple[Any, ...]:
    token, *numbers = ctx.saved_tensors
    arrived = grads[: ctx.num_fields]
    brought = pull(ctx.shuffle, as_they_left(ctx.shuffle, arrived), token, ctx.dims)
    if numbers:
        brought = by_own_numbers(ctx.shuffle, brought, numbers)
    fields = [
        grad if wanted else None for grad, wanted in zip(brought, ctx.differentiable, strict=True)
    ]
    return None, fields, *ctx.no_grads


def as_they_left(shuffle: str, grads: Sequence[Tensor]) -> list[Tensor]:
    """Gradients of the fields that arrived as those of the fields that left: a cast without scales
    computes ``(x - shift) * factor`` of a field, or nothing but its type. Factors that a call gives
    are those of the rank that has sent, which multiplies by them at last: see `by_own_numbers`."""
    declared = find(shuffle).spec.declared
    if not declared.casts:
        return list(grads)
    names = [field.name for field in declared.fields]
    lines = {cast.field: cast.normalise for cast in declared.casts}
    found = []
    for first in range(0, len(grads), len(names)):  # of one rank
        arrived = dict(zip(names, grads[first:], strict=False))
        for field in declared.source.fields:
            grad, line = arrived[field.name], lines.get(field.name)
            if line is not None and not line.is_given:
                grad = grad.float() * factors(line, {}, grad)
            found.append(grad.to(TORCH_DTYPES[field.dtype]))
    return found


def by_own_numbers(
    shuffle: str, grads: Sequence[Tensor], numbers: Sequence[Tensor]
) -> list[Tensor]:
    """Gradients of what was sent, of every rank, times the factors that it has computed with, of
    its ``numbers``. Their channels are the last dimension of a source's tensor, or there is one."""
    spec = find(shuffle).spec
    lines = {cast.field: cast.normalise for cast in spec.declared.casts}
    fields, given = spec.declared.source.fields, spec.program.numbers
    found = []
    for at, grad in enumerate(grads):
        rank, position = divmod(at, len(fields))
        line = lines.get(fields[position].name)
        if line is not None and line.is_given:
            own = numbers[rank * len(given) : (rank + 1) * len(given)]
            by = factors(line, dict(zip(given, own, strict=True)), grad)
            grad = (grad.float() * by).to(grad.dtype)
        found.append(grad)
    return found


def combine_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.shuffle, rows, token, weights, dims = inputs
    ctx.differentiable = [row.dtype in DIFFERENTIABLE for row in rows]
    ctx.num_rows, ctx.num_weights, ctx.no_dims = rows[0].shape[0], len(weights), _no_grads(dims)
    # Rows are only needed for the gradient of weights, and they are large.
    needs_rows = any(weight.requires_grad for weight in weights)
    _save(ctx, token, *weights, *(rows if needs_rows else ()))


def combine_gradients(
    ctx: Any,
    grads: Sequence[Tensor],
    combine_backward: Callable[..., list[Tensor]] = combine_backward,
) -> tuple[Any, ...]:
    token, *saved = ctx.saved_tensors
    weights, rows = saved[: ctx.num_weights], saved[ctx.num_weights :]
    done = combine_backward(ctx.shuffle, grads, rows, token, weights, ctx.num_rows)
    num_fields = len(ctx.differentiable)
    grad_rows = [
        grad if wanted else None
        for grad, wanted in zip(done[:num_fields], ctx.differentiable, strict=True)
    ]
    grad_weights: Sequence[Tensor | None] = done[num_fields:] or [None] * ctx.num_weights
    return None, grad_rows, None, grad_weights, ctx.no_dims


def _save(ctx: Any, token: Tensor, *tensors: Tensor) -> None:
    """For the backward pass. A copy of a token, which is what hooks may make of it, does not keep
    the routing."""
    ctx.save_for_backward(token, *tensors)
    ctx.kept = token if has_hooks() else None


def has_hooks() -> bool:
    """Whether hooks save tensors for autograd, as those of a checkpoint do."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _no_grads(argument: list[Any]) -> list[None] | None:
    """No gradient of an argument, in the structure that autograd wants: tensors, or numbers."""
    if all(isinstance(each, Tensor) for each in argument):
        return [None] * len(argument)
    return None


def _gradient_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.shuffle, *_ = inputs


def _refuse_second(ctx: Any, grads: list[Tensor]) -> NoReturn:
    """The gradient of a gradient: an error on every rank."""
    found = find(ctx.shuffle)
    raise InputError(
        found.spec.name, found.rank, "has first derivatives only: its gradients have no gradient"
    )


dispatch.register_autograd(dispatch_gradients, setup_context=dispatch_context)
combine.register_autograd(combine_gradients, setup_context=combine_context)
pull.register_autograd(_refuse_second, setup_context=_gradient_context)
combine_backward.register_autograd(_refuse_second, setup_context=_gradient_context)


def source_dims(spec: ShuffleSpec, field: Tensor) -> list[int]:
    """The sizes that all fields of a source share, given its first field."""
    cell_dims = len(spec.declared.source.fields[0].shape)
    return list(field.shape[: field.dim() - cell_dims])


def _fake_length(
    found: Registered,
    fields: Sequence[Tensor],
    inputs: Sequence[Tensor],
    extents: Sequence[Any],
    *,
    reuses: bool,
) -> Any:
    """``reuses``: a routing, so a call is given no extents."""
    target = found.spec.declared.target
    if found.num_rows is not None:
        return found.num_rows
    is_told = not reuses or found.spec.program.is_static
    if target.kind == "dense" and is_told and not _loads(target.length):
        here = found.rank, found.num_ranks
        return evaluate(target.length, Scope(_extents(found.spec, here, fields, inputs, extents)))
    return torch.library.get_ctx().new_dynamic_size()


def reply_dims(
    spec: ShuffleSpec,
    here: tuple[int, int],
    fields: Sequence[Tensor],
    inputs: Sequence[Tensor],
    extents: Sequence[Any],
) -> list[Any]:
    """The sizes that all fields of a reply share, given what is dispatched on the rank ``here``, of
    so many."""
    scope = Scope(_extents(spec, here, fields, inputs, extents))
    return [evaluate(dim, scope) for dim in spec.back.declared.source.dims]


def _extents(
    spec: ShuffleSpec,
    here: tuple[int, int],
    fields: Sequence[Tensor],
    inputs: Sequence[Tensor],
    extents: Sequence[Any],
) -> dict[str, Any]:
    """Run-time extents: as given, else the first tensor size that the spec calls so."""
    named = [(fields[0], spec.declared.source.dims)]
    shapes = {item.name: item.shape for item in spec.declared.inputs}
    names = spec.program.given
    named += [(tensor, shapes[name]) for tensor, name in zip(inputs, names, strict=True)]
    known: dict[str, Any] = builtin_extents(*here)
    for name, given in zip(spec.declared.extents, extents, strict=True):
        sizes = (
            tensor.shape[axis]
            for tensor, shape in named
            for axis, size in enumerate(shape)
            if size == Extent(name) and not any(map(_loads, shape))
        )
        known[name] = next(sizes) if isinstance(given, int) and given < 0 else given
    return known


def _loads(scalar: Any) -> bool:
    return any(isinstance(part, Load) for part in subexpressions(scalar))


def _fake_rows(like: Tensor, num_rows: Any, field: FieldSpec) -> Tensor:
    return like.new_empty((num_rows, *field.shape), dtype=TORCH_DTYPES[field.dtype])


def _fake_fields(spec: ShuffleSpec, like: Tensor, dims: Sequence[Any]) -> list[Tensor]:
    return [
        like.new_empty((*dims, *field.shape), dtype=TORCH_DTYPES[field.dtype])
        for field in spec.declared.source.fields
    ]
