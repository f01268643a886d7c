"""Distinct keys: that no two points of a segment have one is promised by whoever gives the routes,
and every point looks whether it holds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from fuscoc.diagnostics import Label
from fuscoc.lang.checked import (
    BinaryOp,
    Const,
    DomainIndex,
    IndexRef,
    Inside,
    Load,
    PackedTarget,
    Scalar,
)
from fuscoc.lang.scalars import parts, substitute
from fuscoc.lang.scope import LayoutInfo, Scope

MAX_COMPARED = 64
"""Destinations of a segment: every point reads the keys of all of them."""

NONE, ONE = Const(0), Const(1)


def check_distinct(
    target: PackedTarget, fan_out: Sequence[DomainIndex], layout: LayoutInfo, scope: Scope
) -> bool:
    """Whether points can look, if keys are to be distinct; reported if they cannot."""
    if layout.distinct is None:
        return True
    sizes = _sizes(fan_out)
    problem = None
    if not isinstance(target.key, Load):
        problem = "keys are compared as a route gives them, and these are computed"
    elif any(isinstance(part, Inside) for part in parts(target.key)):
        # Where they are looked up would be another place for each point that is compared, and one
        # that does not exist would drop them all.
        problem = "keys are compared as a route gives them, and these are looked up"
    elif len(sizes) < len(fan_out):
        problem = "a segment goes to every rank, however many there are"
    elif prod(sizes) > MAX_COMPARED:
        problem = f"a segment has more than {MAX_COMPARED} destinations"
    if problem is None:
        return True
    scope.sink.report(
        "FSC069",
        target.span,
        "not yet supported: distinct keys of these points",
        problem,
        secondary=[Label(layout.distinct, "declared here")],
    )
    return False


def repeats(key: Scalar, fan_out: Sequence[DomainIndex]) -> Scalar:
    """How many points of the segment before this one have its ``key``; 0 if that is -1."""
    number: Scalar = NONE
    for index in fan_out:
        number = BinaryOp("+", BinaryOp("*", number, index.extent), IndexRef(index.name))
    found: Scalar = NONE
    names = [index.name for index in fan_out]
    for place, values in enumerate(list(product(*map(range, _sizes(fan_out))))[:-1]):
        other = substitute(key, dict(zip(names, map(Const, values), strict=True)))
        differs = BinaryOp("max", BinaryOp("-", key, other), BinaryOp("-", other, key))
        is_same = BinaryOp("-", ONE, BinaryOp("min", differs, ONE))
        is_before = _is_above_0(BinaryOp("-", number, Const(place)))
        found = BinaryOp("+", found, BinaryOp("*", is_before, is_same))
    return BinaryOp("*", _is_above_0(BinaryOp("+", key, ONE)), found)


def _sizes(fan_out: Sequence[DomainIndex]) -> list[int]:
    return [index.extent.value for index in fan_out if isinstance(index.extent, Const)]


def _is_above_0(count: Scalar) -> Scalar:
    """1 or 0."""
    return BinaryOp("min", BinaryOp("max", count, NONE), ONE)
