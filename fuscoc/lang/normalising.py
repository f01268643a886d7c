"""``cast((x / 255 - mean) / std)``: what a cast computes of a field, channel by channel.

Whatever adds, subtracts, multiplies and divides by numbers is ``x * slope + offset``, and so
``(x - shift) * factor``. Both numbers are computed exactly and rounded once, to f32.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import starmap
from operator import add, mul, sub

from fuscoc.lang import ast
from fuscoc.lang.checked import Const, Normalise
from fuscoc.lang.context import NUMBER
from fuscoc.lang.fold import fold
from fuscoc.lang.scope import Scope
from fuscoc.source import Span

MAX_CHANNELS = 16
"""Kernels choose among so many numbers, which are part of their text."""
LEAST_EXPONENT, MOST_EXPONENT, MANTISSA = -126, 127, 24
"""Of normal numbers in f32."""

Numbers = tuple[Fraction, ...]
"""One for all channels, or one for each."""


@dataclass(frozen=True)
class Line:
    """``x * slope + offset`` of a field ``x``; without a field the slope is nothing but 0."""

    slope: Numbers
    offset: Numbers

    @property
    def is_number(self) -> bool:
        return not any(self.slope)

    @property
    def num_channels(self) -> int:
        return max(len(self.slope), len(self.offset))


NONE, ONE = (Fraction(0),), (Fraction(1),)


def line(expr: ast.Expr, fields: Collection[str], scope: Scope) -> Line | None:
    """What an expression makes of the one of ``fields`` in it; None, with a report, if that is
    no line."""
    match expr:
        case ast.Number(value=value):
            return Line(NONE, (Fraction(value),))
        case ast.Decimal(value=value):
            return Line(NONE, (value,))
        case ast.Values():
            return _listed(expr, scope)
        case ast.Name(name=name) if name in fields:
            return Line(ONE, NONE)
        case ast.Name(name=name) if name in scope.lists:
            scope.used.add(name)
            return Line(NONE, scope.lists[name])
        case ast.Binary(op=op, lhs=lhs, rhs=rhs) if op != "%":
            left, right = (line(each, fields, scope) for each in (lhs, rhs))
            if left is None or right is None:
                return None
            return _operation(op, left, right, expr, scope)
        case ast.Binary() | ast.Call() | ast.Member():
            what = "`%`" if isinstance(expr, ast.Binary) else "a call"
            _refuse(expr.span, f"{what} in what a cast computes", scope)
            return None
    known = fold(expr, NUMBER, scope)
    return Line(NONE, (Fraction(known.value),)) if isinstance(known, Const) else None


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
    channels = found.num_channels
    last = shape[-1] if shape else 1
    if channels not in (1, last):
        scope.sink.report(
            "FSC058",
            span,
            f"this has {channels} numbers, and the last dimension of the field is {last}",
            notes=["a list has a number for each element of the last dimension, or one for all"],
        )
        return None
    if channels > MAX_CHANNELS:
        _refuse(span, f"numbers for {channels} channels, more than {MAX_CHANNELS}", scope)
        return None
    slopes, offsets = (each * (channels // len(each)) for each in (found.slope, found.offset))
    if not all(slopes):
        problem = "a channel is multiplied by 0, so nothing of the field arrives there"
        scope.sink.report("FSC058", span, problem)
        return None
    shifts = [-offset / slope for slope, offset in zip(slopes, offsets, strict=True)]
    made = list[tuple[float, ...]]()
    for numbers in (shifts, slopes):
        rounded = [number for each in numbers if (number := rounded_f32(each)) is not None]
        if len(rounded) < channels:
            problem = "what is subtracted, or what it is multiplied by, is out of the range of f32"
            scope.sink.report("FSC058", span, problem)
            return None
        made.append(tuple(rounded))
    is_one = all(len(set(numbers)) == 1 for numbers in made)
    return Normalise(*(numbers[:1] if is_one else numbers for numbers in made))


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


def _listed(values: ast.Values, scope: Scope) -> Line | None:
    """A list of numbers, none of which is one itself."""
    numbers: list[Fraction] = []
    for item in values.items:
        found = line(item, (), scope)
        if found is None:
            return None
        if len(found.offset) > 1 or isinstance(item, ast.Values):
            scope.sink.report(
                "FSC026",
                item.span,
                f"`{scope.text(item.span)}` is a list of numbers",
                "a single number is needed here",
            )
            return None
        numbers += found.offset
    return Line(NONE, tuple(numbers))


def _operation(op: str, left: Line, right: Line, expr: ast.Binary, scope: Scope) -> Line | None:
    if op in ("+", "-"):
        does = add if op == "+" else sub
        parts = [
            _each(does, one, other, expr, scope)
            for one, other in ((left.slope, right.slope), (left.offset, right.offset))
        ]
        slope, offset = parts
        return None if slope is None or offset is None else Line(slope, offset)
    if op == "*" and left.is_number:
        left, right = right, left
    if not right.is_number:
        problem = "a field is divided by here" if op == "/" else "two fields are multiplied here"
        scope.sink.report(
            "FSC058",
            expr.span,
            problem,
            "a cast adds, subtracts, multiplies and divides by numbers",
        )
        return None
    factors = right.offset
    if op == "/":
        if not all(factors):
            scope.sink.report("FSC022", expr.rhs.span, "division by zero")
            return None
        factors = tuple(1 / each for each in factors)
    slope, offset = (_each(mul, part, factors, expr, scope) for part in (left.slope, left.offset))
    return None if slope is None or offset is None else Line(slope, offset)


def _each(
    does: Callable[[Fraction, Fraction], Fraction],
    left: Numbers,
    right: Numbers,
    expr: ast.Binary,
    scope: Scope,
) -> Numbers | None:
    """An operation channel by channel; a single number is that of all."""
    most = max(len(left), len(right))
    if {len(left), len(right)} - {1, most}:
        counts = f"{len(left)} numbers on the left, and {len(right)} on the right"
        scope.sink.report("FSC058", expr.span, f"{counts}: they are of different channels")
        return None
    pairs = zip(*(each * (most // len(each)) for each in (left, right)), strict=True)
    return tuple(starmap(does, pairs))


def _refuse(span: Span, what: str, scope: Scope) -> None:
    scope.sink.report(
        "FSC061",
        span,
        f"not yet supported: {what}",
        notes=["a cast adds, subtracts, multiplies and divides by numbers"],
    )
