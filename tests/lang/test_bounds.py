"""Proofs about subscripts, against trying every value."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from fuscoc.lang.algebra import are_disjoint, constant_difference, stays_inside
from fuscoc.lang.checked import (
    DIVISIONS,
    BinaryOp,
    Const,
    ExtentRef,
    IndexRef,
    Scalar,
    Subscript,
)
from fuscoc.lang.scalars import parts
from fuscoc.source import Span
from tests.lang.specs import evaluate

I_, J_ = IndexRef("i"), IndexRef("j")
X, Y = ExtentRef("x"), ExtentRef("y")
RANK, RANKS = ExtentRef("rank"), ExtentRef("ranks")
NOWHERE = Span(0, 0)
small = st.integers(0, 6)


def plus(a: Scalar, b: Scalar) -> Scalar:
    return BinaryOp("+", a, b)


def times(a: Scalar, b: Scalar) -> Scalar:
    return BinaryOp("*", a, b)


def over(a: Scalar, divisor: int | Scalar) -> Scalar:
    return BinaryOp("/", a, Const(divisor) if isinstance(divisor, int) else divisor)


def rounded_up(a: Scalar, divisor: int | Scalar) -> Scalar:
    return BinaryOp("cdiv", a, Const(divisor) if isinstance(divisor, int) else divisor)


def modulo(a: Scalar, divisor: int | Scalar) -> Scalar:
    return BinaryOp("%", a, Const(divisor) if isinstance(divisor, int) else divisor)


leaves = st.builds(Const, small) | st.sampled_from([I_, J_, X, Y, RANK, RANKS])
divisors = st.integers(1, 4) | st.sampled_from([RANKS, X, over(X, 2), over(Y, RANKS)])
expressions = st.recursive(
    leaves,
    lambda inner: (
        st.builds(BinaryOp, st.sampled_from(["+", "*", "min", "max"]), inner, inner)
        | st.builds(over, inner, divisors)
        | st.builds(rounded_up, inner, divisors)
        | st.builds(modulo, inner, divisors)
    ),
    max_leaves=6,
)
with_differences = st.recursive(
    expressions,
    lambda inner: st.builds(BinaryOp, st.sampled_from(["+", "-", "*", "min", "max"]), inner, inner),
    max_leaves=4,
)
affine = st.builds(
    lambda a, b, c: plus(plus(times(Const(a), I_), times(J_, Const(b))), Const(c)),
    *(small, small, small),
)
# What a computed slot is made of: this rank's part of an extent, a place inside a part.
sharded = st.builds(
    lambda part, inner, place: plus(times(RANK, part), modulo(inner, place)),
    st.builds(over, leaves, divisors),
    leaves,
    st.builds(over, leaves, divisors),
)
extents = st.recursive(
    st.builds(Const, st.integers(1, 6)) | st.sampled_from([X, Y]),
    lambda inner: (
        st.builds(over, inner, divisors)
        | st.builds(rounded_up, inner, divisors)
        | st.builds(BinaryOp, st.sampled_from(["*", "min", "max"]), inner, inner)
    ),
    max_leaves=3,
)
# What is left of a whole for this rank: uneven parts.
rest = st.builds(
    lambda whole, part: BinaryOp(
        "min", part, BinaryOp("max", BinaryOp("-", whole, times(RANK, part)), Const(0))
    ),
    *(extents, st.builds(rounded_up, extents, divisors)),
)
extents = extents | rest
dims = extents | st.builds(
    lambda a, b, c: plus(plus(times(Const(a), X), times(Y, Const(b))), Const(c)),
    *(small, small, st.integers(0, 40)),
)
run_time = [
    {X: x, Y: y, RANK: rank, RANKS: ranks}
    for x, y in product((0, 1, 3, 8), repeat=2)
    for rank, ranks in ((0, 1), (0, 3), (2, 3))
]


def runs(values: Mapping[Scalar, int], *scalars: Scalar) -> bool:
    """Whether every divisor is positive, which is checked before anything runs."""
    divisors = [
        part.rhs
        for scalar in scalars
        for part in parts(scalar)
        if isinstance(part, BinaryOp) and part.op in DIVISIONS
    ]
    try:
        return all(evaluate(divisor, values) > 0 for divisor in divisors)
    except ZeroDivisionError:
        return False


def comes_out_even(dim: Scalar, values: Mapping[Scalar, int]) -> bool:
    """Whether divisions leave no remainder, which is checked of extents before anything runs."""
    return not any(
        evaluate(part.lhs, values) % evaluate(part.rhs, values)
        for part in parts(dim)
        if isinstance(part, BinaryOp) and part.op == "/"
    )


@given(affine | sharded | with_differences, st.integers(1, 4), dims, extents, extents)
def test_a_proof_of_staying_inside_is_true(
    start: Scalar, length: int, dim: Scalar, of_i: Scalar, of_j: Scalar
) -> None:
    if not stays_inside(start, length, dim, {"i": of_i, "j": of_j}):
        return
    for values in run_time:
        if not runs(values, start, dim, of_i, of_j) or not comes_out_even(dim, values):
            continue
        i_values, j_values = range(evaluate(of_i, values)), range(evaluate(of_j, values))
        for i, j in product(i_values, j_values):
            first = evaluate(start, {**values, I_: i, J_: j})
            assert first >= 0
            assert first + length <= evaluate(dim, values)


@given(
    st.integers(1, 9), st.integers(1, 5), st.integers(1, 9), st.integers(0, 9), st.integers(1, 40)
)
def test_constant_bounds_are_decided_exactly(
    step: int, length: int, extent: int, first: int, dim: int
) -> None:
    start = plus(times(Const(step), I_), Const(first))
    proved = stays_inside(start, length, Const(dim), {"i": Const(extent)})
    assert proved == (first + step * (extent - 1) + length <= dim)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_blocks_of_constant_extents_are_decided_exactly(size: int, extent: int, dim: int) -> None:
    proved = stays_inside(over(I_, size), 1, Const(dim), {"i": Const(extent)})
    assert proved == ((extent - 1) // size < dim)
    assert stays_inside(over(I_, size), 1, over(X, size), {"i": X})


@given(st.integers(1, 9))
def test_tiles_of_a_run_time_extent_are_inside(tile: int) -> None:
    assert stays_inside(times(I_, Const(tile)), tile, X, {"i": over(X, tile)})
    assert not stays_inside(times(I_, Const(tile)), tile + 1, X, {"i": over(X, tile)})


def test_places_in_a_part_are_inside() -> None:
    """What a transpose and an exchange of heads need to be accepted."""
    part = over(X, RANKS)
    assert stays_inside(modulo(I_, part), 1, part, {"i": Y})
    assert not stays_inside(plus(modulo(I_, part), Const(1)), 1, part, {"i": Y})
    assert stays_inside(plus(times(RANK, part), I_), 1, X, {"i": part})
    assert not stays_inside(plus(times(RANK, part), I_), 1, X, {"i": plus(part, Const(1))})
    assert not stays_inside(plus(times(RANKS, part), I_), 1, X, {"i": part})
    assert stays_inside(RANK, 1, RANKS, {})
    uneven = rounded_up(X, RANKS)
    left = BinaryOp("max", BinaryOp("-", X, times(RANK, uneven)), Const(0))
    assert stays_inside(plus(times(RANK, uneven), I_), 1, X, {"i": BinaryOp("min", uneven, left)})
    assert not stays_inside(plus(times(RANK, uneven), I_), 1, X, {"i": uneven})
    assert stays_inside(I_, 1, X, {"i": part})


@given(with_differences, with_differences)
def test_a_constant_difference_is_one(a: Scalar, b: Scalar) -> None:
    difference = constant_difference(a, b)
    if difference is not None:
        for values in run_time:
            if not runs(values, a, b):
                continue
            for i, j in product(range(3), repeat=2):
                known = {**values, I_: i, J_: j}
                assert evaluate(a, known) - evaluate(b, known) == difference


def test_differences_see_through_multiplication() -> None:
    one_more = times(plus(I_, Const(1)), Const(14))
    assert constant_difference(one_more, times(Const(14), I_)) == 14
    assert constant_difference(over(times(Const(6), I_), 3), times(I_, Const(2))) == 0
    assert constant_difference(I_, J_) is None


def test_a_quotient_of_what_may_wrap_around_proves_nothing() -> None:
    big = Const(2**62)
    quotient = BinaryOp("/", times(I_, big), big)
    for start in (quotient, plus(quotient, Const(0))):
        assert not stays_inside(start, 1, Const(8), {"i": Const(8)})
    assert constant_difference(quotient, I_) is None


subscripts = st.lists(
    st.builds(
        lambda step, index, first, length: Subscript(
            plus(times(Const(step), index), Const(first)), length, NOWHERE
        ),
        st.integers(0, 4),
        st.sampled_from([I_, J_]),
        st.integers(0, 2),
        st.none() | st.integers(1, 4),
    ),
    min_size=1,
    max_size=3,
)


@given(subscripts)
def test_a_proof_of_disjointness_is_true(found: list[Subscript]) -> None:
    if not are_disjoint(found, ["i", "j"]):
        return
    seen: set[tuple[int, ...]] = set()
    for i, j in product(range(4), repeat=2):
        runs = []
        for subscript in found:
            first = evaluate(subscript.start, {I_: i, J_: j})
            runs.append(range(first, first + (subscript.length or 1)))
        cells = set(product(*runs))
        assert not cells & seen
        seen |= cells
