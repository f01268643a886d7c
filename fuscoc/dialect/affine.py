"""A relation as boxes: what indices that no input decides add to a point's place, as strides.

Outer indices are those that inputs are looked up by; all else is a sum of strides, one for each
inner index, once indices are split where they are divided: of ``h / X`` and ``h % X`` become two
variables, and of a range that does not begin or end at a multiple of ``X`` up to three boxes. Where
``min(h, X)`` or ``max(h, X)`` turns, a range is cut. So "mixed-radix" layouts are affine, whatever
the extents are, symbolic ones included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fuscoc.dialect.boxes import ONE, WAYS_APART, ZERO, Box, Cut, Numbers, Split
from fuscoc.dialect.expressions import Expression, Node, arguments, nodes
from fuscoc.dialect.polynomials import Polynomial, Value, floordiv, least, most

MAX_BOXES = 12
MAX_SPLITS = 32  # of a relation: one that does not help could be tried again for ever
MAX_TERMS = 64  # of a polynomial, so that products of long sums cost no time
ARITHMETIC = ("arith.addi", "arith.subi", "arith.muli")
QUOTIENTS = ("arith.divsi", "arith.floordivsi", "fsc.exact_div")
BOUNDS = {"arith.minsi": least, "arith.maxsi": most}
OPERATIONS = (*ARITHMETIC, *QUOTIENTS, *BOUNDS, "arith.remsi")
GIVEN = ("fsc.extent", "fsc.lookup")
RANKS = Value(Node("fsc.extent", "@spec.ranks", ()), natural=True)


class NotAffine(Exception):
    """A relation that is no sum of strides."""


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
        self._numbers = Numbers()
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
                indices[index], made = self._numbers.through(ZERO, size, size)
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
            except WAYS_APART as apart:
                pending = [*apart.parts(box, self._numbers), *pending]
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
            return self._bound(op, lhs, rhs, box)
        if rhs.variables:
            raise NotAffine
        quotient = self._quotient(lhs, rhs, box)
        return lhs - quotient * rhs if op == "arith.remsi" else quotient

    def _quotient(self, value: Polynomial, divisor: Polynomial, box: Box | None) -> Polynomial:
        quotient, rest = value.split(divisor)
        if not rest.variables:
            return quotient + floordiv(rest, divisor)
        assert box is not None, "extents have no variables"
        if box.is_below(rest, divisor):
            return quotient
        variables = sorted(rest.variables, key=lambda each: each.number)
        for variable in variables:  # h / (X * Y) is h / X / Y, and that may be known
            unit = rest.factor_of(variable) * box.range_of(variable).end
            part = divisor.quotient(unit)
            whole, low = rest.split(unit)
            if part not in (None, divisor) and box.is_below(low, unit):
                return quotient + self._quotient(whole, part, box)
        for variable in variables:
            factor = rest.factor_of(variable)
            part = divisor.quotient(factor)
            if part is None:
                continue
            offset, low = rest.without_variables.split(factor)
            low += rest - rest.without_variables - factor * Polynomial.atom(variable)
            if box.is_below(low, factor):
                raise Split(variable, part, offset)
        raise NotAffine

    def _bound(self, op: str, lhs: Polynomial, rhs: Polynomial, box: Box | None) -> Polynomial:
        bound, gap = BOUNDS[op](lhs, rhs), lhs - rhs
        if bound in (lhs, rhs) or not (lhs.variables or rhs.variables):
            return bound
        if not gap.variables:
            return rhs + BOUNDS[op](gap, ZERO)
        assert box is not None, "extents have no variables"
        if box.is_natural(gap):
            return rhs if op == "arith.minsi" else lhs
        if box.is_natural(ZERO - gap):
            return lhs if op == "arith.minsi" else rhs
        for value in (gap, ZERO - gap):
            for variable in sorted(gap.variables, key=lambda each: each.number):
                step, rest = value.factor_of(variable), value.without_variables
                low = value - rest - step * Polynomial.atom(variable)
                if _is_positive(step) and box.is_below(low, step):
                    raise Cut(variable, step, low, rest)
        raise NotAffine

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


def _is_positive(value: Polynomial) -> bool:
    """Whether a value is seen to be 1 at least, as numbers of ranks are."""
    if (value - ONE).is_natural:
        return True
    of_ranks = [all(atom == RANKS for atom in product) for product, _ in value.terms]
    return value.is_natural and any(of_ranks)


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
