"""Triton's interpreter as our kernels have it: exact, and with less to do for each operation.

For a launch, functions and methods of Triton are replaced, those that make its language the
interpreter's among them. What a kernel computes stays the same, but for ``exact``'s conversions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, lru_cache, partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from fuscoc_runtime.kernels.accesses import atomic_of, load_of, store_of
from fuscoc_runtime.kernels.exact import exact_conversions
from fuscoc_runtime.kernels.handles import Change, handles, made_once, making, shape_of
from fuscoc_runtime.kernels.interpreted_launch import launches
from fuscoc_runtime.kernels.operators import (
    BITS,
    TYPES,
    converted_by,
    extreme_of,
    operators,
    reduction_of,
    where_of,
)
from fuscoc_runtime.kernels.rewriting import rewriting

_ABSENT = object()


@contextmanager
def interpreting() -> Iterator[None]:
    """Replace what is to be replaced for the enclosed launch."""
    changes = _changes()
    before = []
    for place, values in changes:
        held = vars(place)
        before.append({name: held.get(name, _ABSENT) for name in values})
        _assign(place, values)
    try:
        yield
    finally:
        for (place, _), values in zip(changes, before, strict=True):
            _assign(place, values)


def _assign(place: Any, values: Mapping[str, Any]) -> None:
    """Set attributes, a module's all at once; or delete those that are ``_ABSENT``, which nothing
    of a module is."""
    if isinstance(place, ModuleType):
        vars(place).update(values)
        return
    for name, value in values.items():
        if value is _ABSENT:
            delattr(place, name)
        else:
            setattr(place, name, value)


@cache
def _changes() -> list[tuple[Any, dict[str, Any]]]:
    """Objects, and values by name; later ones win where two are of one name."""
    from triton import language as tl
    from triton.runtime import interpreter

    language = list(_language())
    theirs = {name: value for place, name, value in language if place is tl.tensor}
    changes = [
        *language,
        *_types(),
        *handles(),
        *_operands(interpreter.interpreter_semantic),
        *((tl.tensor, name, value) for name, value in operators(theirs)),
        *exact_conversions(),
        *rewriting(),
        *launches(),
        (inspect, "getfullargspec", lru_cache(maxsize=1000)(inspect.getfullargspec)),
    ]
    places: dict[int, tuple[Any, dict[str, Any]]] = {}
    for place, name, value in changes:
        places.setdefault(id(place), (place, {}))[1][name] = value
    return list(places.values())


def _language() -> Iterator[Change]:
    """What Triton itself replaces; at every launch and call of a device function, by inspection of
    the whole language."""
    from triton import language as tl
    from triton.runtime import interpreter

    scope = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl}))
    found = [(place, name, before, getattr(place, name)) for place, name, before in scope._changes]
    scope.restore()
    quick: dict[Any, Callable[..., Any]] = {
        tl.core.load: load_of,
        tl.core.store: store_of,
        tl.core.atomic_add: partial(atomic_of, "ADD"),
        tl.core.atomic_xchg: partial(atomic_of, "XCHG"),
        tl.core.arange: made_once,
        tl.core.full: made_once,
        tl.core.where: where_of,
        tl.core.cast: converted_by,
        tl.core.minimum: partial(extreme_of, np.minimum),
        tl.core.maximum: partial(extreme_of, np.maximum),
    }
    for place, name, before, value in found:
        if tl.core.is_builtin(before):
            value = _given(before)
        elif name == "reduce":  # which Triton replaces twice
            value = reduction_of(value)
        yield place, name, quick[before](value) if before in quick else value
    nothing = SimpleNamespace(restore=lambda: None)
    yield interpreter, "_patch_lang", lambda fn: nothing
    yield interpreter.InterpretedFunction, "__call__", _call
    # In Triton 3.6 ``int`` of an array of one element, which numpy refuses from 2.4 on.
    yield tl.tensor, "__index__", lambda self: int(self.handle.data.item())


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A call of a device function: the language is the interpreter's already."""
    function = self.rewritten_fn.get(self.fn) or self.rewrite()
    try:
        return function(*args, **kwargs)
    except Exception as error:
        from triton.runtime.interpreter import InterpreterError

        raise InterpreterError(repr(error)) from error


def _given(builtin: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the language that is given the interpreter's semantic."""
    from triton.runtime import interpreter

    function, semantic = getattr(builtin, "__wrapped__", builtin), interpreter.interpreter_semantic

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = semantic
        return function(*args, **kwargs)

    return call


def _types() -> Iterator[Change]:
    """Types, which every value has, and are found again rather than made again."""
    from triton import language as tl
    from triton.runtime import interpreter

    get_np_dtype, with_element_ty = interpreter._get_np_dtype, tl.block_type.with_element_ty
    no_shape, block_type = (tl.tuple([]), tl.constexpr(1)), tl.block_type
    np_dtypes: dict[str, Any] = {}
    blocks: dict[tuple[str, str], Any] = {}

    def make_tensor(self: Any, handle: Any, kind: Any) -> None:
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        if type(kind) is not block_type:
            self.shape, self.numel = no_shape
            return
        if "known_shape" not in kind.__dict__:
            kind.known_shape = shape_of(kind)
        self.shape, self.numel = kind.known_shape

    def np_dtype(type: Any) -> Any:
        name = type.scalar.name
        if name not in np_dtypes:
            np_dtypes[name] = get_np_dtype(type)
        return np_dtypes[name]

    def block_of(self: Any, element: Any) -> Any:
        if element.is_ptr():  # its name does not tell all
            return with_element_ty(self, element)
        key = self.name, element.name
        if key not in blocks:
            blocks[key] = with_element_ty(self, element)
        return blocks[key]

    yield tl.tensor, "__init__", make_tensor
    yield interpreter, "_get_np_dtype", np_dtype
    yield tl.block_type, "with_element_ty", block_of
    # There is no IR whose types these would have to become.
    for kind in (tl.dtype, tl.pointer_type, tl.block_type):
        yield kind, "to_ir", lambda self, builder: self


def _operands(semantic: Any) -> Iterator[Change]:
    """Operands that have the type of the operation already, as most of them do, or become other
    integers."""
    from triton import language as tl
    from triton.runtime.interpreter import TensorHandle

    cast, check = semantic.cast, semantic.binary_op_type_checking_impl
    to_tensor, as_tensor = semantic.to_tensor, making()
    broadcast = semantic.broadcast_impl_value
    common_type, tensor = semantic.computation_type_impl, tl.tensor
    common_types: dict[tuple[Any, ...], Any] = {}
    unwrap, integers = tl.core._unwrap_if_constexpr, TYPES | BITS
    # What it takes apart, with all that is derived of these.
    wrapping, plain = (list, tuple, tl.tuple, tl.constexpr), set[type]()

    numbers = lru_cache(maxsize=10_000)(to_tensor)

    def tensor_of(x: Any, check_type: bool = True) -> Any:
        if type(x) is tensor:
            return x
        if type(x) is not int:
            return to_tensor(x, check_type)
        found = numbers(x)  # whose elements no operation changes
        return as_tensor(found.handle.data, found.handle.dtype, found.dtype, False)

    def cast_to(input: Any, dst_ty: Any, fp_downcast_rounding: str | None = None) -> Any:
        given, wanted = input.dtype, dst_ty.scalar
        if given is wanted:
            return input
        if wanted.name not in TYPES or given.name not in integers or given == wanted:
            return cast(input, dst_ty, fp_downcast_rounding)
        handle = TensorHandle(input.handle.data.astype(TYPES[wanted.name]), wanted)
        return tensor(handle, input.type.with_element_ty(wanted))

    def checked(
        lhs: Any,
        rhs: Any,
        allow_lhs_ptr: bool = False,
        allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> Any:
        if (
            type(lhs) is tensor
            and type(rhs) is tensor
            and lhs.type is rhs.type
            and not lhs.dtype.is_ptr()
            and not div_or_mod
        ):
            return lhs, rhs
        return check(lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)

    def shaped(lhs: Any, rhs: Any) -> Any:
        if (
            lhs.handle.data.shape == rhs.handle.data.shape
            and lhs.type.is_block() == rhs.type.is_block()
        ):
            return lhs, rhs
        return broadcast(lhs, rhs)

    def common(lhs: Any, lhs_scalar: bool, rhs: Any, rhs_scalar: bool, div_or_mod: bool) -> Any:
        key = lhs.name, lhs_scalar, rhs.name, rhs_scalar, div_or_mod
        if key not in common_types:
            common_types[key] = common_type(lhs, lhs_scalar, rhs, rhs_scalar, div_or_mod)
        return common_types[key]

    def unwrapped(value: Any) -> Any:
        kind = type(value)
        if kind in plain:
            return value
        if issubclass(kind, wrapping):
            return value.value if kind is tl.constexpr else unwrap(value)
        plain.add(kind)
        return value

    yield tl.core, "_unwrap_if_constexpr", unwrapped
    yield semantic, "to_tensor", tensor_of
    yield semantic, "cast", cast_to
    yield semantic, "binary_op_type_checking_impl", checked
    yield semantic, "broadcast_impl_value", shaped
    yield semantic, "computation_type_impl", common
    # Eight operations for each of 32 bits, and then an assertion that only ``debug`` makes.
    options = semantic.builder.options
    yield semantic.builder, "options", replace(options, sanitize_overflow=options.debug)
