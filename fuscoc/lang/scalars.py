"""Checked scalars: what they are made of and depend on, and other values put into them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterator, Mapping

from fuscoc.lang.checked import (
    DIVISIONS,
    BinaryOp,
    Const,
    ExtentRef,
    IndexRef,
    Inside,
    Load,
    Operator,
    Scalar,
)


def _cdiv(lhs: int, rhs: int) -> int:
    return -(-lhs // rhs)


OPERATORS: dict[Operator, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": min,
    "max": max,
    "cdiv": _cdiv,
}


def parts(scalar: Scalar) -> Iterator[Scalar]:
    """The scalar and every scalar inside it, outermost first."""
    yield scalar
    match scalar:
        case BinaryOp(lhs=lhs, rhs=rhs):
            yield from parts(lhs)
            yield from parts(rhs)
        case Load(at=at):
            for subscript in at:
                yield from parts(subscript)
        case Inside(value=value, limit=limit):
            yield from parts(value)
            yield from parts(limit)


def depth(scalar: Scalar) -> int:
    """How deeply a scalar nests; a number or an index is 1."""
    match scalar:
        case BinaryOp(lhs=lhs, rhs=rhs):
            return 1 + max(depth(lhs), depth(rhs))
        case Load(at=at):
            return 1 + max(map(depth, at))
        case Inside(value=value, limit=limit):
            return max(depth(value), depth(limit))
    return 1


def loads(scalar: Scalar) -> list[Load]:
    """The input elements that the scalar depends on."""
    return [part for part in parts(scalar) if isinstance(part, Load)]


def indices(scalar: Scalar) -> list[str]:
    """The domain indices that the scalar depends on, as often as they occur."""
    return [part.name for part in parts(scalar) if isinstance(part, IndexRef)]


def extents(scalar: Scalar) -> list[str]:
    """The run-time extents that the scalar depends on."""
    return [part.name for part in parts(scalar) if isinstance(part, ExtentRef)]


def may_be_negative(scalar: Scalar, sizes: Container[str]) -> bool:
    """Whether the value could be below zero for some inputs; indices and ``sizes`` never are."""
    match scalar:
        case Const(value=value):
            return value < 0
        case IndexRef() | ExtentRef():
            return False
        case Load(input=input, at=at):
            return input not in sizes or any(may_be_negative(each, sizes) for each in at)
        case BinaryOp(op="-"):
            return True
        case BinaryOp(op="max", lhs=lhs, rhs=rhs):
            return may_be_negative(lhs, sizes) and may_be_negative(rhs, sizes)
        case BinaryOp(lhs=lhs, rhs=rhs):
            return may_be_negative(lhs, sizes) or may_be_negative(rhs, sizes)
        case Inside(value=value, limit=limit):
            return may_be_negative(value, sizes) or may_be_negative(limit, sizes)


def is_routed(scalar: Scalar, sizes: Container[str]) -> bool:
    """Whether the value comes from a route; ``sizes`` are the inputs that are none."""
    return any(load.input not in sizes for load in loads(scalar))


def substitute(scalar: Scalar, values: Mapping[str, Scalar]) -> Scalar:
    """The scalar with values put in place of indices."""
    match scalar:
        case IndexRef(name=name):
            return values.get(name, scalar)
        case Load(input=input, at=at):
            return Load(input, tuple(substitute(subscript, values) for subscript in at))
        case BinaryOp(op=op, lhs=lhs, rhs=rhs):
            return BinaryOp(op, substitute(lhs, values), substitute(rhs, values))
        case Inside(value=value, limit=limit):
            return Inside(substitute(value, values), substitute(limit, values))
        case Const() | ExtentRef():
            return scalar


def on_rank(scalar: Scalar, rank: Scalar) -> Scalar:
    """The scalar as another rank than the executing one has it."""
    match scalar:
        case ExtentRef(name="rank"):
            return rank
        case Load(input=input, at=at):
            return Load(input, tuple(on_rank(subscript, rank) for subscript in at))
        case BinaryOp(op=op, lhs=lhs, rhs=rhs):
            return BinaryOp(op, on_rank(lhs, rank), on_rank(rhs, rank))
        case Inside(value=value, limit=limit):
            return Inside(on_rank(value, rank), on_rank(limit, rank))
        case Const() | IndexRef() | ExtentRef():
            return scalar


def of_ranks(scalar: Scalar, count: int) -> Scalar:
    """The scalar on so many ranks, with numbers computed as far as they can be."""
    match scalar:
        case ExtentRef(name="ranks"):
            return Const(count)
        case Load(input=input, at=at):
            return Load(input, tuple(of_ranks(subscript, count) for subscript in at))
        case Inside(value=value, limit=limit):
            return Inside(of_ranks(value, count), of_ranks(limit, count))
        case BinaryOp(op=op, lhs=lhs, rhs=rhs):
            match of_ranks(lhs, count), of_ranks(rhs, count):
                case Const(value=left), Const(value=right) if op not in DIVISIONS or right > 0:
                    return Const(OPERATORS[op](left, right))
                case left_part, right_part:
                    return BinaryOp(op, left_part, right_part)
        case Const() | IndexRef() | ExtentRef():
            return scalar
