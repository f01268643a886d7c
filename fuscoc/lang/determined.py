"""What a few computed numbers tell: whether points can agree in them, and how many there are."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import reduce

from fuscoc.lang.algebra import (
    FLOORS,
    RANK,
    Polynomial,
    extreme,
    is_natural,
    minus,
    normal,
    of_some,
    plus,
    times,
    without,
)
from fuscoc.lang.checked import BinaryOp, Const, ExtentRef, IndexRef, Scalar
from fuscoc.lang.scalars import parts


def determines(
    values: Sequence[Scalar], wanted: Iterable[Scalar], index_extents: Mapping[str, Scalar]
) -> bool:
    """Whether ``values`` are seen to tell what ``wanted``, indices and ``rank``, are.

    A quotient and its remainder tell what was divided. A sum ``a * v + rest`` tells ``v`` and the
    rest, if that is at least 0 and below ``a``.
    """
    ends = {**{name: of_some(extent) for name, extent in index_extents.items()}, **RANK}
    told, sums = set(values), [normal(value) for value in values]
    grows = True
    while grows:
        grows = False
        for whole in _undivided(told):
            told.add(whole)
            sums.append(normal(whole))
            grows = True
        for each in list(sums):
            split = _split(each, told, ends)
            if split is not None:
                told.add(split[0])
                sums.append(split[1])
                grows = True
    return told >= set(wanted)


def are_as_many(points: Sequence[Scalar], slots: Sequence[Scalar]) -> bool:
    """Whether two products of extents, the same on every rank, are seen to be one number.

    Extents come out even.
    """
    if any(ExtentRef("rank") in parts(size) for size in (*points, *slots)):
        return False
    every = (normal(ExtentRef("ranks")), *map(normal, points)), map(normal, slots)
    of_points = reduce(times, every[0])
    of_slots = reduce(times, every[1], normal(ExtentRef("ranks")))
    return _undivided_terms(of_points) == _undivided_terms(of_slots)


def _undivided(told: set[Scalar]) -> list[Scalar]:
    return [
        part.lhs
        for part in told
        if isinstance(part, BinaryOp)
        and part.op in FLOORS
        and BinaryOp("%", part.lhs, part.rhs) in told
        and part.lhs not in told
    ]


def _split(
    value: Polynomial, told: Container[Scalar], ends: Mapping[str, Scalar]
) -> tuple[Scalar, Polynomial] | None:
    """An atom that a sum tells, and what is left of the sum then."""
    unknown = {
        term: factor for term, factor in value.items() if not all(_is_fixed(a, told) for a in term)
    }
    for atom in dict.fromkeys(atom for term in unknown for atom in term):
        if _is_fixed(atom, told):
            continue
        factor = {without(term, atom): f for term, f in unknown.items() if atom in term}
        rest = {term: f for term, f in unknown.items() if atom not in term}
        if not all(_is_fixed(each, told) for term in factor for each in term):
            continue
        if not rest and factor.keys() == {()}:
            return atom, {}
        least = extreme(rest, ends, largest=False)
        most = extreme(rest, ends, largest=True)
        if least is not None and most is not None and rest:
            room = minus(minus(factor, most), {(): 1})
            if is_natural(least) and is_natural(room):
                return atom, rest
    return None


def _is_fixed(atom: Scalar, told: Container[Scalar]) -> bool:
    """Whether an atom is the same at all points, or told."""
    return atom in told or not any(
        isinstance(part, IndexRef) or part == ExtentRef("rank") for part in parts(atom)
    )


def _undivided_terms(value: Polynomial) -> Polynomial:
    """A sum in which ``q * (x / q)`` is ``x``."""
    for term, factor in value.items():
        for atom in term:
            if isinstance(atom, BinaryOp) and atom.op == "/":
                others, divisor = without(term, atom), atom.rhs
                if divisor in others:
                    others = without(others, divisor)
                elif isinstance(divisor, Const) and factor % divisor.value == 0:
                    factor //= divisor.value
                else:
                    continue
                rest = {t: f for t, f in value.items() if t != term}
                return _undivided_terms(plus(rest, times({others: factor}, normal(atom.lhs))))
    return value
