"""Divisions that have to be right before a kernel runs: divisors positive, extents even."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fuscoc_runtime.errors import DivisorError, InexactDivisionError
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.scalar import (
    DIVISIONS,
    BinaryOp,
    Index,
    Load,
    Scalar,
    Scope,
    evaluate,
    render,
    subexpressions,
)


def check_divisions(shuffle: ShuffleSpec, rank: int, extents: Mapping[str, int]) -> None:
    """Check all divisions of a shuffle that depend on nothing but this rank's extents.

    Every divisor must be positive. In the extent of an index or of a dimension, a division must
    also leave no remainder; where extents are ragged, the extents kernel sees to that.

    Raises:
        DivisorError, InexactDivisionError: naming the expression.
    """
    check_divisors([*size_scalars(shuffle), *_places(shuffle)], rank, extents)
    scope = Scope(extents)
    for part in _divisions(size_scalars(shuffle)):
        if part.op != "/" or not _known(part):
            continue
        value, divisor = evaluate(part.lhs, scope), evaluate(part.rhs, scope)
        if value % divisor:
            raise InexactDivisionError(rank, None, None, render(part.lhs), value, divisor)


def check_divisors(scalars: Iterable[Scalar], rank: int, extents: Mapping[str, int]) -> None:
    """Check that every divisor in ``scalars`` is positive with this rank's extents.

    Raises:
        DivisorError: naming the divisor.
    """
    scope = Scope(extents)
    for part in _divisions(scalars):
        divisor = part.rhs if isinstance(part.rhs, int) else evaluate(part.rhs, scope)
        if divisor <= 0:
            raise DivisorError(rank, render(part.rhs), divisor)


def size_scalars(shuffle: ShuffleSpec) -> list[Scalar]:
    """Extents of the domain, of the layouts and of the inputs."""
    sizes = [*(index.extent for index in shuffle.declared.domain), *shuffle.declared.source.dims]
    sizes += [size for each in shuffle.declared.inputs for size in each.shape]
    return (
        [*sizes, shuffle.declared.target.length]
        if shuffle.declared.target.kind == "dense"
        else sizes
    )


def _places(shuffle: ShuffleSpec) -> list[Scalar]:
    """What is computed at every point."""
    starts = [subscript.start for subscript in shuffle.declared.source.subscripts]
    target = shuffle.declared.target
    if target.kind == "packed":
        return [*starts, target.key]
    return [*starts, target.slot, target.rank]


def _divisions(scalars: Iterable[Scalar]) -> Iterator[BinaryOp]:
    """Every division and remainder, those inside others first."""
    for scalar in scalars:
        for part in reversed(list(subexpressions(scalar))):
            if isinstance(part, BinaryOp) and part.op in DIVISIONS:
                yield part


def _known(scalar: Scalar) -> bool:
    """Whether the extents alone give the value."""
    return not any(isinstance(part, Index | Load) for part in subexpressions(scalar))
