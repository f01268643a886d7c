"""What is seen of scalars quickly, whatever indices and run-time extents are.

Scalars are brought into a normal form: a polynomial with integer coefficients over *atoms*, which
are indices, run-time extents, loads, remainders and divisions that do not come out even. Every atom
is known to be at least zero; indices, ``rank`` and remainders are also bounded. A fact that cannot
be shown counts as false.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import TypeAlias

from fuscoc.lang.checked import BinaryOp, Const, ExtentRef, IndexRef, Scalar, Subscript
from fuscoc.lang.scalars import indices, is_routed, may_be_negative

Polynomial: TypeAlias = dict[tuple[Scalar, ...], int]
MAX_TERMS = 256
FLOORS = ("/", "//")
MAX_BOUNDED = 8  # terms of a sum whose minima are looked into
# In a dividend: times an index it stays within the 64 bits that a quotient depends on.
MAX_FACTOR = 2**31


def constant_difference(a: Scalar, b: Scalar) -> int | None:
    """``a - b`` if that is the same number whatever the indices and inputs are."""
    difference = minus(normal(a), normal(b))
    return difference.get((), 0) if not difference.keys() - {()} else None


def stays_inside(
    start: Scalar, length: int, dim: Scalar, index_extents: Mapping[str, Scalar]
) -> bool:
    """Whether ``0 <= start`` and ``start + length <= dim`` hold for all values of the indices.

    ``dim`` is an extent, so that its divisions leave no remainder.
    """
    if isinstance(start, BinaryOp) and start.op in FLOORS and length == 1:
        if not _cannot_wrap(normal(start.lhs)):
            return False
        whole: Scalar = BinaryOp("*", start.rhs, dim)  # x / q < dim where x < q * dim
        if isinstance(dim, BinaryOp) and dim.op == "/" and dim.rhs == start.rhs:
            whole = dim.lhs
        return stays_inside(start.lhs, 1, whole, index_extents)
    polynomial = normal(start)
    ends = {name: of_some(extent) for name, extent in index_extents.items()}
    least = extreme(polynomial, ends, largest=False)
    most = extreme(polynomial, ends, largest=True)
    if least is None or most is None:
        return False
    slack = minus(minus(normal(dim), most), {(): length})
    return is_natural(least) and is_natural(slack)


def never_negative(
    scalar: Scalar, index_extents: Mapping[str, Scalar], sizes: Container[str]
) -> bool:
    """Whether a value is seen to be at least zero, whatever the indices and extents are."""
    if not may_be_negative(scalar, sizes):
        return True
    if is_routed(scalar, sizes):
        return False
    polynomial = normal(scalar)
    ends = {name: of_some(extent) for name, extent in index_extents.items()}
    least = extreme(polynomial, ends, largest=False)
    return is_natural(polynomial) or (least is not None and is_natural(least))


def are_disjoint(subscripts: Sequence[Subscript], source_indices: Sequence[str]) -> bool:
    """Whether different values of the indices always name different cells.

    Shown for subscripts of one index each, ``a * i + c`` with ``a`` no less than the run's length.
    """
    separated = set()
    for subscript in subscripts:
        polynomial = normal(subscript.start)
        variable = {term: factor for term, factor in polynomial.items() if term != ()}
        if len(variable) == 1:
            ((term, factor),) = variable.items()
            if len(term) == 1 and isinstance(term[0], IndexRef):
                step = 1 if subscript.length is None else subscript.length
                if factor >= step:
                    separated.add(term[0].name)
    return separated >= set(source_indices)


def normal(scalar: Scalar) -> Polynomial:
    match scalar:
        case Const(value=value):
            return {(): value} if value else {}
        case BinaryOp(op="+", lhs=lhs, rhs=rhs):
            return plus(normal(lhs), normal(rhs))
        case BinaryOp(op="-", lhs=lhs, rhs=rhs):
            return minus(normal(lhs), normal(rhs))
        case BinaryOp(op="*", lhs=lhs, rhs=rhs):
            a, b = normal(lhs), normal(rhs)
            return times(a, b) if len(a) * len(b) <= MAX_TERMS else {(scalar,): 1}
        case BinaryOp(op="/" | "//", lhs=lhs, rhs=Const(value=divisor)) if divisor > 0:
            a = normal(lhs)
            if all(factor % divisor == 0 for factor in a.values()) and _cannot_wrap(a):
                return {term: factor // divisor for term, factor in a.items()}
            return {(scalar,): 1}
        case _:
            return {(scalar,): 1}


def _cannot_wrap(dividend: Polynomial) -> bool:
    return all(abs(factor) < MAX_FACTOR for factor in dividend.values())


def plus(a: Polynomial, b: Polynomial) -> Polynomial:
    total = Counter(a)
    for term, factor in b.items():
        total[term] += factor
    return {term: factor for term, factor in total.items() if factor}


def minus(a: Polynomial, b: Polynomial) -> Polynomial:
    return plus(a, {term: -factor for term, factor in b.items()})


def times(a: Polynomial, b: Polynomial) -> Polynomial:
    product: Polynomial = {}
    for term_a, factor_a in a.items():
        for term_b, factor_b in b.items():
            term = tuple(sorted(term_a + term_b, key=repr))
            product = plus(product, {term: factor_a * factor_b})
    return product


RANK: Mapping[str, Scalar] = {"rank": ExtentRef("ranks")}


def of_some(extent: Scalar) -> Scalar:
    """The extent of an index that has a value; of an extent that may be 0, a lower bound.

    Where there is a value, the maximum of a number and 0 is the number.
    """
    match extent:
        case BinaryOp(op="max", lhs=lhs, rhs=Const(value=value)) if value <= 0:
            return of_some(lhs)
        case BinaryOp(op="max", lhs=Const(value=value), rhs=rhs) if value <= 0:
            return of_some(rhs)
        case BinaryOp(op="min", lhs=lhs, rhs=rhs):
            return BinaryOp("min", of_some(lhs), of_some(rhs))
        case BinaryOp(op="*", lhs=lhs, rhs=Const(value=value) as factor) if value > 0:
            return BinaryOp("*", of_some(lhs), factor)
    return extent


def extreme(
    polynomial: Polynomial, ends_of: Mapping[str, Scalar], *, largest: bool
) -> Polynomial | None:
    """A bound without bounded atoms: each is 0 or one below its end, whichever is worse.

    ``ends_of`` says of indices, and maybe of ``rank``, what they stay below.
    """
    bound: Polynomial = {}
    for term, factor in polynomial.items():
        ends = [(atom, end) for atom in term if (end := _end(atom, ends_of)) is not None]
        rest = tuple(atom for atom in term if all(atom != each for each, _ in ends))
        if len(ends) > 1 or any(
            isinstance(atom, BinaryOp) and (atom.op == "*" or indices(atom) or _subtracts(atom))
            for atom in rest
        ):
            return None  # not affine, too long a product to be multiplied out, maybe negative
        if not ends:
            bound = plus(bound, {term: factor})
        elif (factor > 0) == largest:
            last = minus(normal(ends[0][1]), {(): 1})
            bound = plus(bound, times({rest: factor}, last))
    return bound


def _subtracts(atom: Scalar) -> bool:
    """Whether an atom may be negative where no load is."""
    match atom:
        case BinaryOp(op="-"):
            return True
        case BinaryOp(op="max", lhs=lhs, rhs=rhs):
            return _subtracts(lhs) and _subtracts(rhs)
        case BinaryOp(lhs=lhs, rhs=rhs):
            return _subtracts(lhs) or _subtracts(rhs)
    return False


def _end(atom: Scalar, ends_of: Mapping[str, Scalar]) -> Scalar | None:
    """What an atom always stays below, if that is known and the same at every point."""
    match atom:
        case IndexRef(name=name) | ExtentRef(name=name) if name in ends_of:
            return ends_of[name]
        case BinaryOp(op="%", rhs=divisor) if not indices(divisor):
            return divisor
    return None


def is_natural(polynomial: Polynomial) -> bool:
    """Whether a polynomial is never negative, where a minimum is at most what it is of, and a
    maximum at least that.

    ``rank`` is bounded last: what an uneven part has on a rank depends on it.
    """
    for term, factor in polynomial.items() if len(polynomial) <= MAX_BOUNDED else ():
        for atom in term:
            bounds = _bounds(atom, factor)
            if bounds:
                rest = {t: f for t, f in polynomial.items() if t != term}
                others = {without(term, atom): factor}
                return any(is_natural(plus(rest, times(others, normal(each)))) for each in bounds)
    if _never_negative(polynomial):
        return True
    least = extreme(polynomial, RANK, largest=False)
    return least is not None and _never_negative(least)


def _bounds(atom: Scalar, factor: int) -> list[Scalar]:
    """What to put in place of an atom that is no less, or no more for a negative ``factor``."""
    if factor > 0:
        least = of_some(atom)
        return [] if least == atom else [least]
    match atom:
        case BinaryOp(op="min", lhs=lhs, rhs=rhs):
            return [lhs, rhs]
        case BinaryOp(op="%", lhs=lhs) if not _subtracts(lhs):
            return [lhs]
    return []


def _never_negative(polynomial: Polynomial) -> bool:
    """Whether no coefficient is, where ``q * (x / q)`` and ``x / q`` are ``x`` at the most.

    For a constant ``q``, ``a * (x / q)`` is ``ceil(a / q) * x`` at the most.
    """
    for term, factor in polynomial.items():
        for atom in term if factor < 0 else ():
            match atom:
                case BinaryOp(op="/" | "//", lhs=lhs, rhs=divisor):
                    others, share = without(term, atom), factor
                    if isinstance(divisor, Const):
                        share = factor // divisor.value
                    elif divisor in others:
                        others = without(others, divisor)
                    rest = {t: f for t, f in polynomial.items() if t != term}
                    most = times({others: share}, normal(lhs))
                    return _never_negative(plus(rest, most))
    return all(factor >= 0 for factor in polynomial.values())


def without(term: tuple[Scalar, ...], atom: Scalar) -> tuple[Scalar, ...]:
    """A product without one of its factors."""
    position = term.index(atom)
    return term[:position] + term[position + 1 :]
