"""Scalar expressions of the manifest: integers computed from a rank's indices and inputs.

The generated kernels compute the same values on the device; this evaluator shares nothing with
them. It serves what needs one value at a time: shapes, lengths, error messages, the reference.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

Operator: TypeAlias = Literal["+", "-", "*", "/", "%", "//", "min", "max", "cdiv"]
DIVISIONS: tuple[Operator, ...] = ("/", "%", "//", "cdiv")


@dataclass(frozen=True)
class Index:
    """The value of a domain index."""

    name: str

    def value_in(self, scope: Scope) -> int:
        return scope.indices[self.name]

    def exists_in(self, scope: Scope) -> bool:
        return True


@dataclass(frozen=True)
class Extent:
    """A run-time extent of the executing rank, or ``rank`` or ``ranks``."""

    name: str

    def value_in(self, scope: Scope) -> int:
        return scope.extents[self.name]

    def exists_in(self, scope: Scope) -> bool:
        return True


@dataclass(frozen=True)
class Load:
    """An element of an input tensor; one of -1 in a route drops every point that depends on it."""

    input: str
    at: tuple[Scalar, ...]

    def value_in(self, scope: Scope) -> int:
        return int(scope.inputs[self.input][tuple([evaluate(each, scope) for each in self.at])])

    def exists_in(self, scope: Scope) -> bool:
        return all(_exists(each, scope) for each in self.at)


@dataclass(frozen=True)
class BinaryOp:
    """Integer arithmetic; ``/`` floors, ``%`` is its remainder, and ``cdiv`` rounds up.

    In an extent ``/`` has to come out even, and ``//`` floors.
    """

    op: Operator
    lhs: Scalar
    rhs: Scalar

    def value_in(self, scope: Scope) -> int:
        return OPERATORS[self.op](evaluate(self.lhs, scope), evaluate(self.rhs, scope))

    def exists_in(self, scope: Scope) -> bool:
        return _exists(self.lhs, scope) and _exists(self.rhs, scope)


@dataclass(frozen=True)
class Inside:
    """A value of an input, as a place below ``limit``.

    -1 drops the point; any other value outside of [0, limit) is an error.
    """

    value: Scalar
    limit: Scalar

    def value_in(self, scope: Scope) -> int:
        return evaluate(self.value, scope)

    def exists_in(self, scope: Scope) -> bool:
        if not (_exists(self.value, scope) and _exists(self.limit, scope)):
            return False
        return 0 <= evaluate(self.value, scope) < evaluate(self.limit, scope)


Scalar: TypeAlias = int | Index | Extent | Load | BinaryOp | Inside


def cdiv(lhs: int, rhs: int) -> int:
    """The quotient, rounded up."""
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
    "cdiv": cdiv,
}


def builtin_extents(rank: int, num_ranks: int) -> dict[str, int]:
    """Extents that every scalar may use and that nobody passes: those of the executing rank."""
    return {"rank": rank, "ranks": num_ranks}


@dataclass(frozen=True)
class Scope:
    """What names mean. ``inputs`` hold tensors or arrays, indexed with a tuple of integers."""

    extents: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    indices: Mapping[str, int] = field(default_factory=dict)

    def at(self, indices: Mapping[str, int]) -> Scope:
        """The same scope at these domain indices."""
        return Scope(self.extents, self.inputs, indices)


def parse(value: Any) -> Scalar:
    """Read the JSON of a scalar; ``ValueError`` says what is wrong with it."""
    match value:
        case int() if not isinstance(value, bool):
            return value
        case {"index": str(name), **rest} if not rest:
            return Index(name)
        case {"extent": str(name), **rest} if not rest:
            return Extent(name)
        case {"load": str(name), "at": list(at), **rest} if not rest:
            return Load(name, tuple(parse(position) for position in at))
        case {"op": op, "args": [lhs, rhs], **rest} if not rest and op in get_args(Operator):
            return BinaryOp(op, parse(lhs), parse(rhs))
        case {"inside": inner, "limit": limit, **rest} if not rest:
            return Inside(parse(inner), parse(limit))
    raise ValueError(f"{value!r} is not a scalar expression")


def evaluate(scalar: Scalar, scope: Scope) -> int:
    """The value of ``scalar``; a missing name is a ``KeyError``, a bad index an ``IndexError``."""
    return scalar if isinstance(scalar, int) else scalar.value_in(scope)


def is_dropped(by: Iterable[Scalar], scope: Scope) -> bool:
    """Whether any of ``by`` is -1; what is looked up at a place that does not exist is nothing."""
    return any(_exists(scalar, scope) and evaluate(scalar, scope) == -1 for scalar in by)


def _exists(scalar: Scalar, scope: Scope) -> bool:
    """Whether all places exist that ``scalar`` is looked up by, inner ones first."""
    return isinstance(scalar, int) or scalar.exists_in(scope)


def subexpressions(scalar: Scalar) -> Iterator[Scalar]:
    """``scalar`` and everything inside it, outermost first, left to right."""
    yield scalar
    match scalar:
        case Load(_, at):
            for position in at:
                yield from subexpressions(position)
        case BinaryOp(_, lhs, rhs):
            yield from subexpressions(lhs)
            yield from subexpressions(rhs)
        case Inside(value, limit):
            yield from subexpressions(value)
            yield from subexpressions(limit)


def render(scalar: Scalar, indices: Mapping[str, int] | None = None) -> str:
    """The expression as text, for messages; ``indices`` replaces indices by their values."""
    if isinstance(scalar, Inside):
        return render(scalar.value, indices)
    if isinstance(scalar, BinaryOp) and not scalar.op.isalpha():
        return f"{_operand(scalar.lhs, indices)} {scalar.op} {_operand(scalar.rhs, indices)}"
    return _operand(scalar, indices)


def render_product(factors: Sequence[Scalar]) -> str:
    """The product of several expressions as text, for messages."""
    if len(factors) == 1:
        return render(factors[0])
    return " * ".join(_operand(factor, None) for factor in factors)


def _operand(scalar: Scalar, indices: Mapping[str, int] | None) -> str:
    match scalar:
        case int():
            return str(scalar)
        case Index(name):
            return name if indices is None else str(indices[name])
        case Extent(name):
            return name
        case Load(name, at):
            return f"{name}[{', '.join(render(position, indices) for position in at)}]"
        case BinaryOp(op, lhs, rhs) if op.isalpha():
            return f"{op}({render(lhs, indices)}, {render(rhs, indices)})"
        case BinaryOp():
            return f"({render(scalar, indices)})"
        case Inside(value):
            return _operand(value, indices)
