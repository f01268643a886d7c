"""L3 values as Python expressions for Triton, with no more parentheses than they need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from struct import pack, unpack
from typing import Any

from fuscoc.codegen.arguments import AMAX, NORMALISED, NORMALISED_BY
from fuscoc.dialect.dtypes import from_mlir, num_bytes
from fuscoc.dialect.expressions import expression as tree
from fuscoc.dialect.l3_values import (
    Aligned,
    Amax,
    Cast,
    DescField,
    FactorOf,
    Held,
    Lanes,
    LoadRow,
    LoadScalar,
    Merge,
    Normalise,
    NormaliseBy,
    PeerBase,
    RowAt,
    Scale,
    ScaleOf,
    element_of,
    vector_of,
)
from fuscoc.dialect.mlir import ir

TRITON_TYPES = {
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "f8e4m3": "float8e4nv",
    "f8e5m2": "float8e5",
}

MAX_COLUMNS = 100
INT32_MAX, UINT32_MAX = 2**31 - 1, 2**32 - 1

# How reductions make two rows one.
MERGES = {"sum": "({} + {})", "max": "tl.maximum({}, {}, propagate_nan=tl.PropagateNan.ALL)"}
# The largest finite values of the 8-bit floats.
MAX_VALUES = {"f8e4m3": 448.0, "f8e5m2": 57344.0}

# What the text of kernels which make scales begins with.
AMAX_TEXT = f'''@triton.jit
def {AMAX}(x, log2_block: tl.constexpr):
    """The largest finite magnitude of every 2**log2_block elements of x, at least 2**-100."""
    x = tl.abs(x)
    x = tl.where(x < float("inf"), x, 0.0)
    for _ in tl.static_range(log2_block):
        even, odd = tl.split(tl.reshape(x, (x.numel // 2, 2)))
        x = tl.maximum(even, odd)
    return tl.maximum(x, 2.0**-100)
'''

# What the text of kernels which normalise begins with. A difference that is multiplied cannot be
# contracted to one operation, so every machine rounds twice.
NORMALISED_TEXT = f'''@triton.jit
def {NORMALISED}(x, at, shifts: tl.constexpr, factors: tl.constexpr):
    """(x - shift) * factor, by the channels of the lanes ``at``."""
    shift = tl.full(x.shape, shifts[0], tl.float32)
    factor = tl.full(x.shape, factors[0], tl.float32)
    for channel in tl.static_range(1, len(shifts)):
        is_here = at % len(shifts) == channel
        shift = tl.where(is_here, shifts[channel], shift)
        factor = tl.where(is_here, factors[channel], factor)
    return (x - shift) * factor
'''

NORMALISED_BY_TEXT = f'''@triton.jit
def {NORMALISED_BY}(x, at, numbers, channels: tl.constexpr):
    """(x - shift) * factor, by the channels of the lanes ``at``: shifts, and then factors."""
    shift = numbers + at % channels
    return (x - tl.load(shift)) * tl.load(shift + channels)
'''

HELPERS = {AMAX: AMAX_TEXT, NORMALISED: NORMALISED_TEXT, NORMALISED_BY: NORMALISED_BY_TEXT}

# How tightly an expression binds, as in Python.
ATOM, PRODUCT, SUM, AND, OR, COMPARISON = range(6, 0, -1)

_BINARY = {
    "arith.addi": ("+", SUM),
    "arith.subi": ("-", SUM),
    "arith.muli": ("*", PRODUCT),
    # These truncate when compiled; interpreted, those of loop variables floor.
    "arith.divsi": ("//", PRODUCT),
    "arith.remsi": ("%", PRODUCT),
    "arith.andi": ("&", AND),
    "arith.ori": ("|", OR),
}
_COMPARISONS = {"eq": "==", "ne": "!=", "slt": "<", "sle": "<=", "sgt": ">", "sge": ">="}


@dataclass(frozen=True)
class Text:
    """An expression and how tightly its outermost operator binds."""

    text: str
    binds: int = ATOM

    def inside(self, binds: int) -> str:
        """The text, in parentheses if something that binds so tightly would tear it apart."""
        return self.text if self.binds >= binds else f"({self.text})"


def tl(dtype: str) -> str:
    """Triton's name of an element type."""
    return f"tl.{TRITON_TYPES[dtype]}"


def pointer(dtype: str) -> str:
    """Triton's type of a pointer to elements of ``dtype``."""
    return f"tl.pointer_type({tl(dtype)})"


def expression(op: Any, text: Callable[[Any], Text]) -> Text:
    """The result of ``op``; ``text`` gives its operands."""

    def operand(position: int, binds: int) -> str:
        return text(op.operands[position]).inside(binds)

    match op:
        case DescField() | PeerBase():
            return Text(f"tl.load({operand(0, SUM)} + {operand(1, PRODUCT)})")
        case LoadScalar():
            load = f"tl.load({operand(0, SUM)} + {operand(1, PRODUCT)})"
            widened = from_mlir(op.result.type) != element_of(op.array)
            return Text(f"{load}.to(tl.int64)" if widened else load)
        case RowAt():
            return Text(_row_at(op, operand))
        case Lanes():
            lanes = f"tl.arange(0, {vector_of(op.result)[1]})"
            start = operand(0, SUM)
            return Text(lanes) if start == "0" else Text(f"{start} + {lanes}", SUM)
        case LoadRow():
            where = address(op, operand(0, SUM), text(op.lanes), text)
            # No integer can be made an 8-bit float.
            zero = "0.0" if op.row.type.dtype in MAX_VALUES else "0"
            other = f", other={zero}" if op.read("limit") is not None else ""
            return Text(f"tl.load({where}{other})")
        case Aligned():
            return Text(f"tl.multiple_of({operand(0, COMPARISON)}, {op.read('multiple')})")
        case Held():
            return text(op.held)
        case Cast():
            return Text(_cast(op, operand))
        case Scale():
            return _scale(op, operand)
        case Normalise():
            sides = operand(0, COMPARISON), operand(1, COMPARISON)
            return Text(normalised(*sides, op.read("shifts"), op.read("factors")))
        case NormaliseBy():
            value, lanes, numbers = (operand(position, COMPARISON) for position in range(3))
            return Text(normalised_by(value, lanes, numbers, op.read("channels")))
        case Merge():
            return Text(MERGES[op.read("kind")].format(operand(0, PRODUCT), operand(1, PRODUCT)))
        case Amax():
            return Text(amax_of(operand(0, COMPARISON), op.read("block")))
        case ScaleOf():
            return Text(scale_of(operand(0, PRODUCT), op.read("dtype")), PRODUCT)
        case FactorOf():
            return Text(factor_of(operand(0, COMPARISON), op.read("dtype")))
    return _arithmetic(op.operation, operand)


def address(op: Any, row: str, lanes: Text, text: Callable[[Any], Text]) -> str:
    """Where a row is loaded or stored, with its mask: the arguments of ``tl.load`` up to there."""
    limit, counts = op.read("limit"), op.read("counts")
    place = lanes.inside(SUM)
    if counts:
        strides = [text(stride).inside(ATOM) for stride in op.strides]
        at = lanes.inside(ATOM)
        if reach(op.read("run"), counts, map(tree, op.strides)) > INT32_MAX:
            at = f"{at}.to(tl.int64)"  # Triton counts lanes in 32 bits
        place = f"({in_runs(at, op.read('run'), counts, strides)})"
    mask = "" if limit is None else f", mask={lanes.inside(SUM)} < {limit}"
    return f"{row} + {place}{mask}"


def reach(run: int, counts: Sequence[int], strides: Iterable[object]) -> int:
    """How far the runs of a row lie from its first element, as far as strides are constants."""
    for count, stride in zip(counts, strides, strict=True):
        if isinstance(stride, int):
            run += (count - 1) * stride
    return run


def in_runs(at: str, run: int, counts: Sequence[int], strides: Sequence[str]) -> str:
    """The place of lane ``at`` of a row that lies in runs."""
    terms = []
    for level, stride in enumerate(strides):
        step = run * prod(counts[level + 1 :])
        index = at if step == 1 else f"{at} // {step}"
        terms.append(f"{index} % {counts[level]} * {stride}" if level else f"{index} * {stride}")
    if run > 1:
        terms.append(f"{at} % {run}")
    return " + ".join(terms)


def cast_to(value: str, dtype: str) -> str:
    """An expression, an atom, as another element type; 8-bit floats saturate."""
    if dtype not in MAX_VALUES:
        return f"{value}.to({tl(dtype)})"
    most = MAX_VALUES[dtype]
    return f"tl.clamp({value}, -{most}, {most}, tl.PropagateNan.ALL).to({tl(dtype)})"


def scaled_by(value: str, factors: str, size: int, num_blocks: int) -> str:
    """``size`` elements times the factor of their block."""
    blocks = f"tl.reshape({value}, ({num_blocks}, {size // num_blocks}))"
    return f"tl.reshape({blocks} * tl.expand_dims({factors}, 1), ({size},))"


def amax_of(value: str, block: int) -> str:
    """The largest finite magnitude of every block, of a power of two of elements."""
    return f"{AMAX}({value}, {block.bit_length() - 1})"


def scale_of(amax: str, dtype: str) -> str:
    """The scales that go with 8-bit floats, a product."""
    (inverse,) = unpack("f", pack("f", 1 / MAX_VALUES[dtype]))
    return f"{amax} * {inverse}"


def factor_of(amax: str, dtype: str) -> str:
    """What elements are multiplied by to become 8-bit floats."""
    return f"tl.div_rn({MAX_VALUES[dtype]}, {amax})"


def normalised(value: str, lanes: str, shifts: Sequence[float], factors: Sequence[float]) -> str:
    """f32, normalised by the channels of ``lanes``."""
    return f"{NORMALISED}({value}, {lanes}, {tuple(shifts)!r}, {tuple(factors)!r})"


def normalised_by(value: str, lanes: str, numbers: str, channels: int) -> str:
    """f32, normalised by as many numbers of a call as there are channels of ``lanes``."""
    return f"{NORMALISED_BY}({value}, {lanes}, {numbers}, {channels})"


def _cast(op: Any, operand: Callable[[int, int], str]) -> str:
    dtype = _dtype(op.result.type)
    return cast_to(operand(0, COMPARISON if dtype in MAX_VALUES else ATOM), dtype)


def _scale(op: Any, operand: Callable[[int, int], str]) -> Text:
    if not isinstance(op.factor.type, ir.VectorType):
        return Text(f"{operand(1, PRODUCT)} * {operand(0, ATOM)}", PRODUCT)
    size, num_blocks = vector_of(op.value)[1], vector_of(op.factor)[1]
    return Text(scaled_by(operand(0, COMPARISON), operand(1, COMPARISON), size, num_blocks))


def _row_at(op: Any, operand: Callable[[int, int], str]) -> str:
    dtype = op.row.type.dtype
    step = "" if op.read("step_bytes") == 1 else f" * {op.read('step_bytes')}"
    where = f"{operand(0, SUM)} + {operand(1, PRODUCT)}{step}"
    row, align = f"({where}).to({pointer(dtype)})", op.read("align")
    return f"tl.multiple_of({row}, {align})" if align > num_bytes(dtype) else row


def _arithmetic(op: Any, operand: Callable[[int, int], str]) -> Text:
    if op.name == "arith.constant":
        value = ir.IntegerAttr(op.attributes["value"]).value
        if INT32_MAX < value <= UINT32_MAX:  # to Triton unsigned, beside no negative number
            return Text(f"tl.cast({value}, tl.int64)")
        return Text(str(value))
    if op.name == "arith.select":
        return Text(f"tl.where({', '.join(operand(i, COMPARISON) for i in range(3))})")
    if op.name == "arith.cmpi":
        predicate = list(_COMPARISONS)[ir.IntegerAttr(op.attributes["predicate"]).value]
        sides = operand(0, OR), operand(1, OR)
        return Text(f"{sides[0]} {_COMPARISONS[predicate]} {sides[1]}", COMPARISON)
    symbol, binds = _BINARY[op.name]
    return Text(f"{operand(0, binds)} {symbol} {operand(1, binds + 1)}", binds)


def _dtype(kind: Any) -> str:
    return from_mlir(kind.element_type if isinstance(kind, ir.VectorType) else kind)


def wrapped(indent: str, text: str) -> list[str]:
    """A statement; where it is too long and ends in a call or a tuple, with one item a line."""
    if len(indent + text) <= MAX_COLUMNS:
        return [indent + text]
    opening = text.find("(")
    items, depth, begin = [], 0, opening + 1
    for position, char in enumerate(text):
        depth += (char in "([") - (char in ")]")
        is_last = position == len(text) - 1
        if depth == 0 and position > opening and not is_last:
            return [indent + text]  # what is opened first does not reach to the end
        if (depth == 1 and text[position : position + 2] == ", ") or is_last:
            items.append(text[begin:position])
            begin = position + 2
    if len(items) == 1 and not text[opening - 1].isidentifier():
        return [indent + text]  # a comma would make it a tuple
    lines = [indent + text[: opening + 1]]
    for item in items:
        *before, last = wrapped(f"{indent}    ", item)
        lines += [*before, f"{last},"]
    return [*lines, f"{indent})"]
