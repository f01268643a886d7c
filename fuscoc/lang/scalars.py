"""Questions about checked scalars: what they depend on, and what can be proved about them.


Scalars are brought into a normal form: a polynomial with integer coefficients over *atoms*, which
are indices, run-time extents, loads, remainders and divisions that do not come out even. Every atom
is known to be at least zero; indices, ``rank`` and remainders are also bounded. A fact that cannot
be shown counts as false.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import TypeAlias

from fuscoc.lang.checked import (
    BinaryOp,
    Const,
    ExtentRef,
    IndexRef,
    Inside,
    Load,
    Operator,
    Scalar,
    Subscript,
)


def _cdiv(lhs: int, rhs: int) -> int:
    return -(-lhs // rhs)


OPERATORS: dict[Operator, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": min,
    "max": max,
    "cdiv": _cdiv,
}


def parts(scalar: Scalar) -> Iterator[Scalar]:
    """The scalar and every scalar inside it, outermost first."""
    yield scalar
    match scalar:
        case BinaryOp(lhs=lhs, rhs=rhs):
            yield from parts(lhs)
            yield from parts(rhs)
        case Load(at=at):
            for subscript in at:
                yield from parts(subscript)
        case Inside(value=value, limit=limit):
            yield from parts(value)
            yield from parts(limit)


def depth(scalar: Scalar) -> int:
    """How deeply a scalar nests; a number or an index is 1."""
    match scalar:
        case BinaryOp(lhs=lhs, rhs=rhs):
            return 1 + max(depth(lhs), depth(rhs))
        case Load(at=at):
            return 1 + max(map(depth, at))
        case Inside(value=value, limit=limit):
            return max(depth(value), depth(limit))
    return 1


def loads(scalar: Scalar) -> list[Load]:
    """The input elements that the scalar depends on."""
    return [part for part in parts(scalar) if isinstance(part, Load)]


def indices(scalar: Scalar) -> list[str]:
    """The domain indices that the scalar depends on, as often as they occur."""
    return [part.name for part in parts(scalar) if isinstance(part, IndexRef)]


def extents(scalar: Scalar) -> list[str]:
    """The run-time extents that the scalar depends on."""
    return [part.name for part in parts(scalar) if isinstance(part, ExtentRef)]


def may_be_negative(scalar: Scalar, sizes: Container[str]) -> bool:
    """Whether the value could be below zero for some inputs; indices and ``sizes`` never are."""
    match scalar:
        case Const(value=value):
            return value < 0
        case IndexRef() | ExtentRef():
            return False
        case Load(input=input, at=at):
            return input not in sizes or any(may_be_negative(each, sizes) for each in at)
        case BinaryOp(op="-"):
            return True
        case BinaryOp(op="max", lhs=lhs, rhs=rhs):
            return may_be_negative(lhs, sizes) and may_be_negative(rhs, sizes)
        case BinaryOp(lhs=lhs, rhs=rhs):
            return may_be_negative(lhs, sizes) or may_be_negative(rhs, sizes)
        case Inside(value=value, limit=limit):
            return may_be_negative(value, sizes) or may_be_negative(limit, sizes)


def is_routed(scalar: Scalar, sizes: Container[str]) -> bool:
    """Whether the value comes from a route; ``sizes`` are the inputs that are none."""
    return any(load.input not in sizes for load in loads(scalar))


def substitute(scalar: Scalar, values: Mapping[str, Scalar]) -> Scalar:
    """The scalar with values put in place of indices."""
    match scalar:
        case IndexRef(name=name):
            return values.get(name, scalar)
        case Load(input=input, at=at):
            return Load(input, tuple(substitute(subscript, values) for subscript in at))
        case BinaryOp(op=op, lhs=lhs, rhs=rhs):
            return BinaryOp(op, substitute(lhs, values), substitute(rhs, values))
        case Inside(value=value, limit=limit):
            return Inside(substitute(value, values), substitute(limit, values))
        case Const() | ExtentRef():
            return scalar


def on_rank(scalar: Scalar, rank: Scalar) -> Scalar:
    """The scalar as another rank than the executing one has it."""
    match scalar:
        case ExtentRef(name="rank"):
            return rank
        case Load(input=input, at=at):
            return Load(input, tuple(on_rank(subscript, rank) for subscript in at))
        case BinaryOp(op=op, lhs=lhs, rhs=rhs):
            return BinaryOp(op, on_rank(lhs, rank), on_rank(rhs, rank))
        case Inside(value=value, limit=limit):
            return Inside(on_rank(value, rank), on_rank(limit, rank))
        case Const() | IndexRef() | ExtentRef():
            return scalar


Polynomial: TypeAlias = dict[tuple[Scalar, ...], int]
MAX_TERMS = 256
FLOORS = ("/", "//")
MAX_BOUNDED = 8  # terms of a sum whose minima are looked into
# In a dividend: times an index it stays within the 64 bits that a quotient depends on.
MAX_FACTOR = 2**31


def constant_difference(a: Scalar, b: Scalar) -> int | None:
    """``a - b`` if that is the same number whatever the indices and inputs are."""
    difference = _minus(_polynomial(a), _polynomial(b))
    return difference.get((), 0) if not difference.keys() - {()} else None


def stays_inside(
    start: Scalar, length: int, dim: Scalar, index_extents: Mapping[str, Scalar]
) -> bool:
    """Whether ``0 <= start`` and ``start + length <= dim`` hold for all values of the indices.

    ``dim`` is an extent, so that its divisions leave no remainder.
    """
    if isinstance(start, BinaryOp) and start.op in FLOORS and length == 1:
        if not _cannot_wrap(_polynomial(start.lhs)):
            return False
        whole: Scalar = BinaryOp("*", start.rhs, dim)  # x / q < dim where x < q * dim
        if isinstance(dim, BinaryOp) and dim.op == "/" and dim.rhs == start.rhs:
            whole = dim.lhs
        return stays_inside(start.lhs, 1, whole, index_extents)
    polynomial = _polynomial(start)
    ends = {name: _of_some(extent) for name, extent in index_extents.items()}
    least = _extreme(polynomial, ends, largest=False)
    most = _extreme(polynomial, ends, largest=True)
    if least is None or most is None:
        return False
    slack = _minus(_minus(_polynomial(dim), most), {(): length})
    return _is_natural(least) and _is_natural(slack)


def never_negative(
    scalar: Scalar, index_extents: Mapping[str, Scalar], sizes: Container[str]
) -> bool:
    """Whether a value is seen to be at least zero, whatever the indices and extents are."""
    if not may_be_negative(scalar, sizes):
        return True
    if is_routed(scalar, sizes):
        return False
    polynomial = _polynomial(scalar)
    ends = {name: _of_some(extent) for name, extent in index_extents.items()}
    least = _extreme(polynomial, ends, largest=False)
    return _is_natural(polynomial) or (least is not None and _is_natural(least))


def are_disjoint(subscripts: Sequence[Subscript], source_indices: Sequence[str]) -> bool:
    """Whether different values of the indices always name different cells.

    Shown for subscripts of one index each, ``a * i + c`` with ``a`` no less than the run's length.
    """
    separated = set()
    for subscript in subscripts:
        polynomial = _polynomial(subscript.start)
        variable = {term: factor for term, factor in polynomial.items() if term != ()}
        if len(variable) == 1:
            ((term, factor),) = variable.items()
            if len(term) == 1 and isinstance(term[0], IndexRef):
                step = 1 if subscript.length is None else subscript.length
                if factor >= step:
                    separated.add(term[0].name)
    return separated >= set(source_indices)


def _polynomial(scalar: Scalar) -> Polynomial:
    match scalar:
        case Const(value=value):
            return {(): value} if value else {}
        case BinaryOp(op="+", lhs=lhs, rhs=rhs):
            return _plus(_polynomial(lhs), _polynomial(rhs))
        case BinaryOp(op="-", lhs=lhs, rhs=rhs):
            return _minus(_polynomial(lhs), _polynomial(rhs))
        case BinaryOp(op="*", lhs=lhs, rhs=rhs):
            a, b = _polynomial(lhs), _polynomial(rhs)
            return _times(a, b) if len(a) * len(b) <= MAX_TERMS else {(scalar,): 1}
        case BinaryOp(op="/" | "//", lhs=lhs, rhs=Const(value=divisor)) if divisor > 0:
            a = _polynomial(lhs)
            if all(factor % divisor == 0 for factor in a.values()) and _cannot_wrap(a):
                return {term: factor // divisor for term, factor in a.items()}
            return {(scalar,): 1}
        case _:
            return {(scalar,): 1}


def _cannot_wrap(dividend: Polynomial) -> bool:
    return all(abs(factor) < MAX_FACTOR for factor in dividend.values())


def _plus(a: Polynomial, b: Polynomial) -> Polynomial:
    total = Counter(a)
    for term, factor in b.items():
        total[term] += factor
    return {term: factor for term, factor in total.items() if factor}


def _minus(a: Polynomial, b: Polynomial) -> Polynomial:
    return _plus(a, {term: -factor for term, factor in b.items()})


def _times(a: Polynomial, b: Polynomial) -> Polynomial:
    product: Polynomial = {}
    for term_a, factor_a in a.items():
        for term_b, factor_b in b.items():
            term = tuple(sorted(term_a + term_b, key=repr))
            product = _plus(product, {term: factor_a * factor_b})
    return product


RANK: Mapping[str, Scalar] = {"rank": ExtentRef("ranks")}


def _of_some(extent: Scalar) -> Scalar:
    """The extent of an index that has a value; of an extent that may be 0, a lower bound.

    Where there is a value, the maximum of a number and 0 is the number.
    """
    match extent:
        case BinaryOp(op="max", lhs=lhs, rhs=Const(value=value)) if value <= 0:
            return _of_some(lhs)
        case BinaryOp(op="max", lhs=Const(value=value), rhs=rhs) if value <= 0:
            return _of_some(rhs)
        case BinaryOp(op="min", lhs=lhs, rhs=rhs):
            return BinaryOp("min", _of_some(lhs), _of_some(rhs))
        case BinaryOp(op="*", lhs=lhs, rhs=Const(value=value) as factor) if value > 0:
            return BinaryOp("*", _of_some(lhs), factor)
    return extent


def _extreme(
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
            bound = _plus(bound, {term: factor})
        elif (factor > 0) == largest:
            last = _minus(_polynomial(ends[0][1]), {(): 1})
            bound = _plus(bound, _times({rest: factor}, last))
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


def _is_natural(polynomial: Polynomial) -> bool:
    """Whether a polynomial is never negative, where a minimum is at most what it is of, and a
    maximum at least that.

    ``rank`` is bounded last: what an uneven part has on a rank depends on it.
    """
    for term, factor in polynomial.items() if len(polynomial) <= MAX_BOUNDED else ():
        for atom in term:
            bounds = _bounds(atom, factor)
            if bounds:
                rest = {t: f for t, f in polynomial.items() if t != term}
                others = {_without(term, atom): factor}
                return any(
                    _is_natural(_plus(rest, _times(others, _polynomial(each)))) for each in bounds
                )
    if _never_negative(polynomial):
        return True
    least = _extreme(polynomial, RANK, largest=False)
    return least is not None and _never_negative(least)


def _bounds(atom: Scalar, factor: int) -> list[Scalar]:
    """What to put in place of an atom that is no less, or no more for a negative ``factor``."""
    if factor > 0:
        least = _of_some(atom)
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
                    others, share = _without(term, atom), factor
                    if isinstance(divisor, Const):
                        share = factor // divisor.value
                    elif divisor in others:
                        others = _without(others, divisor)
                    rest = {t: f for t, f in polynomial.items() if t != term}
                    most = _times({others: share}, _polynomial(lhs))
                    return _never_negative(_plus(rest, most))
    return all(factor >= 0 for factor in polynomial.values())


def _without(term: tuple[Scalar, ...], atom: Scalar) -> tuple[Scalar, ...]:
    """A product without one of its factors."""
    position = term.index(atom)
    return term[:position] + term[position + 1 :]
