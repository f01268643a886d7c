"""L3 values as Python expressions for Triton, with no more parentheses than they need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from fuscoc.dialect.dtypes import from_mlir, num_bytes
from fuscoc.dialect.l3_values import (
    Aligned,
    Cast,
    DescField,
    Held,
    Lanes,
    LoadRow,
    LoadScalar,
    PeerBase,
    RowAt,
    Scale,
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

# How tightly an expression binds, as in Python.
ATOM, PRODUCT, SUM, AND, OR, COMPARISON = range(6, 0, -1)

_BINARY = {
    "arith.addi": ("+", SUM),
    "arith.subi": ("-", SUM),
    "arith.muli": ("*", PRODUCT),
    # Operands are never negative, where truncating and flooring agree.
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
            other = ", other=0" if op.read("limit") is not None else ""
            return Text(f"tl.load({where}{other})")
        case Aligned():
            return Text(f"tl.multiple_of({operand(0, COMPARISON)}, {op.read('multiple')})")
        case Held():
            return text(op.held)
        case Cast():
            return Text(f"{operand(0, ATOM)}.to({tl(_dtype(op.result.type))})")
        case Scale():
            return Text(f"{operand(1, PRODUCT)} * {operand(0, ATOM)}", PRODUCT)
    return _arithmetic(op.operation, operand)


def address(op: Any, row: str, lanes: Text, text: Callable[[Any], Text]) -> str:
    """Where a row is loaded or stored, with its mask: the arguments of ``tl.load`` up to there."""
    limit, counts = op.read("limit"), op.read("counts")
    place = lanes.inside(SUM)
    if counts:
        strides = [text(stride).inside(ATOM) for stride in op.strides]
        place = f"({_in_runs(lanes.inside(ATOM), op.read('run'), counts, strides)})"
    mask = "" if limit is None else f", mask={lanes.inside(SUM)} < {limit}"
    return f"{row} + {place}{mask}"


def _in_runs(at: str, run: int, counts: tuple[int, ...], strides: list[str]) -> str:
    """The place of lane ``at`` of a row that lies in runs."""
    terms = []
    for level, stride in enumerate(strides):
        step = run * prod(counts[level + 1 :])
        index = at if step == 1 else f"{at} // {step}"
        terms.append(f"{index} % {counts[level]} * {stride}" if level else f"{index} * {stride}")
    if run > 1:
        terms.append(f"{at} % {run}")
    return " + ".join(terms)


def _row_at(op: Any, operand: Callable[[int, int], str]) -> str:
    dtype = op.row.type.dtype
    step = "" if op.read("step_bytes") == 1 else f" * {op.read('step_bytes')}"
    where = f"{operand(0, SUM)} + {operand(1, PRODUCT)}{step}"
    row, align = f"({where}).to({pointer(dtype)})", op.read("align")
    return f"tl.multiple_of({row}, {align})" if align > num_bytes(dtype) else row


def _arithmetic(op: Any, operand: Callable[[int, int], str]) -> Text:
    if op.name == "arith.constant":
        return Text(str(ir.IntegerAttr(op.attributes["value"]).value))
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


def wrap_call(text: str) -> list[str]:
    """A statement that ends in a call, with one argument a line."""
    opening = text.index("(")
    arguments, depth, begin = [], 0, opening + 1
    for position, char in enumerate(text):
        depth += (char in "([") - (char in ")]")
        if (depth == 1 and text[position : position + 2] == ", ") or position == len(text) - 1:
            arguments.append(text[begin:position])
            begin = position + 2
    return [text[: opening + 1], *(f"    {argument}," for argument in arguments), ")"]
