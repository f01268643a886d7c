"""A relation as boxes: what indices that no input decides add to a point's place, as strides.

Outer indices are those that inputs are looked up by; all else is a sum of strides, one for each
inner index, once indices are split where they are divided: of ``h / X`` and ``h % X`` become two
variables, and of a range that does not begin or end at a multiple of ``X`` up to three boxes. So
"mixed-radix" layouts are affine, whatever the extents are, symbolic ones included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from fuscoc.dialect.expressions import Expression, Node, arguments, nodes
from fuscoc.dialect.polynomials import (
    Polynomial,
    Value,
    Variable,
    floordiv,
    least,
    most,
)

MAX_BOXES = 12
MAX_SPLITS = 32  # of a relation: one that does not help could be tried again for ever
MAX_TERMS = 64  # of a polynomial, so that products of long sums cost no time
ZERO, ONE = Polynomial(()), Polynomial.constant(1)
ARITHMETIC = ("arith.addi", "arith.subi", "arith.muli")
QUOTIENTS = ("arith.divsi", "arith.floordivsi", "fsc.exact_div")
BOUNDS = {"arith.minsi": least, "arith.maxsi": most}
OPERATIONS = (*ARITHMETIC, *QUOTIENTS, *BOUNDS, "arith.remsi")
GIVEN = ("fsc.extent", "fsc.lookup")


class NotAffine(Exception):
    """A relation that is no sum of strides."""


@dataclass(frozen=True)
class Range:
    """``variable`` counts through ``count`` numbers from ``begin`` on, all below ``end``."""

    variable: Variable
    begin: Polynomial
    count: Polynomial
    end: Polynomial


@dataclass(frozen=True)
class Box:
    """Some points: those of all numbers of ``ranges``, which say what each index is there."""

    ranges: tuple[Range, ...]
    indices: Mapping[int, Polynomial]

    def range_of(self, variable: Variable) -> Range:
        return next(each for each in self.ranges if each.variable == variable)


@dataclass(eq=False)
class Split(Exception):
    """``offset`` + ``variable`` is divided by ``divisor``."""

    variable: Variable
    divisor: Polynomial
    offset: Polynomial


@dataclass
class Relation:
    """Trees of a relation as polynomials.

    ``extents`` are those of its indices, whose divisions are exact; ``outer`` are indices that stay
    as they are.

    Raises:
        NotAffine: what divides an extent is no polynomial, or one too long.
    """

    extents: Sequence[Expression]
    outer: frozenset[int]
    facts: dict[Expression, Polynomial] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._sizes = {node for each in self.extents for node in nodes(each)}
        self._numbered = count()
        for node in [node for each in self.extents for node in nodes(each)]:
            match node:
                case Node(op, _, (Node(given) as lhs, rhs)) if (
                    op in QUOTIENTS and given in GIVEN and lhs not in self.facts
                ):
                    divisor = self.polynomial(rhs, {})
                    self.facts[lhs] = divisor * Polynomial.atom(self._value(node))

    def whole(self) -> Box:
        """All points of an entry of the outer indices.

        Raises:
            NotAffine: an extent depends on an inner index.
        """
        ranges, indices = [], {}
        for index, extent in enumerate(self.extents):
            if index not in self.outer:
                size = self.polynomial(extent, {})
                indices[index], made = self._numbers(ZERO, size, size)
                ranges += made
        return Box(tuple(ranges), indices)

    def boxes(self, trees: Sequence[Expression]) -> list[tuple[Box, list[Polynomial]]]:
        """All points in boxes in which every tree is affine, with what the trees are there.

        Raises:
            NotAffine: there are none, or more than ``MAX_BOXES``.
        """
        pending, done = [self.whole()], list[tuple[Box, list[Polynomial]]]()
        for _ in range(MAX_BOXES + MAX_SPLITS):
            if not pending:
                return done
            box = pending.pop(0)
            try:
                done.append((box, [self.polynomial(tree, box.indices, box) for tree in trees]))
            except Split as split:
                pending = [*self._parts(box, split), *pending]
            if len(done) + len(pending) > MAX_BOXES:
                break
        raise NotAffine

    def polynomial(
        self, tree: Expression, indices: Mapping[int, Polynomial], box: Box | None = None
    ) -> Polynomial:
        """A tree as a polynomial that is affine in the variables of a box."""
        if isinstance(tree, int):
            return Polynomial.constant(tree)
        if tree in self.facts:
            return self.facts[tree]
        if tree.op == "argument" and int(tree.symbol) in indices:
            return indices[int(tree.symbol)]
        if tree.op in OPERATIONS:
            lhs, rhs = (self.polynomial(each, indices, box) for each in tree.operands)
            made = self._operation(tree.op, lhs, rhs, box)
            if not made.is_affine or len(made.terms) > MAX_TERMS:
                raise NotAffine
            return made
        if not arguments(tree) <= self.outer:
            raise NotAffine
        return Polynomial.atom(self._value(tree))

    def _operation(self, op: str, lhs: Polynomial, rhs: Polynomial, box: Box | None) -> Polynomial:
        match op:
            case "arith.addi":
                return lhs + rhs
            case "arith.subi":
                return lhs - rhs
            case "arith.muli":
                return lhs * rhs
        if op in BOUNDS:
            bound = BOUNDS[op](lhs, rhs)
            if bound not in (lhs, rhs) and (lhs.variables or rhs.variables):
                raise NotAffine
            return bound
        if rhs.variables:
            raise NotAffine
        quotient = self._quotient(lhs, rhs, box)
        return lhs - quotient * rhs if op == "arith.remsi" else quotient

    def _quotient(self, value: Polynomial, divisor: Polynomial, box: Box | None) -> Polynomial:
        quotient, rest = value.split(divisor)
        if not rest.variables:
            return quotient + floordiv(rest, divisor)
        assert box is not None, "extents have no variables"
        if self._is_below(rest, divisor, box):
            return quotient
        for variable in sorted(rest.variables, key=lambda each: each.number):
            factor = rest.factor_of(variable)
            part = divisor.quotient(factor)
            if part is None:
                continue
            offset, low = rest.without_variables.split(factor)
            low += rest - rest.without_variables - factor * Polynomial.atom(variable)
            if self._is_below(low, factor, box):
                raise Split(variable, part, offset)
        raise NotAffine

    def _is_below(self, value: Polynomial, end: Polynomial, box: Box) -> bool:
        """Whether a value is seen to be at least 0 and below ``end``, which divides something."""
        if value.known == 0:
            return end.is_natural
        factors = {each: value.factor_of(each) for each in value.variables}
        for factor in factors.values():
            part, whole = value.quotient(factor), end.quotient(factor)
            if factor.known is None and part is not None and whole is not None:
                return factor.is_natural and self._is_below(part, whole, box)
        rest = value.without_variables
        if not rest.is_natural or not all(each.is_natural for each in factors.values()):
            return False
        highest = rest
        for variable, factor in factors.items():
            highest += factor * (box.range_of(variable).end - ONE)
        return (end - ONE - highest).is_natural

    def _parts(self, box: Box, split: Split) -> Iterator[Box]:
        """A box in up to three, where a variable is a multiple of the divisor and a rest.

        Numbers from the offset's first multiple of the divisor on: ``at``, then rows of all rests.
        """
        old, divisor = box.range_of(split.variable), split.divisor
        offset = split.offset + old.begin
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
            row, rows = self._numbers(row, num, num_rows)
            rest, rests = self._numbers(rest, length, divisor)
            value = divisor * row + rest - at + old.begin
            indices = {
                index: each + each.factor_of(old.variable) * (value - Polynomial.atom(old.variable))
                for index, each in box.indices.items()
            }
            kept = [each for each in box.ranges if each != old]
            yield replace(box, ranges=(*kept, *rows, *rests), indices=indices)

    def _numbers(
        self, begin: Polynomial, length: Polynomial, end: Polynomial
    ) -> tuple[Polynomial, list[Range]]:
        """``length`` numbers from ``begin`` on, below ``end``; nothing counts through one."""
        if length.known == 1:
            return begin, []
        made = Range(Variable(next(self._numbered)), begin, length, end)
        return Polynomial.atom(made.variable), [made]

    def _value(self, tree: Node) -> Value:
        return Value(tree, self._is_natural(tree))

    def _is_natural(self, tree: Expression) -> bool:
        if isinstance(tree, int):
            return tree >= 0
        match tree.op:
            case "argument" | "fsc.extent" | "fsc.inside" | "fsc.cell_base":
                return True
            case "fsc.lookup":
                return tree in self._sizes
            case "arith.addi" | "arith.muli" | "arith.divsi" | "arith.remsi" | "fsc.exact_div":
                return all(map(self._is_natural, tree.operands))
            case "arith.minsi":
                return all(map(self._is_natural, tree.operands))
            case "arith.maxsi":
                return any(map(self._is_natural, tree.operands))
        return False


def nested(steps: Sequence[tuple[Polynomial, Polynomial]], length: Polynomial) -> Polynomial | None:
    """The length of what ``steps``, counts with strides, repeat: at first something of ``length``.

    None unless each is seen to step over all that is repeated before it, in some order: then
    nothing overlaps.
    """
    if not steps:
        return length
    for at, (times, stride) in enumerate(steps):
        if (stride - length).is_natural:
            found = nested([*steps[:at], *steps[at + 1 :]], stride * times)
            if found is not None:
                return found
    return None
