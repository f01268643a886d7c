"""Numbers that may depend on what only a run knows: as text, and as a value once that is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fuscoc.declared import scalar_json
from fuscoc.lang import checked
from fuscoc_runtime import scalar
from fuscoc_runtime.scalar import DIVISIONS, OPERATORS, Operator, Scalar


@dataclass(frozen=True)
class Symbol:
    """A number known by ``name``; ``text`` is how it is shown, e.g. ``height(n)``."""

    name: str
    text: str


@dataclass(frozen=True)
class Product:
    """``number`` times all of ``factors``."""

    number: int
    factors: tuple[Formula, ...]


@dataclass(frozen=True)
class Arithmetic:
    """Two operands and their operator; a product is a ``Product``."""

    op: Operator
    lhs: Formula
    rhs: Formula


@dataclass(frozen=True)
class Least:
    """The least of several numbers."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True)
class Total:
    """The sum of ``body`` over ``index``, which takes ``count`` values.

    As a value it takes what ``body`` says of each to be equal.
    """

    index: str
    count: Formula
    body: Formula


Formula: TypeAlias = int | Symbol | Product | Arithmetic | Least | Total

# The topology; a spec's own names cannot have a space.
NODES = Symbol("number of nodes", "nodes")
PER_NODE = Symbol("ranks of a node", "ranks_per_node")
RANKS = Symbol("ranks", "ranks")


def of_scalar(value: Scalar) -> Formula:
    """A scalar of the manifest; what is loaded from an input is a symbol of that input's name."""
    match value:
        case int():
            return value
        case scalar.Extent(name):
            return Symbol(name, name)
        case scalar.Index(name):
            return Symbol(f"index {name}", name)
        case scalar.Load(name, at):
            return Symbol(name, f"{name}({', '.join(scalar.render(each) for each in at)})")
        case scalar.BinaryOp(op, lhs, rhs):
            return arithmetic(op, of_scalar(lhs), of_scalar(rhs))
        case scalar.Inside(inner):
            return of_scalar(inner)


def of_checked(value: checked.Scalar) -> Formula:
    """A scalar as the checker knows it."""
    return of_scalar(scalar.parse(scalar_json(value)))


def arithmetic(op: Operator, lhs: Formula, rhs: Formula) -> Formula:
    """Two formulae under an operator; ``/`` floors."""
    if isinstance(lhs, int) and isinstance(rhs, int) and (op not in DIVISIONS or rhs):
        return OPERATORS[op](lhs, rhs)
    if op == "*":
        return product(lhs, rhs)
    if op in ("+", "-") and rhs == 0:
        return lhs
    if op == "+" and (lhs == 0 or isinstance(lhs, int)):  # numbers behind what is not known
        return arithmetic(op, rhs, lhs)
    return Arithmetic(op, lhs, rhs)


def product(*parts: Formula) -> Formula:
    """All parts times each other; what is a number comes first."""
    number = 1
    factors: list[Formula] = []
    for part in parts:
        if isinstance(part, int):
            number *= part
        elif isinstance(part, Product):
            number *= part.number
            factors += part.factors
        else:
            factors.append(part)
    if number == 0 or not factors:
        return number
    if number == 1 and len(factors) == 1:
        return factors[0]
    return Product(number, tuple(factors))


def least(*parts: Formula) -> Formula:
    """The least of the parts, of those that are numbers at once."""
    numbers = [part for part in parts if isinstance(part, int)]
    others = tuple(dict.fromkeys(part for part in parts if not isinstance(part, int)))
    if 1 in numbers:
        others = tuple(part for part in others if not _is_positive(part))
    if not others or 0 in numbers:
        return min(numbers)
    if not numbers and len(others) == 1:
        return others[0]
    return Least((*([min(numbers)] if numbers else []), *others))


def _is_positive(formula: Formula) -> bool:
    """Whether a number is 1 or more on any topology."""
    match formula:
        case Arithmetic("+", lhs, rhs):
            return _is_positive(lhs) or _is_positive(rhs)
        case _:
            return formula in (RANKS, NODES, PER_NODE)


def total(index: str, count: Formula, body: Formula) -> Formula:
    """The sum over an index; a product if all terms are the same."""
    varies = any(
        isinstance(part, Symbol) and part.text.endswith(f"({index})") for part in parts(body)
    )
    return Total(index, count, body) if varies else product(count, body)


def parts(formula: Formula) -> Iterable[Formula]:
    """The formula and all formulae in it."""
    yield formula
    for inner in _inner(formula):
        yield from parts(inner)


def _inner(formula: Formula) -> tuple[Formula, ...]:
    match formula:
        case Product(_, factors):
            return factors
        case Arithmetic(_, lhs, rhs):
            return lhs, rhs
        case Least(inner):
            return inner
        case Total(_, count, body):
            return count, body
        case _:
            return ()


def symbols(formula: Formula) -> frozenset[str]:
    """The names that a formula's value depends on."""
    return frozenset(part.name for part in parts(formula) if isinstance(part, Symbol))


def with_values(formula: Formula, values: Mapping[str, int]) -> Formula:
    """The formula with what is known put in."""
    match formula:
        case Symbol(name):
            return values.get(name, formula)
        case Product(number, factors):
            return product(number, *(with_values(factor, values) for factor in factors))
        case Arithmetic(op, lhs, rhs):
            return arithmetic(op, with_values(lhs, values), with_values(rhs, values))
        case Least(inner):
            return least(*(with_values(part, values) for part in inner))
        case Total(index, count, body):
            return total(index, with_values(count, values), with_values(body, values))
        case int():
            return formula


def text(formula: Formula) -> str:
    """How a formula is shown, with thousands grouped."""
    match formula:
        case int():
            return f"{formula:,}"
        case Symbol(_, name):
            return name
        case Product(number, factors):
            numbers = [f"{number:,}"] if number != 1 else []
            ordered = sorted(factors, key=lambda factor: not isinstance(factor, Symbol))
            return " × ".join([*numbers, *(_operand(factor, "×") for factor in ordered)])
        case Arithmetic(op, lhs, rhs) if op.isalpha():
            return f"{op}({text(lhs)}, {text(rhs)})"
        case Arithmetic(op, lhs, rhs):
            return f"{_operand(lhs, op)} {'−' if op == '-' else op} {_operand(rhs, op)}"
        case Least(inner):
            return f"min({', '.join(map(text, inner))})"
        case Total(index, _, body):
            return f"Σ{index} {_operand(body, '/')}"


def _operand(formula: Formula, op: str) -> str:
    """An operand, in parentheses unless it binds more tightly."""
    inside_sum = (op in ("+", "-") and isinstance(formula, Product)) or (
        op == "+" and isinstance(formula, Arithmetic) and formula.op in ("+", "-")
    )
    is_compound = isinstance(formula, Product | Total) or (
        isinstance(formula, Arithmetic) and not formula.op.isalpha()
    )
    return f"({text(formula)})" if is_compound and not inside_sum else text(formula)
