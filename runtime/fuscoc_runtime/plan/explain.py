"""Why a relation failed, in the user's terms: evaluated again, one point, on the host."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain

from fuscoc_runtime.arrays import Array
from fuscoc_runtime.errors import (
    IndexOutOfRangeError,
    InexactDivisionError,
    InputError,
    SourceOverlapError,
)
from fuscoc_runtime.manifest.declared import Declared, DomainIndex
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan.types import PlanContext, Points
from fuscoc_runtime.scalar import (
    BinaryOp,
    Index,
    Load,
    Scalar,
    Scope,
    evaluate,
    render,
    render_product,
    subexpressions,
)


def explain_index(
    ctx: PlanContext, points: Points, point: int
) -> IndexOutOfRangeError | InputError:
    """The error of a domain point whose key (packed) or rank (dense) is out of range, or what these
    or the source are looked up by, or whose key another point of its segment has."""
    declared, scope = ctx.shuffle.declared, Scope(points.extents, points.inputs)
    scope = scope.at(coordinates(declared.domain, scope, point))
    missing = explain_place(declared, ctx.rank, scope)
    if missing is not None:
        return missing
    if declared.target.kind == "packed":
        target = declared.target
        if target.distinct and 0 <= (key := evaluate(target.key, scope)) < target.num_keys:
            named = render(target.key, scope.indices)
            problem = f"is {key}, as for another point of its segment, and keys are `distinct`"
            return InputError(named, ctx.rank, problem)
        return _out_of_range(target.key, ctx.rank, scope, target.num_keys - 1)
    return _out_of_range(declared.target.rank, ctx.rank, scope, ctx.topology.num_ranks - 1)


def explain_overlap(ctx: PlanContext, cell: int, first: int, second: int) -> SourceOverlapError:
    """The error of two source segments that begin with one cell."""
    layout = ctx.shuffle.declared.source.layout
    return SourceOverlapError(ctx.rank, layout, cell, first, second)


def explain_place(declared: Declared, rank: int, scope: Scope) -> IndexOutOfRangeError | None:
    """The error of what does not exist and is looked up at the point of ``scope``, if anything."""
    for place in declared.places:
        limit = evaluate(place.limit, scope)
        if not 0 <= evaluate(place.value, scope) < limit:
            return _out_of_range(place.value, rank, scope, limit - 1)
    return None


def _out_of_range(scalar: Scalar, rank: int, scope: Scope, highest: int) -> IndexOutOfRangeError:
    value = evaluate(scalar, scope)
    if isinstance(scalar, Load):
        at = tuple(evaluate(index, scope) for index in scalar.at)
        return IndexOutOfRangeError(scalar.input, rank, at, value, -1, highest)
    computed = scalar.name if isinstance(scalar, Index) else render(scalar, scope.indices)
    return IndexOutOfRangeError(computed, rank, (), value, -1, highest)


def explain_extents(
    shuffle: ShuffleSpec,
    rank: int,
    inputs: Mapping[str, Array],
    extents: Mapping[str, int],
    outer: int,
) -> InexactDivisionError | InputError:
    """The error of an outer index at which a size that inputs say is negative, a division leaves a
    remainder, or there are more points or cells than kernels can count.
    """
    index = shuffle.declared.domain[0].name
    scope = Scope(extents, inputs, {index: outer})
    inner = [each.extent for each in shuffle.declared.domain[1:]]
    products = [inner, list(shuffle.declared.source.dims[1:])]
    sizes = list(chain(*products))
    for scalar in chain.from_iterable(map(subexpressions, sizes)):
        if isinstance(scalar, Load) and evaluate(scalar, scope) < 0:
            return InputError(scalar.input, rank, "has a negative size")
    for size in sizes:
        for scalar in subexpressions(size):
            if isinstance(scalar, BinaryOp) and scalar.op == "/":
                value, divisor = evaluate(scalar.lhs, scope), evaluate(scalar.rhs, scope)
                if value % divisor:
                    dividend = render(scalar.lhs)
                    return InexactDivisionError(rank, index, outer, dividend, value, divisor)
    for size in sizes:
        value = evaluate(size, scope)
        if value < 0:
            return InputError(render(size), rank, f"is {value} at {index} = {outer}: no size")
    # Kernels count whatever is on the way to a size, too, such as what `min` is taken of.
    counted = [[part] for size in sizes for part in subexpressions(size)]
    counted += [each[:end] for each in products for end in range(2, len(each) + 1)]
    found = [math.prod(evaluate(factor, scope) for factor in each) for each in counted]
    most = max(found, key=abs)
    names = render_product(counted[found.index(most)])
    problem = f"is {most} at {index} = {outer}: more than kernels can count"
    return InputError(names, rank, problem)


def coordinates(domain: Sequence[DomainIndex], scope: Scope, point: int) -> dict[str, int]:
    """The domain indices of a domain point; only the outermost one may change the other extents."""
    outer, *inner = domain
    for position in range(evaluate(outer.extent, scope)):
        here = scope.at({outer.name: position})
        extents = [evaluate(index.extent, here) for index in inner]
        size = math.prod(extents)
        if point < size:
            found = []
            for extent in reversed(extents):
                point, digit = divmod(point, extent)
                found.append(digit)
            names = (index.name for index in inner)
            return {outer.name: position, **dict(zip(names, reversed(found), strict=True))}
        point -= size
    raise IndexError("there is no domain point so far out")
