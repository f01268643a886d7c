"""Boxes that are taken apart against the points that they stand for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuscoc.dialect.affine import Relation
from fuscoc.dialect.boxes import ONE, ZERO, Box, Cut, Numbers, Range, Split
from fuscoc.dialect.expressions import Node
from fuscoc.dialect.polynomials import Polynomial, Variable, floordiv, least, most
from tests.dialect.test_polynomials import ANY, NATURAL, value
from tests.dialect.test_polynomials import Numbers as Given

constants = st.integers(-20, 20).map(Polynomial.constant)
naturals = st.recursive(
    st.integers(0, 9).map(Polynomial.constant) | st.sampled_from(NATURAL).map(Polynomial.atom),
    lambda inner: (
        st.builds(lambda lhs, rhs: lhs + rhs, inner, inner)
        | st.builds(least, inner, inner)
        | st.builds(lambda lhs, rhs: floordiv(lhs, rhs + ONE), inner, inner)
        | st.builds(lambda lhs, rhs: most(lhs - rhs, ZERO), inner, inner)
    ),
    max_leaves=3,
)
positives = st.integers(1, 5).map(Polynomial.constant) | naturals.map(lambda each: each + ONE)
sums = st.builds(
    lambda lhs, rhs, sign: lhs + rhs * sign,
    constants | st.sampled_from(ANY).map(Polynomial.atom),
    naturals,
    st.sampled_from([-2, -1, 1]),
)
given_numbers = st.fixed_dictionaries(
    {**{each: st.integers(0, 6) for each in NATURAL}, **{each: st.integers(-9, 9) for each in ANY}}
)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Box, Polynomial]:
    """A box of a number and of one below what is given, too."""
    step, begin, count = draw(positives), draw(naturals), draw(naturals)
    ranges = [
        Range(Variable(0), begin, count, begin + count),
        Range(Variable(1), ZERO, step, step),
    ]
    high, low = (Polynomial.atom(each.variable) for each in ranges)
    return Box(tuple(ranges), {0: high, 1: low, 2: high * step + low}, (high, low)), step


@st.composite
def aparts(draw: st.DrawFn) -> tuple[Box, Split | Cut]:
    """A box, and what takes it apart."""
    (box, step), rest = draw(boxes()), draw(sums)
    if draw(st.booleans()):
        return box, Split(Variable(0), draw(positives), rest)
    low = Polynomial.atom(Variable(1)) if draw(st.booleans()) else ZERO
    return box, Cut(Variable(0), step, low, rest)


def everywhere(box: Box, numbers: Given) -> Iterator[Given]:
    """The numbers of every point; all that a box says of them holds."""
    counted = []
    for each in box.ranges:
        begin, count = value(each.begin, numbers), value(each.count, numbers)
        assert count >= 0
        counted.append(range(begin, begin + count))
    variables = [each.variable for each in box.ranges]
    for chosen in product(*counted):
        there = {**numbers, **dict(zip(variables, chosen, strict=True))}
        assert all(0 <= there[each.variable] < value(each.end, there) for each in box.ranges)
        assert all(value(each, there) >= 0 for each in box.natural)
        yield there


def points(box: Box, numbers: Given) -> Iterator[tuple[int, ...]]:
    for there in everywhere(box, numbers):
        yield tuple(value(each, there) for each in box.indices.values())


@given(aparts(), given_numbers, st.data())
def test_parts_have_every_point_once(
    found: tuple[Box, Split | Cut], numbers: Given, data: st.DataObject
) -> None:
    """Whatever extents are; and so have parts of parts."""
    (box, apart), variables = found, Numbers(10)
    expected = sorted(points(box, numbers))
    parts = list(apart.parts(box, variables))
    assert sorted(point for each in parts for point in points(each, numbers)) == expected
    kept = [each for each in parts if each.ranges]
    if not kept:
        return
    at = parts.index(data.draw(st.sampled_from(kept)))
    variable = data.draw(st.sampled_from([each.variable for each in parts[at].ranges]))
    divisor, rest = data.draw(positives), data.draw(sums)
    more = data.draw(
        st.sampled_from([Split(variable, divisor, rest), Cut(variable, divisor, ZERO, rest)])
    )
    parts[at : at + 1] = more.parts(parts[at], variables)
    assert sorted(point for each in parts for point in points(each, numbers)) == expected


@given(aparts(), given_numbers, sums, st.lists(st.integers(-3, 3), min_size=2, max_size=2))
def test_what_is_seen_of_a_box_holds(
    found: tuple[Box, Split | Cut], numbers: Given, rest: Polynomial, factors: list[int]
) -> None:
    """Of it and of its parts, of which more is known."""
    box, apart = found
    end = rest + ONE
    for each in (box, *apart.parts(box, Numbers(10))):
        high, low, _ = each.indices.values()
        asked = high * factors[0] + low * factors[1] + rest
        values = [value(asked, there) for there in everywhere(each, numbers)]
        assert not each.is_natural(asked) or min(values, default=0) >= 0
        below = [value(end, numbers) > at >= 0 for at in values]
        assert not each.is_below(asked, end) or all(below)


@pytest.mark.parametrize(("op", "expected"), [("arith.minsi", 0), ("arith.maxsi", 1)])
def test_a_cut_says_which_side_is_less(op: str, expected: int) -> None:
    """So no range is cut twice where the same is asked again."""
    index, bound = Node("argument", "0", ()), Node("fsc.extent", "@spec.n", ())
    tree = Node(op, "", (index, bound))
    relation = Relation([Node("fsc.extent", "@spec.m", ())], frozenset())
    found = relation.boxes([tree, index, tree, bound])
    assert len(found) == 2
    for number, (_, (one, index_there, other, bound_there)) in enumerate(found):
        assert one == other == (index_there if number == expected else bound_there)
