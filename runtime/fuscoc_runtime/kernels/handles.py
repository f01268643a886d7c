"""Values of Triton's interpreter and loads of a single number, with less to do for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fuscoc_runtime.kernels.operators import FLOATS, TYPES

Change = tuple[Any, str, Any]  # an object, a name and the value it is to have


def handles() -> Iterator[Change]:
    """How a handle is made: what fits into its type is looked up, and not found out again."""
    from triton import language as tl
    from triton.runtime.interpreter import TensorHandle

    most: dict[str, int] = {}

    def make_handle(self: Any, data: Any, dtype: Any, attr: Any = None) -> None:
        self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr
        name = dtype.name
        if name not in most:
            is_pointer = isinstance(dtype, tl.pointer_type)
            most[name] = 8 if is_pointer else max(1, dtype.primitive_bitwidth // 8)
        if data.itemsize > most[name]:
            self.__post_init__()  # which objects, but to pointers

    yield TensorHandle, "__init__", make_handle


def load_of(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """``tl.load``; of anything but one number at an address ``theirs``."""
    from triton import language as tl
    from triton.runtime.interpreter import TensorHandle, _interpreter

    tensor, pointer_type, types = tl.tensor, tl.pointer_type, TYPES | FLOATS
    live = np.ones(1, bool)
    nothing = {name: np.zeros(1, each) for name, each in types.items()}

    def load(pointer: Any, *given: Any, **named: Any) -> Any:
        if given or named or type(pointer) is not tensor or type(pointer.type) is not pointer_type:
            return theirs(pointer, *given, **named)
        element, at = pointer.type.element_ty, pointer.handle.data
        name = element.name
        if name not in types or at.shape != (1,):
            return theirs(pointer)
        found = _interpreter.load(at, live, nothing[name], types[name])
        return tensor(TensorHandle(found, element), element)

    return load
