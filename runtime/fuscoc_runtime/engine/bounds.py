"""Places that the compiler could not prove to exist, tried before a kernel runs."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from fuscoc_runtime.errors import IndexOutOfRangeError
from fuscoc_runtime.manifest.declared import Bound
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan.flows import Int64Array
from fuscoc_runtime.scalar import (
    BinaryOp,
    Extent,
    Index,
    Operator,
    Scalar,
    Scope,
    builtin_extents,
    evaluate,
    render,
    subexpressions,
)

CHUNK = 1 << 20
"""Points that are tried at once."""

OPERATORS: Mapping[Operator, Callable[[Int64Array, Int64Array], Int64Array]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": np.minimum,
    "max": np.maximum,
    "cdiv": lambda lhs, rhs: -(-lhs // rhs),
}


def check_bounds(shuffle: ShuffleSpec, rank: int, extents: Mapping[str, int]) -> None:
    """Check the bounds of a shuffle that ``extents`` decide, at all values of their indices.

    Divisors are positive: ``check_divisions`` comes before.

    Raises:
        IndexOutOfRangeError: naming the expression.
    """
    for bound in shuffle.declared.bounds:
        if extents_of(bound, shuffle) <= extents.keys():
            _check(shuffle, bound, rank, extents)


def check_bounds_of_all(shuffle: ShuffleSpec, num_ranks: int) -> None:
    """Check what the number of ranks decides, for every rank: all of them raise, or none.

    Raises:
        IndexOutOfRangeError: naming the expression.
    """
    for rank in range(num_ranks if shuffle.declared.bounds else 0):
        check_bounds(shuffle, rank, builtin_extents(rank, num_ranks))


def _check(shuffle: ShuffleSpec, bound: Bound, rank: int, extents: Mapping[str, int]) -> None:
    for indices in _points(shuffle, bound, extents):
        value = values_of(bound.value, extents, indices)
        limit = values_of(bound.limit, extents, indices)
        wrong = (value < 0) | (value >= limit)
        if wrong.any():
            first = int(wrong.argmax())
            found, end = (int(np.broadcast_to(each, wrong.shape)[first]) for each in (value, limit))
            raise IndexOutOfRangeError(render(bound.value), rank, (), found, 0, end - 1)


def _points(
    shuffle: ShuffleSpec, bound: Bound, extents: Mapping[str, int]
) -> Iterator[dict[str, Int64Array]]:
    """Values of the indices that a bound depends on, int64 [points] each."""
    used = {part.name for part in _parts(bound) if isinstance(part, Index)}
    sizes = {
        index.name: evaluate(index.extent, Scope(extents))
        for index in shuffle.declared.domain
        if index.name in used
    }
    total = math.prod(sizes.values()) if all(size > 0 for size in sizes.values()) else 0
    for first in range(0, total, CHUNK):
        rest = np.arange(first, min(first + CHUNK, total))
        indices = {}
        for name, size in reversed(sizes.items()):
            indices[name], rest = rest % size, rest // size
        yield indices


def extents_of(bound: Bound, shuffle: ShuffleSpec) -> set[str]:
    """The run-time extents that a bound depends on, itself or by its indices."""
    used = {part.name for part in _parts(bound) if isinstance(part, Index)}
    sizes = [index.extent for index in shuffle.declared.domain if index.name in used]
    every = [*_parts(bound), *(part for size in sizes for part in subexpressions(size))]
    return {part.name for part in every if isinstance(part, Extent)}


def _parts(bound: Bound) -> list[Scalar]:
    return [*subexpressions(bound.value), *subexpressions(bound.limit)]


def values_of(
    scalar: Scalar, extents: Mapping[str, int], indices: Mapping[str, Int64Array]
) -> Int64Array:
    """A scalar that loads no input, at many ``indices`` at once, int64 [points] each; as many, or
    [1] where it depends on no index. Divisors are positive."""
    match scalar:
        case int():
            return np.array([scalar], np.int64)
        case Index(name):
            return indices[name]
        case Extent(name):
            return np.array([extents[name]], np.int64)
        case BinaryOp(op, lhs, rhs):
            operands = (values_of(each, extents, indices) for each in (lhs, rhs))
            return OPERATORS[op](*operands)
    raise ValueError(f"{render(scalar)} is known to no host")
