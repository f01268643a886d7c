"""Scalars of a shuffle's regions as plain trees, and what is known about them without running.

Two values with equal trees are equal at the same point: the first argument of both regions is the
outermost index, so that a fact about an extent holds in the relation too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd, lcm
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Node:
    """An operation over scalars; ``symbol`` is what it refers to (an argument: its number)."""

    op: str
    symbol: str
    operands: tuple[Expression, ...]


Expression: TypeAlias = int | Node

SYMBOLS = ("extent", "input", "placement")


def expression(value: Any) -> Expression:
    """The tree of an SSA value."""
    owner = value.owner
    if not hasattr(owner, "opview"):  # a block: the value is one of its arguments
        return Node("argument", str(value.arg_number), ())
    name = owner.name
    if name == "arith.constant":
        return int(owner.attributes["value"].value)
    symbols = [str(owner.attributes[key]) for key in SYMBOLS if key in owner.attributes]
    return Node(name, "".join(symbols), tuple(expression(operand) for operand in owner.operands))


def nodes(tree: Expression) -> Iterator[Node]:
    """Every operation of a tree, outermost first."""
    if isinstance(tree, Node):
        yield tree
        for operand in tree.operands:
            yield from nodes(operand)


def arguments(tree: Expression) -> set[int]:
    """The numbers of the block arguments that a tree depends on."""
    return {int(node.symbol) for node in nodes(tree) if node.op == "argument"}


def looks_up(tree: Expression) -> bool:
    """Whether a tree reads an input."""
    return any(node.op == "fsc.lookup" for node in nodes(tree))


@dataclass(frozen=True)
class Monomial:
    """A constant times opaque factors: enough algebra to compare strides."""

    constant: int
    factors: tuple[str, ...] = ()

    def __mul__(self, other: Monomial) -> Monomial:
        factors = tuple(sorted(self.factors + other.factors))
        return Monomial(self.constant * other.constant, factors)


def monomial(tree: Expression) -> Monomial:
    """A tree as a product; what is not a product itself becomes a factor."""
    if isinstance(tree, int):
        return Monomial(tree)
    if tree.op == "arith.muli":
        return monomial(tree.operands[0]) * monomial(tree.operands[1])
    return Monomial(1, (repr(tree),))


class Divisors:
    """What divides every value that a tree can take.

    ``exact`` are trees whose ``fsc.exact_div`` are known to leave no remainder; ``cells`` is the
    number of cells of an outer entry, whose prefix sums ``fsc.cell_base`` reads.
    """

    def __init__(self, exact: tuple[Expression, ...] = (), cells: Expression = 1) -> None:
        self._known: dict[Expression, int] = {}
        for node in (node for tree in exact for node in nodes(tree)):
            if node.op == "fsc.exact_div":
                lhs, rhs = node.operands
                if isinstance(rhs, int) and rhs != 0:
                    self._known[lhs] = lcm(self._known.get(lhs, 1), rhs)
        self._cells = cells

    def of(self, tree: Expression) -> int:
        """The largest known divisor; 0 if the tree is always 0, which everything divides."""
        if isinstance(tree, int):
            return abs(tree)
        return lcm(self._structural(tree), self._known.get(tree, 1))

    def _structural(self, node: Node) -> int:
        match node.op, [self.of(operand) for operand in node.operands]:
            case "arith.muli", [lhs, rhs]:
                return lhs * rhs
            case (
                ("arith.addi" | "arith.subi" | "arith.remsi" | "arith.minsi" | "arith.maxsi"),
                [lhs, rhs],
            ):
                return gcd(lhs, rhs)
            case (("arith.divsi" | "fsc.exact_div"), [lhs, _]):
                divisor = node.operands[1]
                if isinstance(divisor, int) and divisor != 0 and lhs % divisor == 0:
                    return lhs // divisor
            case "fsc.inside", [value, _]:
                return value
            case "fsc.cell_base", _:
                return self.of(self._cells)
        return 1
