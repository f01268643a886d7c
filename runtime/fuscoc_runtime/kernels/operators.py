"""Operators of Triton's tensors between numbers of one type, or whole ones of two, as numpy has
them; and what chooses between two such tensors.

They are most of what a kernel does, and Triton's own take a dozen functions each to find the type
that both operands have already. For any other operands Triton's own operator is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from fuscoc_runtime.kernels.handles import making

Operator = Callable[[Any, Any], Any]

WHOLE = {f"int{bits}": range(-(1 << (bits - 1)), 1 << (bits - 1)) for bits in (8, 16, 32, 64)}
WHOLE |= {f"uint{bits}": range(1 << bits) for bits in (8, 16, 32, 64)}
"""What every type of whole numbers holds."""
TYPES = {name: np.dtype(name) for name in WHOLE}
FLOATS = {f"fp{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)}
BITS = {"int1": np.dtype(bool)}
SPACE = 2**64
"""Addresses are remainders of it."""
SIGNED = [name for name in TYPES if name.startswith("int")]
WIDER = {
    (one, other): max(one, other, key=SIGNED.index)
    for one in SIGNED
    for other in SIGNED
    if one != other
}
"""The type of what is computed of two."""

ARITHMETIC: dict[str, Operator] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
BITWISE: dict[str, Operator] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
SHIFTS = {"lshift": np.left_shift, "rshift": np.right_shift}
COMPARISONS = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
DIVISIONS: dict[str, Operator] = {
    "floordiv": lambda left, right: (left - np.fmod(left, right)) // right,
    "mod": np.fmod,
}
"""Towards zero, as GPUs divide."""


def operators(theirs: Mapping[str, Operator]) -> Iterator[tuple[str, Operator]]:
    """Names of ``tl.tensor`` and what they are to be; ``theirs`` are Triton's own by name."""
    theirs = {**theirs, "__add__": _moved(theirs["__add__"])}
    yield "to", converted_by(theirs["to"])
    yield "__getitem__", item_of(theirs["__getitem__"])
    kinds = ((ARITHMETIC, TYPES | FLOATS), (DIVISIONS, TYPES), (BITWISE, TYPES | BITS))
    for names, types in kinds:
        for name, op in names.items():
            yield f"__{name}__", _operator(op, types, theirs[f"__{name}__"])
            yield f"__r{name}__", _operator(_turned(op), types, theirs[f"__r{name}__"])
    for name, op in SHIFTS.items():  # by numbers that a kernel has computed, Triton's own
        yield f"__{name}__", _operator(op, TYPES, theirs[f"__{name}__"], by_constant=True)
    for name, op in COMPARISONS.items():
        yield f"__{name}__", _operator(op, TYPES | FLOATS, theirs[f"__{name}__"], compares=True)


def _turned(op: Operator) -> Operator:
    return lambda right, left: op(left, right)


def _operator(
    op: Operator,
    types: Mapping[str, Any],
    theirs: Operator,
    *,
    compares: bool = False,
    by_constant: bool = False,
) -> Operator:
    from triton import language as tl

    tensor, constexpr, block_type, truth = tl.tensor, tl.constexpr, tl.block_type, tl.int1
    as_tensor = making()

    def operate(left: Any, right: Any) -> Any:
        dtype, handle = left.dtype, left.handle
        name, data = dtype.name, handle.data
        wanted = types.get(name)
        if wanted is None or data.dtype is not wanted:
            return theirs(left, right)
        in_blocks = type(left.type) is block_type
        held = handle.dtype
        if type(right) is tensor:
            value, other = right.handle.data, right.dtype
            if by_constant:
                return theirs(left, right)
            if other.name == name:
                if value.dtype is not wanted:
                    return theirs(left, right)
            else:
                wider = WIDER.get((name, other.name))
                if wider is None or value.dtype is not TYPES[other.name]:
                    return theirs(left, right)
                if wider == name:
                    value = value.astype(wanted)
                else:
                    data, dtype, held = data.astype(value.dtype), other, other
            in_blocks = in_blocks or type(right.type) is block_type
        else:
            number = right.value if type(right) is constexpr else right
            fits = range(8 * wanted.itemsize) if by_constant else WHOLE.get(name, ())
            if type(number) is not int or number not in fits:
                return theirs(left, right)
            value = _number(name, number)
        return as_tensor(op(data, value), held, truth if compares else dtype, in_blocks)

    return operate


@lru_cache(maxsize=10_000)
def _number(name: str, number: int) -> Any:
    """A number as an operand, which no operation changes."""
    return np.array([number], TYPES[name])


def extreme_of(op: Operator, theirs: Callable[..., Any]) -> Callable[..., Any]:
    """``tl.minimum`` or ``tl.maximum``; of anything but whole numbers ``theirs``."""
    from triton import language as tl

    tensor, operate = tl.tensor, _operator(op, TYPES, theirs)

    def extreme(x: Any, y: Any, *given: Any, **named: Any) -> Any:
        if given or named or type(x) is not tensor:
            return theirs(x, y, *given, **named)
        if type(y) is not tensor and x.dtype.primitive_bitwidth < 32:
            return theirs(x, y)  # Triton 3.6 makes these wider, later ones do not
        return operate(x, y)

    return extreme


def where_of(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """``tl.where``; ``theirs`` but between numbers of one type."""
    from triton import language as tl

    tensor, constexpr, block_type = tl.tensor, tl.constexpr, tl.block_type
    types, truth, as_tensor = TYPES | FLOATS | BITS, BITS["int1"], making()

    def where(condition: Any, x: Any, y: Any) -> Any:
        model = x if type(x) is tensor else y
        if type(condition) is not tensor or type(model) is not tensor:
            return theirs(condition, x, y)
        dtype, choice = model.dtype, condition.handle.data
        name = dtype.name
        wanted = types.get(name)
        if wanted is None or condition.dtype.name != "int1" or choice.dtype is not truth:
            return theirs(condition, x, y)
        in_blocks, values = type(condition.type) is block_type, []
        for each in (x, y):
            if type(each) is tensor:
                value = each.handle.data
                if each.dtype.name != name or value.dtype is not wanted:
                    return theirs(condition, x, y)
                in_blocks = in_blocks or type(each.type) is block_type
            else:
                number = each.value if type(each) is constexpr else each
                if type(number) is not int or number not in WHOLE.get(name, ()):
                    return theirs(condition, x, y)
                value = _number(name, number)
            values.append(value)
        if in_blocks:
            return as_tensor(np.where(choice, *values), model.handle.dtype, dtype, True)
        return as_tensor(values[not choice.item()], model.handle.dtype, dtype, False)

    return where


def _moved(theirs: Operator) -> Operator:
    """The sum of pointers and offsets."""
    from triton import language as tl
    from triton.runtime.interpreter import TensorHandle

    tensor, constexpr, block_type = tl.tensor, tl.constexpr, tl.block_type
    pointer_type, sizes = tl.pointer_type, dict[str, Any]()
    blocks, address, as_tensor = dict[tuple[Any, ...], Any](), TYPES["uint64"], making()

    def add(left: Any, right: Any) -> Any:
        dtype, handle = left.dtype, left.handle
        if type(dtype) is not pointer_type:
            return theirs(left, right)
        is_block = in_blocks = type(left.type) is block_type
        name, data = dtype.name, handle.data
        if name not in sizes:
            bits = handle.get_element_ty().primitive_bitwidth
            sizes[name] = max(1, bits // 8)
        if type(right) is tensor:
            offset = right.handle.data
            if TYPES.get(right.dtype.name) is not offset.dtype:
                return theirs(left, right)
            in_blocks = in_blocks or type(right.type) is block_type
            if not in_blocks:  # numbers of Python take less time than arrays of one
                move = sizes[name] * offset.item()
                at = np.array([(data.item() + move) % SPACE], address)
                return as_tensor(at, handle.dtype, dtype, False)
            move = offset.astype(address)
            if sizes[name] > 1:
                move *= _number("uint64", sizes[name])
        else:
            number = right.value if type(right) is constexpr else right
            if type(number) is not int or number not in WHOLE["int32"]:
                return theirs(left, right)
            move = _number("uint64", sizes[name] * number % SPACE)
        result, kind = data + move, left.type
        if in_blocks and not (is_block and data.shape == result.shape):
            key = name, dtype.address_space, result.shape
            if key not in blocks:
                blocks[key] = block_type(dtype, list(result.shape))
            kind = blocks[key]
        return tensor(TensorHandle(result, handle.dtype), kind)

    return add


def converted_by(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """``tl.tensor.to`` or ``tl.cast``: whole numbers as others, and numbers as addresses."""
    from triton import language as tl

    tensor, constexpr, block_type = tl.tensor, tl.constexpr, tl.block_type
    pointer_type, address, as_tensor = tl.pointer_type, np.dtype(np.uint64), making()
    types = TYPES | BITS

    def to(self: Any, dtype: Any, *given: Any, **named: Any) -> Any:
        wanted = dtype.value if type(dtype) is constexpr else dtype
        if type(self) is not tensor or given or named:
            return theirs(self, dtype, *given, **named)
        data, name, in_blocks = self.handle.data, self.dtype.name, type(self.type) is block_type
        if types.get(name) is not data.dtype:
            return theirs(self, dtype)
        if type(wanted) is pointer_type and name == "int64" and not in_blocks:
            return as_tensor(data.astype(address), wanted, wanted, False)
        if wanted is self.dtype:
            return self
        kind = TYPES.get(wanted.name)
        if kind is None:
            return theirs(self, dtype)
        return as_tensor(data.astype(kind), wanted, wanted, in_blocks)

    return to


def reduction_of(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """``tl.reduce``; ``theirs`` but of whole numbers, of which none is NaN, along a dimension."""
    from triton import language as tl

    standard, tensor, as_tensor = tl.standard, tl.tensor, making()
    ways: dict[int, Any] = {  # a function's own hash is that of its text
        id(standard._sum_combine): np.add,
        id(standard._elementwise_max): np.maximum,
        id(standard._elementwise_min): np.minimum,
    }

    def reduce(input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **named: Any) -> Any:
        op = ways.get(id(combine_fn))
        if op is None or type(input) is not tensor or type(axis) is not int:
            return theirs(input, axis, combine_fn, keep_dims, **named)
        data, dtype = input.handle.data, input.dtype
        wanted = TYPES.get(dtype.name)
        if wanted is not data.dtype or not 0 <= axis < data.ndim:
            return theirs(input, axis, combine_fn, keep_dims, **named)
        keeps, in_blocks = bool(keep_dims), bool(keep_dims) or data.ndim > 1
        found = op.reduce(data, axis, wanted, keepdims=keeps or not in_blocks)
        return as_tensor(found, dtype, dtype, in_blocks)

    return reduce


def item_of(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """``tl.tensor.__getitem__`` that gives blocks of numbers more dimensions."""
    from triton import language as tl

    block_type, as_tensor, every = tl.block_type, making(), slice(None)

    def item(self: Any, slices: Any, *given: Any, **named: Any) -> Any:
        kind, data = self.type, self.handle.data
        if (
            type(kind) is not block_type
            or kind.scalar.is_ptr()
            or type(slices) is not tuple
            or len(slices) - slices.count(None) != data.ndim
            or any(each is not None and each != every for each in slices)
        ):
            return theirs(self, slices, *given, **named)
        return as_tensor(data[slices], self.handle.dtype, self.dtype, True)

    return item
