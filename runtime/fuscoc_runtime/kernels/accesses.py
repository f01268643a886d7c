"""Loads, stores and atomics of Triton's interpreter, with less to do for each.

Addresses that are one number or of the shape of what goes there, with masks of that shape, need no
broadcasting; for any others Triton's own are called. How a GPU caches them is nothing to memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np

from fuscoc_runtime.kernels.handles import making
from fuscoc_runtime.kernels.operators import BITS, FLOATS, TYPES, WHOLE

STORED = TYPES | FLOATS | {"bf16": np.dtype("uint16")}
"""Types as they lie in memory."""
HINTS = {"cache_modifier", "eviction_policy", "volatile"}
COUNTED = {"int32", "uint32", "int64", "uint64"}
"""What atomics work on."""

Access = tuple[Any, Any, Any, bool]
"""Addresses, which of them count, the type of what is there, and whether they are a block."""


def load_of(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """``tl.load``."""
    from triton.runtime.interpreter import _interpreter

    access, stored, as_tensor = _accesses(), _stored(), making()
    cells: dict[int, Any] = {size: ctypes.c_char * size for size in (1, 2, 4, 8)}

    def load(pointer: Any, mask: Any = None, other: Any = None, **hints: Any) -> Any:
        found = access(pointer, mask, hints)
        if found is None or (mask is None and other is not None):
            return theirs(pointer, mask, other, **hints)
        at, live, element, in_blocks = found
        kind = STORED[element.name]
        if at.shape == (1,) and mask is None:
            cell = cells[kind.itemsize].from_address(at.item())
            data = np.frombuffer(cell, kind).copy()
        else:
            rest = _filled(at.shape, 0, element.name) if other is None else stored(other, found)
            if rest is None:
                return theirs(pointer, mask, other, **hints)
            data = _interpreter.load(at, live, rest, kind)
        return as_tensor(data, element, element, in_blocks)

    return load


def store_of(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """``tl.store``."""
    from triton.runtime.interpreter import _interpreter

    access, stored = _accesses(), _stored()

    def store(pointer: Any, value: Any, mask: Any = None, **hints: Any) -> Any:
        found = access(pointer, mask, hints)
        if found is None or (data := stored(value, found)) is None:
            return theirs(pointer, value, mask, **hints)
        return _interpreter.store(found[0], data, found[1])

    return store


def atomic_of(name: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
    """``tl.atomic_add`` or another, of one whole number; ``name`` is that of the operation."""
    from triton import language as tl
    from triton.runtime.interpreter import _interpreter, interpreter_semantic

    constexpr, access, stored, as_tensor = tl.constexpr, _accesses(), _stored(), making()
    operation = getattr(_interpreter.RMW_OP, name)
    orders = interpreter_semantic.builder.ir_sem_to_interpreter_sem
    order_of = cache(lambda sem: orders[interpreter_semantic._str_to_sem(sem)])

    def atomic(pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> Any:
        found = access(pointer, mask, {})
        if found is None or mask is not None or found[3] or found[2].name not in COUNTED:
            return theirs(pointer, val, mask, sem, scope)
        at, live, element, _ = found
        value = stored(val, found)
        if value is None:
            return theirs(pointer, val, mask, sem, scope)
        order = order_of(sem.value if type(sem) is constexpr else sem)
        before = _interpreter.atomic_rmw(operation, at, value, live, order)
        return as_tensor(before, element, element, False)

    return atomic


def _accesses() -> Callable[[Any, Any, Any], Access | None]:
    """What finds out what is accessed, given a pointer, a mask and hints: None if that takes more
    than looking."""
    from triton import language as tl

    tensor, pointer_type, block_type = tl.tensor, tl.pointer_type, tl.block_type
    every, truth = dict[tuple[int, ...], Any](), BITS["int1"]

    def access(pointer: Any, mask: Any, hints: Any) -> Access | None:
        if type(pointer) is not tensor or type(pointer.dtype) is not pointer_type:
            return None
        element, at = pointer.dtype.element_ty, pointer.handle.data
        if element.name not in STORED or (hints and not hints.keys() <= HINTS):
            return None
        in_blocks = type(pointer.type) is block_type
        if mask is None:
            if at.shape not in every:
                every[at.shape] = np.ones(at.shape, bool)
            return at, every[at.shape], element, in_blocks
        if type(mask) is not tensor or mask.dtype.name != "int1":
            return None
        live = mask.handle.data
        if (
            live.dtype is not truth
            or live.shape != at.shape
            or (type(mask.type) is block_type) != in_blocks
        ):
            return None
        return at, live, element, in_blocks

    return access


def _stored() -> Callable[[Any, Access], Any]:
    """What makes numpy's array of a value that goes where an access finds something: of a tensor of
    that type and shape, or of a whole number. None of anything else."""
    from triton import language as tl

    tensor, constexpr, block_type = tl.tensor, tl.constexpr, tl.block_type

    def stored(value: Any, found: Access) -> Any:
        at, _, element, in_blocks = found
        name = element.name
        if type(value) is tensor:
            data = value.handle.data
            is_alike = value.dtype.name == name and data.shape == at.shape
            return data if is_alike and (type(value.type) is block_type) == in_blocks else None
        number = value.value if type(value) is constexpr else value
        if type(number) is not int or (number != 0 and number not in WHOLE.get(name, ())):
            return None
        return _filled(at.shape, number, name)

    return stored


@lru_cache(maxsize=10_000)
def _filled(shape: tuple[int, ...], number: int, name: str) -> Any:
    """A number, everywhere: to be read only."""
    return np.full(shape, number, STORED[name])
