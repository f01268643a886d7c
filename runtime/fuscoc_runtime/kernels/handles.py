"""Values of Triton's interpreter, with less to do for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, lru_cache
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


@cache
def making() -> Callable[[Any, Any, Any, bool], Any]:
    """What makes a tensor of numpy's array, whose elements fit what the handle is ``held`` to be
    of: a number or an address, or numbers, but no addresses, ``in_blocks``. It calls no
    constructor, as there is nothing to find out."""
    from triton import language as tl
    from triton.runtime.interpreter import TensorHandle

    block_type, of_number = tl.block_type, (tl.tuple([]), tl.constexpr(1))
    handle_type, tensor, new = TensorHandle, tl.tensor, object.__new__
    blocks: dict[tuple[str, tuple[int, ...]], Any] = {}

    def make(data: Any, held: Any, dtype: Any, in_blocks: bool) -> Any:
        handle, made = new(handle_type), new(tensor)
        handle.data, handle.dtype, handle.attr = data, held, {}
        made.handle, made.dtype = handle, dtype
        if in_blocks:
            key = dtype.name, data.shape
            if key not in blocks:
                kind = block_type(dtype, list(data.shape))
                blocks[key] = kind, shape_of(kind)
            made.type, (made.shape, made.numel) = blocks[key]
        else:
            made.type, (made.shape, made.numel) = dtype, of_number
        return made

    return make


def shape_of(kind: Any) -> tuple[Any, Any]:
    """The shape of a type of blocks, and the number of elements."""
    from triton import language as tl

    return tl.tuple([tl.constexpr(n) for n in kind.shape]), tl.constexpr(kind.numel)


def made_once(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """``tl.arange`` or ``tl.full``, whose elements are made once for the same whole numbers: no
    operation changes its operands."""
    from triton import language as tl

    constexpr, block_type, as_tensor = tl.constexpr, tl.block_type, making()
    sequences, numbers = (list, tuple, tl.tuple), (int, tl.dtype)
    known = lru_cache(maxsize=1000)(theirs)

    def plain(value: Any) -> Any:
        value = value.value if type(value) is constexpr else value
        if isinstance(value, sequences):
            values = tuple(map(plain, value))
            return None if None in values else values
        return value if type(value) in numbers else None

    def make(*given: Any, **named: Any) -> Any:
        arguments = plain(given)
        if arguments is None or named:
            return theirs(*given, **named)
        made = known(*arguments)
        in_blocks = type(made.type) is block_type
        return as_tensor(made.handle.data, made.handle.dtype, made.dtype, in_blocks)

    return make
