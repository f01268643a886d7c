"""Triton's interpreter as our kernels have it: exact, and with less to do for each operation.

For a launch, functions and methods of Triton are replaced, those that make its language the
interpreter's among them. What a kernel computes stays the same, but for ``exact``'s conversions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

from fuscoc_runtime.kernels.exact import exact_conversions

Change = tuple[Any, str, Any]  # an object, a name and the value it is to have
_ABSENT = object()


@contextmanager
def interpreting() -> Iterator[None]:
    """Replace what is to be replaced for the enclosed launch."""
    changes = _changes()
    before = [vars(place).get(name, _ABSENT) for place, name, _ in changes]
    for place, name, value in changes:
        setattr(place, name, value)
    try:
        yield
    finally:
        for (place, name, _), value in zip(changes, before, strict=True):
            if value is _ABSENT:
                delattr(place, name)
            else:
                setattr(place, name, value)


@cache
def _changes() -> list[Change]:
    """Later ones win where two are of one name."""
    from triton.runtime import interpreter

    changes = [
        *_language(),
        *_types(),
        *_operands(interpreter.interpreter_semantic),
        *exact_conversions(),
    ]
    return list(
        {(id(place), name): (place, name, value) for place, name, value in changes}.values()
    )


def _language() -> Iterator[Change]:
    """What Triton itself replaces; at every launch and call of a device function, by inspection of
    the whole language."""
    from triton import language as tl
    from triton.runtime import interpreter

    scope = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl}))
    found = [(place, name, before, getattr(place, name)) for place, name, before in scope._changes]
    scope.restore()
    for place, name, before, value in found:
        yield place, name, _given(before) if tl.core.is_builtin(before) else value
    yield interpreter, "_patch_lang", lambda fn: SimpleNamespace(restore=lambda: None)
    # In Triton 3.6 ``int`` of an array of one element, which numpy refuses from 2.4 on.
    yield tl.tensor, "__index__", lambda self: int(self.handle.data.item())


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
    no_shape = tl.tuple([]), tl.constexpr(1)
    shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}
    np_dtypes: dict[str, Any] = {}
    blocks: dict[tuple[str, str], Any] = {}

    def make_tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = shape_of(type) if type.is_block() else no_shape

    def shape_of(type: Any) -> tuple[Any, Any]:
        sizes = tuple(type.shape)
        if sizes not in shapes:
            shapes[sizes] = tl.tuple([tl.constexpr(n) for n in sizes]), tl.constexpr(type.numel)
        return shapes[sizes]

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
    """Operands that have the type of the operation already: most of them."""
    from triton import language as tl

    cast, check = semantic.cast, semantic.binary_op_type_checking_impl
    common_type, tensor = semantic.computation_type_impl, tl.tensor
    common_types: dict[tuple[Any, ...], Any] = {}

    def cast_to(input: Any, dst_ty: Any, fp_downcast_rounding: str | None = None) -> Any:
        if input.dtype is dst_ty.scalar:
            return input
        return cast(input, dst_ty, fp_downcast_rounding)

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

    def common(lhs: Any, lhs_scalar: bool, rhs: Any, rhs_scalar: bool, div_or_mod: bool) -> Any:
        key = lhs.name, lhs_scalar, rhs.name, rhs_scalar, div_or_mod
        if key not in common_types:
            common_types[key] = common_type(lhs, lhs_scalar, rhs, rhs_scalar, div_or_mod)
        return common_types[key]

    yield semantic, "cast", cast_to
    yield semantic, "binary_op_type_checking_impl", checked
    yield semantic, "computation_type_impl", common
    # Eight operations for each of 32 bits, and then an assertion that only ``debug`` makes.
    options = semantic.builder.options
    yield semantic.builder, "options", replace(options, sanitize_overflow=options.debug)
