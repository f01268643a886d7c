"""Scalars as affine constraints, for isl to decide: the library of sets of integers behind them.

Sums, products with numbers, and quotients and remainders by numbers are affine, and decided
exactly. Anything else becomes a variable of its own that is only known to lie in some range: what
holds of it holds of the value, but what is found need not be one. This file is imported only where
the tests of ``algebra.py`` give up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import islpy as isl

from fuscoc.lang.checked import (
    DIVISIONS,
    BinaryOp,
    Const,
    ExtentRef,
    IndexRef,
    Inside,
    Load,
    Scalar,
)
from fuscoc.lang.proof import Facts
from fuscoc.lang.scalars import OPERATORS, indices, may_be_negative, parts

MAX_OPERATIONS = 1_000_000  # of isl, for one question: about a tenth of a second


class TooHardError(Exception):
    """A question that isl has no answer to in time."""


@dataclass(frozen=True)
class Quotient:
    """An expression divided by a number, rounded down."""

    dividend: str
    divisor: int


class System:
    """Variables for what scalars are made of, and what is known of them.

    ``fixed`` are run-time extents whose values are known. ``is_exact`` says that all that was asked
    about is affine; if it is not, ``needs`` are run-time extents that it might be with.
    """

    def __init__(self, facts: Facts, fixed: Mapping[str, int], prefix: str = "v") -> None:
        self.facts = facts
        self.fixed = fixed
        self.is_exact = True
        self.needs: set[str] = set()
        self.variables: dict[Scalar | Quotient, str] = {}
        self.constraints: list[str] = []
        self._prefix = prefix
        for scalar in facts.checked:
            self._check(scalar)

    def text(self, scalar: Scalar) -> str:
        """An affine expression in the variables."""
        value = self.value(scalar)
        if value is not None:
            return f"({value})"
        if not isinstance(scalar, BinaryOp):
            return self._variable(scalar)
        lhs, rhs = self.value(scalar.lhs), self.value(scalar.rhs)
        left, right = self.text(scalar.lhs), self.text(scalar.rhs)
        match scalar.op:
            case "+" | "-":
                return f"({left} {scalar.op} {right})"
            case "min" | "max":
                return f"{scalar.op}({left}, {right})"
            case "*" if lhs is not None:
                return f"({lhs} * {right})"
            case "*" if rhs is not None:
                return f"({rhs} * {left})"
            case "/" | "//" if rhs is not None:
                return self._quotient(left, rhs)
            case "cdiv" if rhs is not None:
                return self._quotient(f"({left} + {rhs - 1})", rhs)
            case "%" if rhs is not None:
                return f"({left} - {rhs} * {self._quotient(left, rhs)})"
        return self._opaque(scalar, left, right)

    def value(self, scalar: Scalar) -> int | None:
        """The number that a scalar is, if it is one."""
        match scalar:
            case Const(value=value):
                return value
            case ExtentRef(name=name):
                return self.fixed.get(name)
            case BinaryOp(op=op, lhs=lhs, rhs=rhs):
                left, right = self.value(lhs), self.value(rhs)
                if op in DIVISIONS and right is not None and right < 1:
                    self.constraints.append("1 = 0")  # no run divides by that
                    return 0
                return None if left is None or right is None else OPERATORS[op](left, right)
        return None

    def positive_divisors(self, scalar: Scalar) -> None:
        """Every divisor in a scalar is positive, as a run checks."""
        for part in parts(scalar):
            if isinstance(part, BinaryOp) and part.op in DIVISIONS:
                self.constraints.append(f"{self.text(part.rhs)} >= 1")

    def counterexample(self, alternatives: Sequence[str]) -> dict[Scalar, int] | None:
        """Values of all variables with which one of several constraints holds, if there are any.

        Raises:
            TooHardError: that takes too long to find out.
        """
        wrong = f"({' or '.join(alternatives)})"
        found = solution([*self.variables.values()], [*self.constraints, wrong])
        return None if found is None else self.values(found)

    def values(self, found: Mapping[str, int]) -> dict[Scalar, int]:
        """What a solution gives scalars that are variables, and extents that are known."""
        known: dict[Scalar, int] = {ExtentRef(name): value for name, value in self.fixed.items()}
        return known | {
            scalar: found[name]
            for scalar, name in self.variables.items()
            if not isinstance(scalar, Quotient)
        }

    def _check(self, scalar: Scalar) -> None:
        self.constraints.append(f"{self.text(scalar)} >= 0")
        self.positive_divisors(scalar)
        for part in parts(scalar):
            if isinstance(part, BinaryOp) and part.op == "/":
                rest = self.text(BinaryOp("%", part.lhs, part.rhs))
                self.constraints.append(f"{rest} = 0")

    def _variable(self, scalar: Scalar) -> str:
        if scalar in self.variables:
            return self.variables[scalar]
        same = [each for each in self.variables if isinstance(each, Load)]
        name = self._new(scalar)
        match scalar:
            case IndexRef(name=index):
                self.constraints.append(f"0 <= {name} < {self.text(self.facts.extents[index])}")
            case ExtentRef(name="rank"):
                self.constraints.append(f"0 <= {name} < {self.text(ExtentRef('ranks'))}")
            case ExtentRef(name=extent):
                self.constraints.append(f"{name} >= {int(extent == 'ranks')}")
            case Load(input=input, at=at):
                for each in at:
                    self.text(each)
                self.is_exact &= all(each.input != input for each in same)
                if input in self.facts.sizes:
                    self.constraints.append(f"{name} >= 0")
            case Inside(value=value, limit=limit):
                self.constraints.append(f"{name} = {self.text(value)}")
                self.constraints.append(f"0 <= {name} < {self.text(limit)}")
        return name

    def _quotient(self, dividend: str, divisor: int) -> str:
        """A variable, the same for all uses, is much easier than isl's own rounding."""
        key = Quotient(dividend, divisor)
        if key not in self.variables:
            name = self._new(key)
            self.constraints.append(f"0 <= {dividend} - {divisor} * {name} < {divisor}")
        return self.variables[key]

    def _new(self, key: Scalar | Quotient) -> str:
        name = self.variables[key] = f"{self._prefix}{len(self.variables)}"
        return name

    def _opaque(self, scalar: BinaryOp, left: str, right: str) -> str:
        """A variable for what is not affine."""
        if scalar in self.variables:
            return self.variables[scalar]
        self.is_exact = False
        sides = [scalar.lhs, scalar.rhs] if scalar.op == "*" else [scalar.rhs]
        names = [_extents(each) for each in sides if not indices(each)]
        self.needs |= min(names, key=lambda each: (len(each), "rank" in each), default=set())
        name = self._new(scalar)
        is_natural = not may_be_negative(scalar, self.facts.sizes)
        if scalar.op == "%":
            self.constraints.append(f"0 <= {name} < {right}")
        elif is_natural:
            self.constraints.append(f"{name} >= 0")
        if is_natural and scalar.op in DIVISIONS:
            self.constraints.append(f"{name} <= {left}")
        return name


class Pair:
    """Two points that differ in ``own``, indices and maybe ``rank``, and else are of one call."""

    def __init__(self, facts: Facts, fixed: Mapping[str, int], own: Sequence[Scalar]) -> None:
        self.first, self.second = System(facts, fixed, "v"), System(facts, fixed, "w")
        self._own = own

    def clash(self, alike: Sequence[tuple[Scalar, int]]) -> tuple[dict[Scalar, int], ...] | None:
        """Two points at which all of ``alike`` differ by less than the number beside them.

        Raises:
            TooHardError: that takes too long to find out.
        """
        first, second = self.first, self.second
        near = []
        for scalar, length in alike:
            first.positive_divisors(scalar)
            second.positive_divisors(scalar)
            difference = f"{first.text(scalar)} - {second.text(scalar)}"
            near.append(f"{-length} < {difference} < {length}")
        pairs = [(each, first.text(each), second.text(each)) for each in self._own]
        for number, (_, here, there) in enumerate(pairs):
            equal = [f"{a} = {b}" for _, a, b in pairs[:number]]
            shared = self._shared({each for each, _, _ in pairs[:number]})
            constraints = [*first.constraints, *second.constraints, *near, *equal, *shared]
            variables = [*first.variables.values(), *second.variables.values()]
            found = solution(variables, [*constraints, f"{here} < {there}"])
            if found is not None:
                return first.values(found), second.values(found)
        return None

    def _shared(self, equal: set[Scalar]) -> list[str]:
        """Extents are the same, and so is what inputs say at the same indices."""
        return [
            f"{name} = {self.second.variables[scalar]}"
            for scalar, name in self.first.variables.items()
            if scalar in self.second.variables
            and (
                (isinstance(scalar, ExtentRef) and (scalar not in self._own or scalar in equal))
                or (isinstance(scalar, Load) and set(scalar.at) <= equal)
            )
        ]


def solution(variables: Sequence[str], constraints: Sequence[str]) -> dict[str, int] | None:
    """The least values of the variables, in their order, if there are any.

    Raises:
        TooHardError: that takes too long to find out.
    """
    found = _least(f"{{ [{', '.join(variables)}] : {' and '.join(constraints)} }}")
    return None if found is None else dict(zip(variables, found, strict=True))


@lru_cache(maxsize=1000)  # editors ask for the same at every key
def _least(text: str) -> tuple[int, ...] | None:
    """The least point of a set."""
    with limited():
        found = isl.Set(text)
        if found.is_empty():
            return None
        point = found.lexmin().sample_point()
    num = point.get_space().dim(isl.dim_type.set)
    return tuple(point.get_coordinate_val(isl.dim_type.set, at).to_python() for at in range(num))


Constrained: TypeAlias = tuple[Sequence[str], Sequence[str]]  # variables and what holds of them


def first_outside(names: Sequence[str], all: Constrained, some: Constrained) -> list[int] | None:
    """The least values of ``names`` that are among ``all`` and not among ``some``, if any are.

    Raises:
        TooHardError: that takes too long to find out.
    """
    tuples = []
    for variables, constraints in (all, some):
        more = [each for each in variables if each not in names]
        body = " and ".join(constraints)
        body = f"exists ({', '.join(more)} : {body})" if more else body
        tuples.append(f"{{ [{', '.join(names)}] : {body} }}")
    with limited():
        rest = isl.Set(tuples[0]).subtract(isl.Set(tuples[1]))
        if rest.is_empty():
            return None
        point = rest.lexmin().sample_point()
    return [point.get_coordinate_val(isl.dim_type.set, at).to_python() for at in range(len(names))]


@contextmanager
def limited() -> Iterator[None]:
    """What is asked of isl may take so long.

    Raises:
        TooHardError: it takes longer.
    """
    isl.DEFAULT_CONTEXT.reset_operations()
    isl.DEFAULT_CONTEXT.set_max_operations(MAX_OPERATIONS)
    try:
        yield
    except isl.Error as error:
        raise TooHardError from error


def _extents(scalar: Scalar) -> set[str]:
    return {part.name for part in parts(scalar) if isinstance(part, ExtentRef)}
