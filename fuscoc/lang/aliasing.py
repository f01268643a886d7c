"""Memory of the caller's that a dispatch reads as well: a row that goes where a segment lies."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product

from fuscoc.lang.checked import (
    RANK,
    RANKS,
    DenseTarget,
    DomainIndex,
    ExtentRef,
    IndexRef,
    Inside,
    Scalar,
    Subscript,
)
from fuscoc.lang.dispatch import Path
from fuscoc.lang.proof import at, described
from fuscoc.lang.scalars import extents, loads, parts

SIZE = 2  # of what only calls know
MOST_POINTS = 256

Values = dict[Scalar, int]


def shared_cell(sends: Path, keeps: Path, num_dims: int) -> str | None:
    """A segment of ``sends`` and a row that ``keeps`` puts where it lies, in words; None if a few
    points on one rank, with inputs that are 0, have none. Rows have slots of ``num_dims``."""
    assert isinstance(keeps.target, DenseTarget)
    starts = [each.start for each in sends.source.subscripts]
    given = _given([*starts, *sends.source.dims], sends) | _given([keeps.target.slot], keeps)
    dims = [_value(each, given) for each in sends.source.dims]
    if None in dims:
        return None
    read: dict[tuple[int, ...], Values] = {}
    own = sends.domain[: sends.num_source_dims]
    for here in _points(own, given):
        for cell in _cells(sends.source.subscripts, here):
            read.setdefault(cell, here)
    for here in _points(keeps.domain, given):
        place = _value(keeps.target.slot, here)
        if place is None:
            return None
        cell = _unravelled(place, [each or 1 for each in dims])
        if cell in read:
            segment = _named(own, read[cell])
            slot = _named(keeps.domain[:num_dims], here)
            where = described({each: given[each] for each in given if each != RANK})
            return f"{where}: the segment {segment} is read at {[*cell]}, where the row {slot} goes"
    return None


def _given(scalars: list[Scalar], path: Path) -> Values:
    """Small values of all that scalars of a path depend on, but for its indices."""
    every = [*scalars, *(index.extent for index in path.domain)]
    values: Values = {ExtentRef(name): SIZE for each in every for name in extents(each)}
    values |= {load: 0 for each in every for load in loads(each)}
    return values | {RANK: 0, RANKS: 1}


def _points(domain: tuple[DomainIndex, ...], given: Values) -> Iterator[Values]:
    sizes = [_value(index.extent, given) or 0 for index in domain]
    names = [IndexRef(index.name) for index in domain]
    for point in islice(product(*map(range, sizes)), MOST_POINTS):
        yield {**given, **dict(zip(names, point, strict=True))}


def _cells(subscripts: tuple[Subscript, ...], here: Values) -> Iterator[tuple[int, ...]]:
    starts = [_value(each.start, here) for each in subscripts]
    lengths = [each.length or 1 for each in subscripts]
    ranges = [range(s, s + n) for s, n in zip(starts, lengths, strict=True) if s is not None]
    if len(ranges) == len(starts):
        yield from islice(product(*ranges), MOST_POINTS)


def _value(scalar: Scalar, values: Values) -> int | None:
    looked_up: Values = {}
    for part in parts(scalar):
        if isinstance(part, Inside) and (value := at(part.value, values)) is not None:
            looked_up[part] = value
    return at(scalar, {**values, **looked_up})


def _unravelled(place: int, dims: list[int]) -> tuple[int, ...]:
    cell = list[int]()
    for size in reversed(dims):
        place, rest = divmod(place, size)
        cell.insert(0, rest)
    return tuple(cell)


def _named(domain: tuple[DomainIndex, ...], here: Values) -> str:
    names = ", ".join(index.name for index in domain)
    return f"({names}) = ({', '.join(str(here[IndexRef(index.name)]) for index in domain)})"
