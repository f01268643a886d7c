"""Small questions about checked scalars."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from fuscoc.lang.checked import BinaryOp, Const, ExtentRef, IndexRef, Inside, Load, Scalar


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
    return any(
        (isinstance(part, BinaryOp) and part.op == "-")
        or (isinstance(part, Const) and part.value < 0)
        or (isinstance(part, Load) and part.input not in sizes)
        for part in parts(scalar)
    )


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
