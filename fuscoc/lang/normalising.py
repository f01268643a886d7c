"""``cast((x / 255 - mean) / std)``: what a cast computes of a field, channel by channel.

Whatever adds, subtracts, multiplies and divides by numbers is ``(x - shift) * factor``. Both are
computed exactly and rounded once, to f32. Numbers that a call gives, ``const mean = input mean :
f32[3]``, leave of that what is to be computed of them, in f64: with every call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import starmap
from operator import add, mul, sub, truediv
from typing import Literal, TypeAlias

from fuscoc.lang import ast
from fuscoc.lang.checked import (
    ComputedNumbers,
    Const,
    ExactNumbers,
    Normalise,
    Numbers,
    count_of,
)
from fuscoc.lang.context import NUMBER
from fuscoc.lang.fold import fold
from fuscoc.lang.scope import Scope
from fuscoc.source import Span

MAX_CHANNELS = 16
"""Kernels choose among so many numbers, which are part of their text."""
LEAST, MOST = Fraction(1, 10**300), Fraction(10**300)
"""Between these f64 has all of its digits."""
LEAST_EXPONENT, MOST_EXPONENT, MANTISSA = -126, 127, 24
"""Of normal numbers in f32."""

ZERO, ONE = (Fraction(0),), (Fraction(1),)
OPERATIONS = {"+": add, "-": sub, "*": mul, "/": truediv}
Op: TypeAlias = Literal["+", "-", "*", "/"]


@dataclass(frozen=True)
class Line:
    """``(x - shift) * factor`` of a field ``x``; no factor that is known is 0."""

    shift: ExactNumbers
    factor: ExactNumbers

    @property
    def count(self) -> int:
        """Of how many channels its numbers are."""
        return max(count_of(self.shift), count_of(self.factor))


def line(expr: ast.Expr, fields: Collection[str], scope: Scope) -> Line | ExactNumbers | None:
    """What an expression makes of the one of ``fields`` in it, or numbers without any; None, with a
    report, if that is neither."""
    match expr:
        case ast.Number(value=value):
            return (Fraction(value),)
        case ast.Decimal(value=value):
            return (value,)
        case ast.Values():
            return _listed(expr, scope)
        case ast.Name(name=name) if name in fields:
            return Line(ZERO, ONE)
        case ast.Name(name=name) if name in scope.lists:
            scope.used.add(name)
            return scope.lists[name]
        case ast.Binary(op=op, lhs=lhs, rhs=rhs) if op != "%":
            left, right = (line(each, fields, scope) for each in (lhs, rhs))
            if left is None or right is None:
                return None
            return _Operation(expr, scope).of(op, left, right)
        case ast.Binary() | ast.Call() | ast.Member():
            what = "`%`" if isinstance(expr, ast.Binary) else "a call"
            _refuse(expr.span, f"{what} in what a cast computes", scope)
            return None
    known = fold(expr, NUMBER, scope)
    return (Fraction(known.value),) if isinstance(known, Const) else None


def leaves(expr: ast.Expr) -> Iterator[ast.Expr]:
    """What operations are on, in the order of the text."""
    if isinstance(expr, ast.Binary):
        yield from leaves(expr.lhs)
        yield from leaves(expr.rhs)
    else:
        yield expr


def is_real(expr: ast.Expr, scope: Scope) -> bool:
    """Whether an expression is of numbers that need not be whole."""
    return any(
        isinstance(each, ast.Decimal | ast.Values)
        or (isinstance(each, ast.Name) and each.name in scope.lists)
        for each in leaves(expr)
    )


def normalise(found: Line, shape: tuple[int, ...], span: Span, scope: Scope) -> Normalise | None:
    """A line as what kernels compute, of a field of a segment of this shape."""
    parts = found.shift, found.factor
    channels = found.count
    last = shape[-1] if shape else 1
    if channels not in (1, last):
        scope.sink.report(
            "FSC058",
            span,
            f"this has {channels} numbers, and the last dimension of the field is {last}",
            notes=["a list has a number for each element of the last dimension, or one for all"],
        )
        return None
    if not all(isinstance(each, tuple) for each in parts):
        numbers = [_as_f64(each, span, scope) for each in parts]
        shifts, factors = numbers
        return None if shifts is None or factors is None else Normalise(shifts, factors)
    if channels > MAX_CHANNELS:
        _refuse(span, f"numbers for {channels} channels, more than {MAX_CHANNELS}", scope)
        return None
    made = list[tuple[float, ...]]()
    for values in parts:
        assert isinstance(values, tuple)
        rounded = [number for each in values if (number := rounded_f32(each)) is not None]
        if len(rounded) < len(values):
            _out_of_range(span, "f32", scope)
            return None
        made.append(tuple(rounded * (channels // len(values))))
    is_one = all(len(set(numbers)) == 1 for numbers in made)
    return Normalise(*(numbers[:1] if is_one else numbers for numbers in made))


def _as_f64(values: ExactNumbers, span: Span, scope: Scope) -> Numbers | None:
    """ExactNumbers as they are where a call computes with them."""
    if not isinstance(values, tuple):
        return values
    if all(not each or LEAST <= abs(each) <= MOST for each in values):
        return tuple(map(float, values))
    _out_of_range(span, "f64", scope)
    return None


def _out_of_range(span: Span, dtype: str, scope: Scope) -> None:
    problem = f"what is subtracted, or what it is multiplied by, is out of the range of {dtype}"
    scope.sink.report("FSC058", span, problem)


def rounded_f32(value: Fraction) -> float | None:
    """The number of f32 that is nearest, ties to even; None where that is no normal number."""
    if not value:
        return 0.0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** (exponent - MANTISSA + 1)
    nearest = round(value / unit) * unit
    is_normal = Fraction(2) ** LEAST_EXPONENT <= abs(nearest) < Fraction(2) ** (MOST_EXPONENT + 1)
    return float(nearest) if is_normal else None


def _listed(values: ast.Values, scope: Scope) -> tuple[Fraction, ...] | None:
    """A list of numbers, none of which is one itself."""
    numbers: list[Fraction] = []
    for item in values.items:
        found = line(item, (), scope)
        if found is None:
            return None
        if not isinstance(found, tuple) or len(found) > 1 or isinstance(item, ast.Values):
            is_list = isinstance(found, tuple)
            what = "a list of numbers" if is_list else "known to a call alone"
            scope.sink.report(
                "FSC026",
                item.span,
                f"`{scope.text(item.span)}` is {what}",
                "a single number is needed here",
            )
            return None
        numbers += found
    return tuple(numbers)


@dataclass(frozen=True)
class _Operation:
    """What an operation makes of lines and numbers; None, with a report, if that is neither."""

    expr: ast.Binary
    scope: Scope

    def of(
        self, op: Op, left: Line | ExactNumbers, right: Line | ExactNumbers
    ) -> Line | ExactNumbers | None:
        match left, right:
            case Line(), Line():
                return self.both(op, left, right)
            case Line(), _:
                assert not isinstance(right, Line)
                return self.of_line(op, left, right)
            case _, Line():
                assert not isinstance(left, Line)
                if op == "/":
                    self.refuse("a field is divided by here")
                    return None
                if op == "-":  # -(x - left)
                    turned = self.of_line("*", right, (Fraction(-1),))
                    return turned and self.of_line("+", turned, left)
                return self.of_line(op, right, left)
        assert not isinstance(left, Line)
        assert not isinstance(right, Line)
        return self.each(op, left, right)

    def of_line(self, op: Op, found: Line, by: ExactNumbers) -> Line | None:
        """A line of which a number is added, subtracted, or by which it is multiplied."""
        if not self.alike(found.count, count_of(by)):
            return None
        if op in ("*", "/"):
            factor = self.each(op, found.factor, by)
            is_left = factor is not None and (op == "/" or self.leaves(by))
            return Line(found.shift, factor) if factor is not None and is_left else None
        moved = self.each("/", by, found.factor)
        turned: Op = "-" if op == "+" else "+"
        shift = None if moved is None else self.each(turned, found.shift, moved)
        return None if shift is None else Line(shift, found.factor)

    def both(self, op: Op, left: Line, right: Line) -> Line | None:
        """A sum or a difference of lines of one field."""
        if op in ("*", "/"):
            multiplied = "two fields are multiplied here"
            self.refuse(multiplied if op == "*" else "a field is divided by here")
            return None
        if not self.alike(left.count, right.count):
            return None
        factor = self.each(op, left.factor, right.factor)
        if factor is None or not self.leaves(factor):
            return None
        ends = [self.each("*", line.shift, line.factor) for line in (left, right)]
        begin, end = ends
        moved = None if begin is None or end is None else self.each(op, begin, end)
        shift = None if moved is None else self.each("/", moved, factor)
        return None if shift is None else Line(shift, factor)

    def leaves(self, factor: ExactNumbers) -> bool:
        """Whether something of the field is left in every channel, as far as is known."""
        if not isinstance(factor, tuple) or all(factor):
            return True
        problem = "a channel is multiplied by 0, so nothing of the field arrives there"
        self.scope.sink.report("FSC058", self.expr.span, problem)
        return False

    def each(self, op: Op, left: ExactNumbers, right: ExactNumbers) -> ExactNumbers | None:
        """An operation channel by channel; a single number is that of all."""
        counts = count_of(left), count_of(right)
        if not self.alike(*counts):
            return None
        if isinstance(right, tuple) and op == "/":
            if not all(right):
                self.scope.sink.report("FSC022", self.expr.rhs.span, "division by zero")
                return None
            op, right = "*", tuple(1 / each for each in right)
        if isinstance(left, tuple) and isinstance(right, tuple):
            most = max(counts)
            pairs = zip(*(each * (most // len(each)) for each in (left, right)), strict=True)
            return tuple(starmap(OPERATIONS[op], pairs))
        if right == (ZERO if op in ("+", "-") else ONE) or (left == ZERO and op in ("*", "/")):
            return left
        if left == (ZERO if op == "+" else ONE if op == "*" else None):
            return right
        numbers = [_as_f64(each, self.expr.span, self.scope) for each in (left, right)]
        lhs, rhs = numbers
        return None if lhs is None or rhs is None else ComputedNumbers(op, lhs, rhs)

    def alike(self, left: int, right: int) -> bool:
        """Whether so many numbers are of the same channels."""
        if left == right or 1 in (left, right):
            return True
        told = f"{left} numbers on the left, and {right} on the right"
        problem = f"{told}: they are of different channels"
        self.scope.sink.report("FSC058", self.expr.span, problem)
        return False

    def refuse(self, problem: str) -> None:
        why = "a cast adds, subtracts, multiplies and divides by numbers"
        self.scope.sink.report("FSC058", self.expr.span, problem, why)


def _refuse(span: Span, what: str, scope: Scope) -> None:
    scope.sink.report(
        "FSC061",
        span,
        f"not yet supported: {what}",
        notes=["a cast adds, subtracts, multiplies and divides by numbers"],
    )
