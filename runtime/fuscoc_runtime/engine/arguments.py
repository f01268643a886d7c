"""What the user passes with a call, checked against the spec, in the spec's words."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.engine.bounds import check_bounds
from fuscoc_runtime.engine.divisions import check_divisions
from fuscoc_runtime.errors import InputError
from fuscoc_runtime.manifest.declared import InputSpec
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.scalar import (
    Extent,
    Load,
    Scalar,
    Scope,
    builtin_extents,
    evaluate,
    render,
    render_product,
    subexpressions,
)

MAX_SIZE = 2**63 - 1
"""What kernels can count."""

ALIGNMENT = 16
"""Kernels assume that every buffer starts at a multiple of so many bytes."""

LOW_ADDRESS = 1 << 42
"""What lies below may be an offset in memory that was freed, of 4 TiB at the most; what systems map
lies above, as a rule. To ask a tensor for its offset takes longer."""

T = TypeVar("T")


class _Unknown: ...


_UNKNOWN = _Unknown()

MAX_FORMS = 64
"""Calls with arguments of so many different forms are remembered."""

NO_GRADIENT = "requires grad, and what a cast computes with has no gradient: detach it"
"""What is wrong with numbers of a cast."""

NO_TANGENT = (
    "has a tangent of forward-mode differentiation, which would be lost: use reverse mode, or give "
    "what `torch.autograd.forward_ad.unpack_dual` calls its primal"
)
"""What is wrong with a dual tensor."""

FAKE = "is a FakeTensor, which holds no numbers: give a real one, or compile the call"
"""What is wrong with a tensor of a FakeTensorMode."""

NO_MEMORY = (
    "has no memory with its numbers: that was freed, as FSDP frees parameters, or it only stands "
    "for another tensor, as in `torch.func`"
)
"""What is wrong with another tensor that lacks memory."""

IN_THE_WINDOW = "is what a dispatch returned, where this one puts its own rows: copy it first"
"""What is wrong with a source, weights or numbers of a cast."""

Shape = tuple[Scalar | str, ...]
"""Expected sizes; a string stands for a size that only the inputs' values tell."""


@dataclass(frozen=True, eq=False)
class Arguments:
    """Checked arguments of a dispatch.

    ``fields``: the source, a tensor a field. ``inputs``: everything but weights. ``extents``: all
    run-time extents of this rank, built-in ones too. ``weights``: by name, if they were given.
    """

    fields: Mapping[str, Tensor]
    inputs: Mapping[str, Tensor]
    extents: Mapping[str, int]
    weights: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Checker:
    """Checks the arguments of one rank; every problem is an ``InputError`` naming the argument."""

    shuffle: ShuffleSpec
    rank: int
    num_ranks: int
    device: torch.device
    _accepted: dict[tuple[Any, ...], Any] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def dispatch_arguments(
        self, positional: Sequence[Tensor], named: Mapping[str, Any]
    ) -> Arguments:
        """Source fields (by position or name), inputs by name, extents inferred or by name.

        Arguments of the same forms as those of an earlier call are as right as those were.
        """
        spec = self.shuffle
        given = self._by_name(
            [field.name for field in spec.declared.source.fields], positional, named
        )
        extents: dict[str, int] = self._once(given, (), lambda: self._accept(given))
        inputs = {
            item.name: given[item.name]
            for item in spec.declared.inputs
            if item.name in given and item.role != "weight"
        }
        weights = {name: given[name] for name in self._weight_names() if name in given}
        return Arguments(
            {
                field.name: aligned(given[field.name].detach())
                for field in spec.declared.source.fields
            },
            {name: materialised(tensor.detach()) for name, tensor in inputs.items()},
            extents,
            weights,
        )

    def _once(
        self, given: Mapping[str, Any], also: tuple[object, ...], check: Callable[[], T]
    ) -> T:
        """What ``check`` returns of arguments, which is the same for all of their forms where what
        it looks at ``also`` is."""
        forms = (also, torch.is_grad_enabled(), *((name, _form(given[name])) for name in given))
        found: T | _Unknown = self._accepted.get(forms, _UNKNOWN)  # others may forget it meanwhile
        if not isinstance(found, _Unknown):
            return found
        accepted = check()
        if len(self._accepted) >= MAX_FORMS:
            self._accepted.clear()
        self._accepted[forms] = accepted
        return accepted

    def _accept(self, given: Mapping[str, Any]) -> dict[str, int]:
        """Check the arguments of a dispatch; only their forms count. Returns the extents."""
        spec = self.shuffle
        fields = [field.name for field in spec.declared.source.fields]
        inputs = {item.name: item for item in spec.declared.inputs if item.role != "weight"}
        weights = {name: given[name] for name in self._weight_names() if name in given}
        others = {name: value for name, value in given.items() if name not in weights}
        optional = *spec.declared.extents, *self._weight_names()
        self._check_names(others, [*fields, *inputs], optional)
        shapes: dict[str, Shape] = {
            **{
                field.name: self._source_shape(field.shape) for field in spec.declared.source.fields
            },
            **{name: item.shape for name, item in inputs.items()},
        }
        dtypes = {
            **{field.name: field.dtype for field in spec.declared.source.fields},
            **{name: item.dtype for name, item in inputs.items()},
        }
        extents = self._sized(given, shapes, dtypes)
        self._given_weights(weights, extents)
        return extents

    def of_memory(
        self, given: Mapping[str, Any], shapes: Mapping[str, Shape], dtypes: Mapping[str, str]
    ) -> dict[str, int]:
        """The extents that an ``into`` and its tensors, of these shapes and dtypes, are given."""

        def accept() -> dict[str, int]:
            self._check_names(given, [*shapes], self.shuffle.declared.extents)
            return self._sized(given, shapes, dtypes)

        return self._once(given, ("memory",), accept)

    def _sized(
        self, given: Mapping[str, Any], shapes: Mapping[str, Shape], dtypes: Mapping[str, str]
    ) -> dict[str, int]:
        """The extents of a call, whose tensors have to be of these shapes and dtypes."""
        tensors = {name: self._sent(name, given[name], dtypes[name]) for name in shapes}
        extents = self._extents(given, tensors, shapes)
        check_divisions(self.shuffle, self.rank, extents)
        check_bounds(self.shuffle, self.rank, extents)
        for name, shape in shapes.items():
            self._check_shape(name, tensors[name], shape, extents)
        return extents

    def fields_again(
        self,
        positional: Sequence[Tensor],
        named: Mapping[str, Any],
        shapes: Mapping[str, torch.Size],
        extents: Mapping[str, int],
    ) -> Arguments:
        """Source fields (by position or name), numbers for casts, and perhaps weights, for an
        earlier routing."""
        fields = self.shuffle.declared.source.fields
        given = self._by_name([field.name for field in fields], positional, named)
        weights = {name: given.pop(name) for name in self._weight_names() if name in given}
        numbers = [item for item in self.shuffle.declared.inputs if item.role == "cast"]
        names = [field.name for field in fields] + [item.name for item in numbers]
        self._check_names(given, names)
        inputs = {item.name: self._number(item, given[item.name], extents) for item in numbers}
        tensors = {}
        for field in fields:
            tensor = self._sent(field.name, given[field.name], field.dtype)
            if tensor.shape != shapes[field.name]:
                raise self.problem(
                    field.name,
                    f"has the shape {list(tensor.shape)}; it was {list(shapes[field.name])} in the "
                    "dispatch whose handle this is",
                )
            tensors[field.name] = aligned(tensor)
        return Arguments(tensors, inputs, extents, self._given_weights(weights, extents))

    def _number(self, item: InputSpec, value: Any, extents: Mapping[str, int]) -> Tensor:
        """Numbers that casts compute with."""
        tensor = self._sent(item.name, value, item.dtype)
        self._check_shape(item.name, tensor, item.shape, extents)
        return materialised(tensor)

    def _weight_names(self) -> list[str]:
        """Those of the way back."""
        inputs = self.shuffle.back.declared.inputs
        return [item.name for item in inputs if item.role == "weight"]

    def _given_weights(
        self, given: Mapping[str, Any], extents: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Weights that came with dispatch, as they were given: their gradients are combine's."""
        if any(value is None for value in given.values()):
            raise self.problem(next(iter(given)), "is missing")
        if given:
            replace(self, shuffle=self.shuffle.back).weights(given, extents)
        return dict(given)

    def weights(self, named: Mapping[str, Any], extents: Mapping[str, int]) -> Tensor | None:
        """The weight input of a weighted combine, with the extents of its dispatch."""
        also = "weights", *extents.items()
        weight = self._once(named, also, lambda: self._accept_weights(named, extents))
        return None if weight is None else named[weight].detach()

    def _accept_weights(self, named: Mapping[str, Any], extents: Mapping[str, int]) -> str | None:
        """Check them; the name of the input."""
        combine = self.shuffle.declared.combine
        weight = None if combine is None else combine.weight
        self._check_names(named, [weight.input] if weight is not None else [])
        if weight is None:
            return None
        item = self._input(weight.input)
        tensor = self._tensor(item.name, named[item.name], item.dtype)
        self._check_shape(item.name, tensor, item.shape, extents)
        return item.name

    def rows(
        self, given: Tensor | Mapping[str, Tensor], num_rows: int, *, or_fewer: bool = False
    ) -> dict[str, Tensor]:
        """The rows that combine reads: one tensor, or one a field of the source by name.

        ``or_fewer``: whether all fields may have fewer rows, as many as the first of them.
        """
        fields = self.shuffle.declared.source.fields
        tensors = given if isinstance(given, Mapping) else {fields[0].name: given}
        also = "rows", num_rows, or_fewer
        self._once(tensors, also, lambda: self._accept_rows(tensors, num_rows, or_fewer))
        return {field.name: aligned(tensors[field.name].detach()) for field in fields}

    def _accept_rows(self, given: Mapping[str, Any], num_rows: int, or_fewer: bool) -> None:
        """Check them."""
        fields = self.shuffle.declared.source_fields
        self._check_names(given, [field.name for field in fields])
        if or_fewer:
            first = self._tensor(fields[0].name, given[fields[0].name], fields[0].dtype)
            num_rows = min(num_rows, *first.shape[:1])
        for field in fields:
            tensor = self._tensor(field.name, given[field.name], field.dtype)
            self._check_shape(field.name, tensor, (num_rows, *field.shape), {})

    def check_not_lent(self, arguments: Arguments, lends: Callable[[Tensor], bool]) -> None:
        """Raise for what is read while rows come, or by combine, and lies where they come."""
        numbers = {name: arguments.inputs[name] for name in self.shuffle.program.numbers}
        for name, tensor in {**arguments.fields, **numbers, **arguments.weights}.items():
            if lends(tensor):
                raise self.problem(name, IN_THE_WINDOW)

    def problem(self, name: str, problem: str) -> InputError:
        """The error for an argument of this rank."""
        return InputError(name, self.rank, problem)

    def _by_name(
        self, fields: Sequence[str], positional: Sequence[Tensor], named: Mapping[str, Any]
    ) -> dict[str, Any]:
        if len(positional) > len(fields):
            raise self.problem(
                ", ".join(fields),
                f"was given {len(positional)} tensors; only source fields "
                "go by position, everything else by name",
            )
        given = dict(zip(fields, positional, strict=False))
        twice = given.keys() & named.keys()
        if twice:
            raise self.problem(min(twice), "was given by position and by name")
        return {**given, **named}

    def _check_names(
        self, given: Mapping[str, Any], required: Sequence[str], optional: Sequence[str] = ()
    ) -> None:
        unknown = sorted(given.keys() - {*required, *optional})
        if unknown:
            takes = ", ".join((*required, *optional)) or "nothing else"
            raise self.problem(unknown[0], f"is no argument of this call, which takes {takes}")
        for name in required:
            if name not in given:
                for other, value in given.items():
                    if isinstance(value, Mapping):  # as dispatch returns rows of several fields
                        raise self.problem(other, "is a dict; pass what it holds by name, as `**`")
                raise self.problem(name, "is missing")

    def _sent(self, name: str, value: Any, dtype: str) -> Tensor:
        """A tensor of a dispatch."""
        wants = torch.is_grad_enabled() and getattr(value, "requires_grad", False)
        if wants and name in self.shuffle.program.numbers:
            raise self.problem(name, NO_GRADIENT)
        casts = "casts by scales on the path, which has no gradient: cast before dispatch"
        if all(cast.scales is None for cast in self.shuffle.declared.casts):
            casts = (
                "casts by numbers of a call for channels that are no dimension of an element, "
                "which has no gradient: compute before dispatch"
            )
        return self._plain(name, value, dtype, self.shuffle.sends_differentiably, casts)

    def _tensor(self, name: str, value: Any, dtype: str) -> Tensor:
        """A tensor of what comes back, whose gradient is dispatched."""
        casts = "casts on the path, and would cast its gradient: cast before dispatch"
        return self._plain(name, value, dtype, self.shuffle.is_differentiable, casts)

    def _plain(
        self, name: str, value: Any, dtype: str, is_differentiable: bool, casts: str
    ) -> Tensor:
        """A tensor that is what the spec says; ``casts`` is why else it would have no gradient."""
        if not isinstance(value, Tensor):
            raise self.problem(name, f"is a {type(value).__name__}; it must be a tensor")
        if is_traceable_wrapper_subclass(value):
            kind = type(value).__name__
            raise self.problem(name, f"is a {kind}: give what this rank holds, as by `to_local()`")
        if value.dtype != TORCH_DTYPES[dtype]:
            raise self.problem(name, f"is {value.dtype}; the spec says {TORCH_DTYPES[dtype]}")
        if value.device != self.device:
            raise self.problem(name, f"is on {value.device}; this rank computes on {self.device}")
        if value.layout != torch.strided or value.is_nested:
            kind = "nested" if value.is_nested else value.layout
            raise self.problem(name, f"is {kind}; it must be torch.strided")
        if lacks_memory(value):
            raise self.problem(name, FAKE if type(value) is FakeTensor else NO_MEMORY)
        if has_tangent(value):
            raise self.problem(name, NO_TANGENT)
        if value.requires_grad and torch.is_grad_enabled() and not is_differentiable:
            why = casts
            combine = self.shuffle.declared.combine
            if combine is None and self.shuffle.reply is not None:
                why = "has no kernels that would sum its gradients: only its reply has one"
            elif combine is None:
                why = "has no combine, whose kernels would bring gradients back: add one"
            elif not combine.is_linear:
                why = f"reduces by {combine.kind}, whose kernels do not sum gradients: use a sum"
            raise self.problem(name, f"requires grad, and the spec {why}, or detach it")
        return value.detach()

    def _source_shape(self, cell: tuple[int, ...]) -> Shape:
        dims = self.shuffle.declared.source.dims
        if is_ragged(dims):
            rows = f"sum of {render_product(dims[1:])} over {render(dims[0])}"
            return (rows, *cell)
        return (*dims, *cell)

    def _extents(
        self, given: Mapping[str, Any], tensors: Mapping[str, Tensor], shapes: Mapping[str, Shape]
    ) -> dict[str, int]:
        """Run-time extents: as given, else the first tensor size that the spec calls so."""
        extents = builtin_extents(self.rank, self.num_ranks)
        for name in self.shuffle.declared.extents:
            value = given.get(name)
            if value is not None:
                value = self._size(name, value)
            sizes = (
                tensors[tensor].shape[axis]
                for tensor, shape in shapes.items()
                for axis, size in enumerate(shape)
                if size == Extent(name) and tensors[tensor].dim() == len(shape)
            )
            found = value if value is not None else next(sizes, None)
            if found is None:
                raise self.problem(name, "is in no tensor's shape: pass it by name")
            extents[name] = found
        return extents

    def _size(self, name: str, value: Any) -> int:
        is_whole = isinstance(value, Integral) and not isinstance(value, bool)
        if not is_whole or not 0 <= value <= MAX_SIZE:
            raise self.problem(name, f"is {value!r}; an extent is a whole number, 0 or more")
        return int(value)

    def _check_shape(
        self, name: str, tensor: Tensor, shape: Shape, extents: Mapping[str, int]
    ) -> None:
        scope = Scope(extents)
        sizes = [None if isinstance(size, str) else evaluate(size, scope) for size in shape]
        fits = len(sizes) == tensor.dim() and all(
            size in (None, actual) for size, actual in zip(sizes, tensor.shape, strict=True)
        )
        if not fits:
            spelled = ", ".join(s if isinstance(s, str) else render(s) for s in shape)
            values = ", ".join("?" if size is None else str(size) for size in sizes)
            meaning = f"[{spelled}]" + (f" = [{values}]" if values != spelled else "")
            raise self.problem(name, f"has the shape {list(tensor.shape)}; the spec says {meaning}")

    def _input(self, name: str) -> InputSpec:
        return next(item for item in self.shuffle.declared.inputs if item.name == name)


def _form(value: Any) -> object:
    """What there is to check of an argument: equal forms are equally right."""
    if isinstance(value, Tensor):
        if value.is_nested:
            return object()  # it has no shape
        what = value.dtype, value.device, value.layout, value.requires_grad, has_tangent(value)
        return type(value), value.shape, *what, lacks_memory(value)
    return (type(value), value) if isinstance(value, int) else object()


def has_tangent(value: object) -> bool:
    """Whether it is a tensor whose tangent forward-mode differentiation would lose."""
    if forward_ad._current_level < 0 or not isinstance(value, Tensor):  # as almost always
        return False
    return forward_ad.unpack_dual(value).tangent is not None  # type: ignore[no-untyped-call]


def lacks_memory(tensor: Tensor) -> bool:
    """Whether it has numbers, and kernels would not find them: they are given addresses alone."""
    if type(tensor) is FakeTensor:
        return True
    try:
        address = tensor.data_ptr()  # of memory that was freed the offset in it
        if address >= LOW_ADDRESS or address != tensor.storage_offset() * tensor.element_size():
            return False
    except RuntimeError:  # it has no storage at all
        pass
    return tensor.numel() > 0 and not tensor._is_zerotensor()


def unit_weights(
    shuffle: ShuffleSpec, extents: Mapping[str, int], device: torch.device
) -> list[Tensor]:
    """Weights of 1 for every point of a dispatch, if the combine is weighted."""
    combine = shuffle.declared.combine
    if combine is None or combine.weight is None:
        return []
    name, scope = combine.weight.input, Scope(extents)
    shape = next(item.shape for item in shuffle.declared.inputs if item.name == name)
    sizes = [evaluate(size, scope) for size in shape]
    return [torch.ones(sizes, dtype=TORCH_DTYPES[combine.weight.dtype], device=device)]


def is_ragged(dims: Sequence[Scalar]) -> bool:
    """Whether a source's inner sizes are data, so that its outer entries are concatenated."""
    return any(isinstance(scalar, Load) for dim in dims for scalar in subexpressions(dim))


def materialised(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy if its memory is not what it holds: strided, negated lazily as
    the imaginary part of a conjugate is, or of zeros, as some of autograd's, without any."""
    if tensor._is_zerotensor():
        return tensor.clone()
    return tensor.resolve_neg().contiguous()


def aligned(tensor: Tensor) -> Tensor:
    """The same, or a copy also if kernels could not address it: unaligned."""
    tensor = materialised(tensor)
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor
