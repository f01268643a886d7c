"""Values of Triton's interpreter, with less to do for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

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


def made_once(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """``tl.arange`` or ``tl.full``, whose elements are made once for the same whole numbers: no
    operation changes its operands."""
    from triton import language as tl
    from triton.runtime.interpreter import TensorHandle

    tensor, constexpr = tl.tensor, tl.constexpr
    sequences, numbers = (list, tuple, tl.tuple), (int, tl.dtype)
    known = lru_cache(maxsize=1000)(theirs)

    def plain(value: Any) -> Any:
        value = value.value if type(value) is constexpr else value
        if isinstance(value, sequences):
            return tuple(map(plain, value))
        return value if type(value) in numbers else None

    def make(*given: Any) -> Any:
        arguments = plain(given)
        if None in arguments:
            return theirs(*given)
        made = known(*arguments)
        return tensor(TensorHandle(made.handle.data, made.handle.dtype), made.type)

    return make
