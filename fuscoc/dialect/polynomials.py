"""Polynomials over values that are not known before a call, with integer coefficients.

Enough algebra to see that a relation is affine in its indices, whatever the extents are. Atoms are
values of a region, variables that count through a range, and quotients and bounds of polynomials.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from fuscoc.dialect.expressions import Expression


@dataclass(frozen=True)
class Value:
    """A value of a region, as a tree; ``natural`` if it is never negative."""

    tree: Expression
    natural: bool

    @cached_property
    def name(self) -> str:
        return repr(self.tree)

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True)
class Variable:
    """What counts through a range: from 0 on, or from a number that is not negative."""

    number: int
    natural = True

    @cached_property
    def name(self) -> str:
        return f"variable {self.number:4}"


@dataclass(frozen=True)
class Derived:
    """``floordiv``, ``min`` or ``max`` of two polynomials; what divides is positive."""

    op: str
    lhs: Polynomial
    rhs: Polynomial

    @cached_property
    def name(self) -> str:
        return f"{self.op}({self.lhs.name}, {self.rhs.name})"

    @cached_property
    def natural(self) -> bool:
        """Whether it is seen to be never negative."""
        match self.op:
            case "floordiv":  # also where a quotient by what is 1 at least is rounded up
                rounded = self.lhs + Polynomial.constant(1) - self.rhs
                return self.lhs.is_natural or rounded.is_natural
            case "min":
                return self.lhs.is_natural and self.rhs.is_natural
        return self.lhs.is_natural or self.rhs.is_natural

    def __hash__(self) -> int:
        return hash(self.name)


MAX_BOUNDED = 8  # terms of a sum whose minima are looked into

Atom: TypeAlias = Value | Variable | Derived
Product: TypeAlias = tuple[Atom, ...]


@dataclass(frozen=True)
class Polynomial:
    """A sum of ``terms``: products of atoms, in the order of their names, with coefficients."""

    terms: tuple[tuple[Product, int], ...]

    @staticmethod
    def of(terms: Mapping[Product, int]) -> Polynomial:
        kept = [(product, factor) for product, factor in terms.items() if factor]
        return Polynomial(tuple(sorted(kept, key=lambda term: _names(term[0]))))

    @cached_property
    def name(self) -> str:
        return " + ".join(f"{factor} {_names(product)}" for product, factor in self.terms)

    def __hash__(self) -> int:
        return hash(self.name)

    @staticmethod
    def constant(value: int) -> Polynomial:
        return Polynomial.of({(): value})

    @staticmethod
    def atom(atom: Atom) -> Polynomial:
        return Polynomial.of({(atom,): 1})

    def __add__(self, other: Polynomial) -> Polynomial:
        terms = dict(self.terms)
        for product, factor in other.terms:
            terms[product] = terms.get(product, 0) + factor
        return Polynomial.of(terms)

    def __mul__(self, other: Polynomial | int) -> Polynomial:
        if isinstance(other, int):
            return Polynomial.of({product: factor * other for product, factor in self.terms})
        total = Polynomial(())
        for product, factor in self.terms:
            shifted = {_product(product, each): factor * times for each, times in other.terms}
            total += Polynomial.of(shifted)
        return total

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + other * -1

    @cached_property
    def known(self) -> int | None:
        """The number that it is, if it is one."""
        if not self.terms:
            return 0
        return self.terms[0][1] if self.terms[0][0] == () and len(self.terms) == 1 else None

    @cached_property
    def variables(self) -> frozenset[Variable]:
        found = (atom for product, _ in self.terms for atom in product)
        return frozenset(atom for atom in found if isinstance(atom, Variable))

    @cached_property
    def is_natural(self) -> bool:
        """Whether it is seen to be never negative, where a minimum is at most what it is of."""
        for product, factor in self.terms if len(self.terms) <= MAX_BOUNDED else ():
            match product:
                case (Derived("min", lhs, rhs),) if factor < 0:
                    rest = self - Polynomial(((product, factor),))
                    return any((rest + each * factor).is_natural for each in (lhs, rhs))
        return all(
            factor > 0 and all(atom.natural for atom in product) for product, factor in self.terms
        )

    def factor_of(self, variable: Variable) -> Polynomial:
        """What a variable is multiplied by, where no product has two."""
        rest = {
            tuple(atom for atom in product if atom != variable): factor
            for product, factor in self.terms
            if variable in product
        }
        return Polynomial.of(rest)

    @property
    def is_affine(self) -> bool:
        """Whether no product has two variables."""
        return all(
            sum(isinstance(atom, Variable) for atom in product) <= 1 for product, _ in self.terms
        )

    @property
    def without_variables(self) -> Polynomial:
        terms = {
            product: factor
            for product, factor in self.terms
            if not any(isinstance(atom, Variable) for atom in product)
        }
        return Polynomial.of(terms)

    def quotient(self, divisor: Polynomial) -> Polynomial | None:
        """The polynomial that times ``divisor`` is this one, if it is seen to exist."""
        quotient, rest = self._multiples(divisor)
        return None if rest.terms else quotient

    def _multiples(self, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
        """Terms of a quotient, each of which leaves fewer terms over, and what all leave over."""
        quotient, rest = Polynomial(()), self
        if not divisor.terms:
            return quotient, rest
        product, factor = max(divisor.terms, key=lambda term: len(term[0]))
        for each, times in self.terms:
            shared = _without(each, product)
            if shared is None or times % factor:
                continue
            term = Polynomial.of({shared: times // factor})
            left = rest - term * divisor
            if len(left.terms) < len(rest.terms):
                quotient, rest = quotient + term, left
        return quotient, rest

    def split(self, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
        """Quotient and rest: the terms that ``divisor`` is seen to divide, and the others."""
        quotient = Polynomial(())
        for variable in sorted(self.variables, key=lambda each: each.number):
            found = self.factor_of(variable).quotient(divisor)
            if found is not None:
                quotient += found * Polynomial.atom(variable)
        more, rest = (self - quotient * divisor)._multiples(divisor)
        return quotient + more, rest


def floordiv(lhs: Polynomial, rhs: Polynomial) -> Polynomial:
    """The quotient, rounded down, by a divisor that is positive."""
    quotient, rest = lhs.split(rhs)
    if rest.known is not None and rhs.known is not None:
        return quotient + Polynomial.constant(rest.known // rhs.known)
    if rest.known == 0:
        return quotient
    return quotient + Polynomial.atom(Derived("floordiv", rest, rhs))


def least(lhs: Polynomial, rhs: Polynomial) -> Polynomial:
    return _bound("min", lhs, rhs)


def most(lhs: Polynomial, rhs: Polynomial) -> Polynomial:
    return _bound("max", lhs, rhs)


def _bound(op: str, lhs: Polynomial, rhs: Polynomial) -> Polynomial:
    if (lhs - rhs).is_natural:
        return lhs if op == "max" else rhs
    if (rhs - lhs).is_natural:
        return rhs if op == "max" else lhs
    return Polynomial.atom(Derived(op, lhs, rhs))


def _product(lhs: Product, rhs: Product) -> Product:
    return tuple(sorted((*lhs, *rhs), key=lambda atom: atom.name))


def _names(product: Product) -> tuple[str, ...]:
    return tuple(atom.name for atom in product)


def _without(product: Product, factors: Product) -> Product | None:
    rest = list(product)
    for factor in factors:
        if factor not in rest:
            return None
        rest.remove(factor)
    return tuple(rest)
