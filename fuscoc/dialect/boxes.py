"""Boxes of a relation's points, and how one is taken apart until what is asked of it is affine.

A range is split where it is divided, into rows and what is left of one, and cut where one of two
values that are compared overtakes the other. Counts are right whatever the extents are: a part that
is not there has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

from fuscoc.dialect.polynomials import Polynomial, Variable, floordiv, least, most

ZERO, ONE = Polynomial(()), Polynomial.constant(1)


@dataclass(frozen=True)
class Range:
    """``variable`` counts through ``count`` numbers from ``begin`` on, all below ``end``."""

    variable: Variable
    begin: Polynomial
    count: Polynomial
    end: Polynomial

    @property
    def is_empty(self) -> bool:
        """Whether it is seen to have no numbers."""
        return self.count.known is not None and self.count.known < 1

    def cut(self, at: Polynomial) -> tuple[Range, Range]:
        """Its numbers below ``at``, and all others."""
        below = least(most(at - self.begin, ZERO), self.count)
        above = replace(self, begin=self.begin + below, count=self.count - below)
        return replace(self, count=below), above


class Numbers:
    """Makes variables, from some number on."""

    def __init__(self, first: int = 0) -> None:
        self._numbered = count(first)

    def through(
        self, begin: Polynomial, length: Polynomial, end: Polynomial
    ) -> tuple[Polynomial, list[Range]]:
        """``length`` numbers from ``begin`` on, below ``end``; nothing counts through one."""
        if length.known == 1:
            return begin, []
        made = Range(Variable(next(self._numbered)), begin, length, end)
        return Polynomial.atom(made.variable), [made]


@dataclass(frozen=True)
class Box:
    """Some points: those of all numbers of ``ranges``, which say what each index is there.

    ``natural`` is never negative for any of them.
    """

    ranges: tuple[Range, ...]
    indices: Mapping[int, Polynomial]
    natural: tuple[Polynomial, ...] = ()

    def range_of(self, variable: Variable) -> Range:
        return next(each for each in self.ranges if each.variable == variable)

    def is_natural(self, value: Polynomial) -> bool:
        """Whether a value is seen to be never negative."""
        lowest = value
        for variable in value.variables:
            factor = value.factor_of(variable)
            if (ZERO - factor).is_natural:
                highest = self.range_of(variable).end - ONE
                lowest += factor * (highest - Polynomial.atom(variable))
        return lowest.is_natural or any((value - each).is_natural for each in self.natural)

    def is_below(self, value: Polynomial, end: Polynomial) -> bool:
        """Whether a value is seen to be at least 0 and below ``end``, which divides something."""
        if value.known == 0:
            return end.is_natural
        factors = {each: value.factor_of(each) for each in value.variables}
        for factor in factors.values():
            part, whole = value.quotient(factor), end.quotient(factor)
            if factor.known is None and part is not None and whole is not None:
                return factor.is_natural and self.is_below(part, whole)
        rest = value.without_variables
        if not rest.is_natural or not all(each.is_natural for each in factors.values()):
            return False
        highest = rest
        for variable, factor in factors.items():
            highest += factor * (self.range_of(variable).end - ONE)
        return (end - ONE - highest).is_natural

    def narrowed(self, *ranges: Range) -> Box:
        """The same with some ranges instead of those of their variables."""
        of = {each.variable: each for each in ranges}
        return replace(self, ranges=tuple(of.get(each.variable, each) for each in self.ranges))

    def where(self, variable: Variable, value: Polynomial) -> Box:
        """The same where a variable is some value, though a range may still count through it."""
        more = value - Polynomial.atom(variable)

        def there(each: Polynomial) -> Polynomial:
            return each + each.factor_of(variable) * more

        indices = {at: there(each) for at, each in self.indices.items()}
        return replace(self, indices=indices, natural=tuple(map(there, self.natural)))


@dataclass(eq=False)
class Split(Exception):
    """``offset`` + ``variable`` is divided by ``divisor``."""

    variable: Variable
    divisor: Polynomial
    offset: Polynomial

    def parts(self, box: Box, numbers: Numbers) -> Iterator[Box]:
        """Up to three, where the variable is a multiple of the divisor and a rest.

        Numbers from the offset's first multiple of the divisor on: ``at``, then rows of all rests.
        """
        old, divisor = box.range_of(self.variable), self.divisor
        offset = self.offset + old.begin
        at = offset - divisor * floordiv(offset, divisor)
        num_rows = floordiv(at + old.count, divisor)
        first = least(at, ONE)  # the first whole row
        parts = [(ZERO, ONE, at, first * least(divisor - at, old.count))]
        parts.append((first, most(num_rows - first, ZERO), ZERO, divisor))
        left = at + old.count - divisor * num_rows
        if at.known != 0:
            left *= least(ONE, num_rows - first + ONE)
        parts.append((num_rows, ONE, ZERO, left))
        for row, num, rest, length in parts:
            if any(each.known is not None and each.known < 1 for each in (num, length)):
                continue
            row, rows = numbers.through(row, num, num_rows)
            rest, rests = numbers.through(rest, length, divisor)
            value = divisor * row + rest - at + old.begin
            kept = [each for each in box.ranges if each != old]
            yield replace(box.where(old.variable, value), ranges=(*kept, *rows, *rests))


@dataclass(eq=False)
class Cut(Exception):
    """``step`` * ``variable`` + ``low`` + ``rest`` is compared with 0.

    ``step`` is positive, ``low`` at least 0 and below it, and ``rest`` has no variables.
    """

    variable: Variable
    step: Polynomial
    low: Polynomial
    rest: Polynomial

    def parts(self, box: Box, numbers: Numbers) -> Iterator[Box]:
        """Up to three: those below 0, those of the one number where ``low`` decides, and others."""
        value = self.step * Polynomial.atom(self.variable) + self.low + self.rest
        first = ZERO - floordiv(self.rest, self.step)  # from where on nothing is below 0
        below, above = box.range_of(self.variable).cut(first)
        if self.low.variables:
            below, amid = below.cut(first - ONE)
        made = replace(box.narrowed(below), natural=(*box.natural, ZERO - value - ONE))
        if not below.is_empty:
            yield made
        if self.low.variables and not amid.is_empty:
            yield box.narrowed(amid).where(self.variable, first - ONE)
        if not above.is_empty:
            yield replace(box.narrowed(above), natural=(*box.natural, value))


WAYS_APART = Split, Cut
"""What says that a box has to be taken apart; its ``parts`` have each point of the box once."""
