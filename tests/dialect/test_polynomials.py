"""Polynomials against the numbers that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fuscoc.dialect.expressions import Node
from fuscoc.dialect.polynomials import (
    Atom,
    Derived,
    Polynomial,
    Value,
    Variable,
    floordiv,
    least,
    most,
)

NATURAL = [Value(Node("fsc.extent", f"@n{at}", ()), natural=True) for at in range(3)]
ANY = [Value(Node("fsc.lookup", f"@z{at}", ()), natural=False) for at in range(2)]
VARIABLES = [Variable(at) for at in range(3)]
LEAVES: list[Atom] = [*NATURAL, *ANY, *VARIABLES]
Numbers = dict[Atom, int]

leaves = st.fixed_dictionaries({each: st.integers(-9 if each in ANY else 0, 9) for each in LEAVES})
sums = st.recursive(
    st.integers(-9, 9).map(Polynomial.constant) | st.sampled_from(LEAVES).map(Polynomial.atom),
    lambda inner: (
        st.builds(lambda lhs, rhs: lhs + rhs, inner, inner)
        | st.builds(lambda lhs, rhs: lhs - rhs, inner, inner)
        | st.builds(lambda lhs, rhs: lhs * rhs, inner, inner)
        | st.builds(least, inner, inner)
        | st.builds(most, inner, inner)
        | st.builds(
            lambda lhs, rhs: floordiv(lhs, Polynomial.constant(rhs)), inner, st.integers(1, 9)
        )
    ),
    max_leaves=6,
)


def value(polynomial: Polynomial, numbers: Numbers) -> int:
    total = 0
    for product, factor in polynomial.terms:
        for atom in product:
            factor *= number(atom, numbers)
        total += factor
    return total


def number(atom: Atom, numbers: Numbers) -> int:
    if not isinstance(atom, Derived):
        return numbers[atom]
    lhs, rhs = value(atom.lhs, numbers), value(atom.rhs, numbers)
    if atom.op == "floordiv":
        assume(rhs > 0)
        return lhs // rhs
    return {"min": min, "max": max}[atom.op](lhs, rhs)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (Polynomial.__add__, int.__add__),
        (Polynomial.__sub__, int.__sub__),
        (Polynomial.__mul__, int.__mul__),
        (least, min),
        (most, max),
    ],
)
@given(lhs=sums, rhs=sums, numbers=leaves)
def test_what_is_made_of_two(
    made: Callable[..., Polynomial],
    expected: Callable[..., Any],
    lhs: Polynomial,
    rhs: Polynomial,
    numbers: Numbers,
) -> None:
    assert value(made(lhs, rhs), numbers) == expected(value(lhs, numbers), value(rhs, numbers))


@given(sums, sums, sums, leaves)
def test_divisions(lhs: Polynomial, rhs: Polynomial, more: Polynomial, numbers: Numbers) -> None:
    """Of anything, and of what the divisor is a part of."""
    divisor = value(rhs, numbers)
    for each in (lhs, lhs * rhs, lhs * rhs + more):
        quotient, rest = each.split(rhs)
        assert quotient * rhs + rest == each
        if divisor > 0:
            assert value(floordiv(each, rhs), numbers) == value(each, numbers) // divisor


@given(sums, sums)
def test_quotients(lhs: Polynomial, rhs: Polynomial) -> None:
    for each in (lhs, lhs * rhs):
        found = each.quotient(rhs)
        assert found is None or found * rhs == each


@given(sums, sums)
def test_one_product_divides_all_that_it_is_in(lhs: Polynomial, rhs: Polynomial) -> None:
    assume(len(rhs.terms) == 1)
    assert (lhs * rhs).quotient(rhs) == lhs


@given(sums, sums, sums)
def test_equal_sums_are_equal(a: Polynomial, b: Polynomial, c: Polynomial) -> None:
    pairs = [
        (a + b, b + a),
        ((a + b) + c, a + (b + c)),
        (a * b, b * a),
        ((a * b) * c, a * (b * c)),
        (a * (b + c), a * b + a * c),
        (a - a, Polynomial(())),
        (a * 3, a + a + a),
    ]
    for one, other in pairs:
        assert one == other
        assert hash(one) == hash(other)


@given(sums, leaves)
def test_what_is_natural_is_never_negative(polynomial: Polynomial, numbers: Numbers) -> None:
    assert not polynomial.is_natural or value(polynomial, numbers) >= 0


def test_what_is_seen_to_be_natural() -> None:
    n, z = Polynomial.atom(NATURAL[0]), Polynomial.atom(ANY[0])
    three, minus = Polynomial.constant(3), Polynomial.constant(-3)
    for natural in (three, n, n * n + three, floordiv(n, three), least(n, three), most(z, n)):
        assert natural.is_natural
    for other in (minus, z, n + minus, floordiv(n + minus, three), least(n, z), most(z, n * -1)):
        assert not other.is_natural


@given(sums, leaves)
def test_known_numbers(polynomial: Polynomial, numbers: Numbers) -> None:
    assert polynomial.known is None or polynomial.known == value(polynomial, numbers)
    assert Polynomial.constant(7).known == 7
    assert (polynomial - polynomial).known == 0


@given(sums)
def test_affine_sums_are_their_factors(polynomial: Polynomial) -> None:
    assume(polynomial.is_affine)
    total = polynomial.without_variables
    assert not total.variables
    for variable in polynomial.variables:
        factor = polynomial.factor_of(variable)
        assert not factor.variables
        assert factor != Polynomial(())
        total += factor * Polynomial.atom(variable)
    assert total == polynomial


def test_products_of_variables_are_not_affine() -> None:
    x, y = (Polynomial.atom(each) for each in VARIABLES[:2])
    assert (x + y * 3).is_affine
    assert not (x * y).is_affine
    assert not (x * x).is_affine
