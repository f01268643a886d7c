"""What is known of scalars without running: divisors and monomials, against their values."""

from __future__ import annotations

from math import prod

from hypothesis import assume, given
from hypothesis import strategies as st

from fuscoc.dialect.expressions import (
    Divisors,
    Expression,
    Monomial,
    Node,
    arguments,
    looks_up,
    monomial,
)

LEAVES = [Node("fsc.lookup", f"@leaf{i}", ()) for i in range(4)]
ARITH = ["arith.addi", "arith.subi", "arith.muli", "arith.divsi", "arith.remsi"]


def binary(op: str, lhs: Expression, rhs: Expression) -> Node:
    return Node(op, "", (lhs, rhs))


trees = st.recursive(
    st.integers(0, 48) | st.sampled_from(LEAVES),
    lambda inner: st.builds(binary, st.sampled_from(ARITH), inner, inner),
    max_leaves=8,
)


def value(tree: Expression, leaves: dict[Expression, int]) -> int:
    """The value of a tree; discards examples that divide by zero or by a negative number."""
    if isinstance(tree, int):
        return tree
    if tree in leaves:
        return leaves[tree]
    lhs, rhs = (value(operand, leaves) for operand in tree.operands)
    match tree.op:
        case "arith.addi":
            return lhs + rhs
        case "arith.subi":
            return lhs - rhs
        case "arith.muli":
            return lhs * rhs
    assume(rhs > 0 and lhs >= 0)
    return lhs // rhs if tree.op == "arith.divsi" else lhs % rhs


def divides(divisor: int, number: int) -> bool:
    return number == 0 if divisor == 0 else number % divisor == 0


@given(
    trees,
    st.tuples(*[st.integers(1, 24)] * len(LEAVES)),
    st.lists(st.tuples(*[st.integers(0, 30)] * len(LEAVES)), min_size=1, max_size=5),
)
def test_divisors_divide(
    tree: Expression, steps: tuple[int, ...], samples: list[tuple[int, ...]]
) -> None:
    exact = tuple(
        binary("fsc.exact_div", leaf, step) for leaf, step in zip(LEAVES, steps, strict=True)
    )
    found = Divisors(exact).of(tree)
    for sample in samples:
        leaves: dict[Expression, int] = {
            leaf: step * count for leaf, step, count in zip(LEAVES, steps, sample, strict=True)
        }
        assert divides(found, value(tree, leaves))


def test_divisors_are_the_largest_of_products() -> None:
    height, width = LEAVES[:2]
    exact = (binary("fsc.exact_div", height, 14), binary("fsc.exact_div", width, 6))
    cells = binary("arith.muli", height, width)
    divisors = Divisors(exact, cells)
    row = binary("arith.muli", binary("arith.muli", Node("argument", "1", ()), 14), width)
    assert divisors.of(cells) == 14 * 6
    assert divisors.of(row) == 14 * 6
    assert divisors.of(Node("fsc.cell_base", "", (Node("argument", "0", ()),))) == 14 * 6
    assert divisors.of(exact[0]) == 1
    assert divisors.of(binary("arith.addi", row, binary("arith.muli", LEAVES[3], 4))) == 4
    assert divisors.of(binary("arith.divsi", row, 7)) == 2 * 6
    assert divisors.of(binary("arith.divsi", row, 5)) == 1


def test_several_exact_divisions_of_one_value() -> None:
    leaf = LEAVES[0]
    exact = (binary("fsc.exact_div", leaf, 4), binary("fsc.exact_div", leaf, 6))
    assert Divisors(exact).of(leaf) == 12


def product(factors: list[Expression]) -> Expression:
    tree = factors[0]
    for factor in factors[1:]:
        tree = binary("arith.muli", tree, factor)
    return tree


@given(
    st.lists(st.integers(1, 9) | st.sampled_from(LEAVES), min_size=1, max_size=6).flatmap(
        lambda factors: st.tuples(st.just(factors), st.permutations(factors))
    )
)
def test_monomials_ignore_the_order_of_factors(
    orders: tuple[list[Expression], list[Expression]],
) -> None:
    factors, shuffled = orders
    assert monomial(product(factors)) == monomial(product(shuffled))
    assert monomial(product(factors)).constant == prod(f for f in factors if isinstance(f, int))


def test_sums_are_opaque_factors() -> None:
    total = binary("arith.addi", LEAVES[0], 1)
    assert monomial(binary("arith.muli", total, 3)) == Monomial(3) * monomial(total)
    assert monomial(total) != monomial(binary("arith.addi", LEAVES[1], 1))


def test_what_a_tree_depends_on() -> None:
    tree = binary("arith.addi", Node("argument", "2", ()), Node("argument", "0", ()))
    assert arguments(tree) == {0, 2}
    assert not looks_up(tree)
    assert looks_up(binary("arith.muli", tree, LEAVES[0]))
