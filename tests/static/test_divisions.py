"""Divisions of extents, against an evaluator that stops at the first divisor that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc_runtime.engine.divisions import check_divisions
from fuscoc_runtime.errors import DivisorError, FuscoRuntimeError, InexactDivisionError
from fuscoc_runtime.manifest.declared import InputSpec
from fuscoc_runtime.scalar import (
    DIVISIONS,
    BinaryOp,
    Extent,
    Index,
    Load,
    Scalar,
    render,
    subexpressions,
)
from tests.drawn import at_night
from tests.engine import specs as routed_specs
from tests.plan.specs import declaring
from tests.static import specs

EXTENTS = {"rows": 12, "ranks": 4, "rank": 1, "none": 0}

extents = st.integers(0, 6) | st.sampled_from(list(EXTENTS)).map(Extent)


def trees(leaves: st.SearchStrategy[Scalar]) -> st.SearchStrategy[Scalar]:
    """Arithmetic whose divisors are extents, as the compiler demands."""

    def larger(parts: st.SearchStrategy[Scalar]) -> st.SearchStrategy[Scalar]:
        divisions = st.builds(BinaryOp, st.sampled_from(DIVISIONS), parts, divisors)
        others = st.sampled_from(["+", "-", "*", "min", "max"])
        return divisions | st.builds(BinaryOp, others, parts, parts)

    return st.recursive(leaves, larger, max_leaves=4)


divisors: st.SearchStrategy[Scalar] = extents | st.builds(
    BinaryOp, st.sampled_from("+-*/%"), extents, extents
)
INPUT = InputSpec("idx", "int64", (), "route")

sizes = trees(extents)
places = trees(extents | st.just(Index("i")) | st.just(Load("idx", (Index("i"),))))


class WrongDivisor(Exception):
    pass


def value(scalar: Scalar) -> int:
    match scalar:
        case int():
            return scalar
        case Extent(name):
            return EXTENTS[name]
        case BinaryOp(op, lhs, rhs):
            left, right = value(lhs), value(rhs)
            if op in DIVISIONS and right <= 0:
                raise WrongDivisor
            return {
                "+": lambda: left + right,
                "-": lambda: left - right,
                "*": lambda: left * right,
                "/": lambda: left // right,
                "//": lambda: left // right,
                "%": lambda: left % right,
                "min": lambda: min(left, right),
                "max": lambda: max(left, right),
                "cdiv": lambda: -(-left // right),
            }[op]()
    raise AssertionError(scalar)


def divisions(scalars: list[Scalar]) -> Iterator[BinaryOp]:
    for part in (part for scalar in scalars for part in subexpressions(scalar)):
        if isinstance(part, BinaryOp) and part.op in DIVISIONS:
            yield part


def wrong_divisors(scalars: list[Scalar]) -> set[tuple[str, int]]:
    """Those that can be computed."""
    found = set()
    for part in divisions(scalars):
        try:
            divisor = value(part.rhs)
        except WrongDivisor:
            continue
        if divisor <= 0:
            found.add((render(part.rhs), divisor))
    return found


def remainders(scalars: list[Scalar]) -> set[tuple[str, int, int]]:
    return {
        (render(part.lhs), value(part.lhs), value(part.rhs))
        for part in divisions(scalars)
        if part.op == "/"
        and not any(isinstance(inner, Index | Load) for inner in subexpressions(part))
        and value(part.lhs) % value(part.rhs)
    }


@pytest.mark.parametrize("is_dense", [True, False], ids=["dense", "packed"])
@settings(max_examples=at_night(150))
@given(st.lists(sizes, min_size=4, max_size=4), st.lists(places, min_size=3, max_size=3))
def test_every_division_is_right_or_named(
    is_dense: bool, size: list[Scalar], place: list[Scalar]
) -> None:
    """Extents of indices, dimensions and inputs come out even; what is computed at a point need
    not, as long as its divisors are positive."""
    text = specs.TRANSPOSE if is_dense else routed_specs.routed("f32")
    artifact = specs.artifact(text) if is_dense else routed_specs.artifact(text)
    spec = artifact.shuffle()
    given_sizes, computed = size[:3], place[:2]
    if spec.declared.target.kind == "dense":
        target = replace(spec.declared.target, slot=place[1], rank=place[2], length=size[3])
        given_sizes, computed = size, place
    else:
        target = replace(spec.declared.target, key=place[1])
    spec = declaring(
        spec,
        domain=(replace(spec.declared.domain[0], extent=size[0]),),
        source=replace(
            spec.declared.source,
            dims=(size[1],),
            subscripts=(replace(spec.declared.source.subscripts[0], start=place[0]),),
        ),
        inputs=(replace(INPUT, shape=(size[2],)),),
        target=target,
    )
    wrong = wrong_divisors([*given_sizes, *computed])
    raised: FuscoRuntimeError | None = None
    try:
        check_divisions(spec, 1, EXTENTS)
    except FuscoRuntimeError as error:
        raised = error
    if wrong:
        assert isinstance(raised, DivisorError)
        assert (raised.divisor, raised.value) in wrong
    elif left_over := remainders(given_sizes):
        assert isinstance(raised, InexactDivisionError)
        assert (raised.dividend, raised.value, raised.divisor) in left_over
    else:
        assert raised is None
