"""Small questions about checked scalars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fuscoc.lang.checked import BinaryOp, Const, ExtentRef, IndexRef, Load, Scalar


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


def loads(scalar: Scalar) -> list[Load]:
    """The input elements that the scalar depends on."""
    return [part for part in parts(scalar) if isinstance(part, Load)]


def indices(scalar: Scalar) -> list[str]:
    """The domain indices that the scalar depends on, as often as they occur."""
    return [part.name for part in parts(scalar) if isinstance(part, IndexRef)]


def extents(scalar: Scalar) -> list[str]:
    """The run-time extents that the scalar depends on."""
    return [part.name for part in parts(scalar) if isinstance(part, ExtentRef)]


def rename(scalar: Scalar, names: Mapping[str, str]) -> Scalar:
    """The scalar with indices replaced by others."""
    match scalar:
        case IndexRef(name=name):
            return IndexRef(names.get(name, name))
        case Load(input=input, at=at):
            return Load(input, tuple(rename(subscript, names) for subscript in at))
        case BinaryOp(op=op, lhs=lhs, rhs=rhs):
            return BinaryOp(op, rename(lhs, names), rename(rhs, names))
        case Const() | ExtentRef():
            return scalar
