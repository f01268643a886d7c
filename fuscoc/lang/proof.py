"""Whether subscripts stay inside: proved, refuted with a counterexample, or checked by a run.

What ``algebra.py`` does not see, isl decides (``presburger.py``). Where the number
of ranks divides or multiplies what is not a number, it decides for some numbers of ranks: what is
wrong for one of them is refuted, and the rest is checked for the ranks that there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from math import lcm
from typing import TypeAlias

from fuscoc.lang import algebra
from fuscoc.lang.checked import BinaryOp, Const, ExtentRef, IndexRef, Load, Scalar, Subscript
from fuscoc.lang.scalars import OPERATORS, parts

NUM_RANKS = range(1, 9)
MULTIPLES = range(1, 4)  # of what the number of ranks is divided by
SIZES = (1, 2, 3, 5)  # of other extents that are not affine where they stand
MAX_CASES = 48


@dataclass(frozen=True)
class Facts:
    """What holds of every point that a run accepts.

    ``extents`` are those of the indices; ``checked`` are never negative, and their divisions come
    out even; inputs of ``sizes`` have no value below 0.
    """

    extents: Mapping[str, Scalar]
    checked: Sequence[Scalar]
    sizes: frozenset[str]


@dataclass(frozen=True)
class Refuted:
    """Values of indices, extents and sizes with which it does not hold; of two points, if it is
    about two."""

    values: Mapping[Scalar, int]
    others: Mapping[Scalar, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Proved:
    """It holds for whatever a run accepts."""


@dataclass(frozen=True)
class Unknown:
    """It holds for all that was tried."""


Verdict: TypeAlias = Proved | Refuted | Unknown


def stays_inside(start: Scalar, length: int, dim: Scalar, facts: Facts) -> Verdict:
    """Whether ``0 <= start`` and ``start + length <= dim`` hold at every point."""
    if algebra.stays_inside(start, length, dim, facts.extents):
        return Proved()
    from fuscoc.lang.presburger import System, TooHardError

    def decide(fixed: Mapping[str, int]) -> tuple[Verdict, System]:
        system = System(facts, fixed)
        first, end = system.text(start), system.text(dim)
        for each in (start, dim):
            system.positive_divisors(each)
        try:
            found = system.counterexample([f"{first} < 0", f"{first} + {length} > {end}"])
        except TooHardError:
            return Unknown(), system
        if found is None:
            return Proved(), system
        return Refuted(found) if system.is_exact else Unknown(), system

    verdict, system = decide({})
    if not isinstance(verdict, Unknown):
        return verdict
    for fixed in assignments(system.needs, facts):
        here, _ = decide(fixed)
        if isinstance(here, Refuted):
            return here
    return Unknown()


def are_apart(subscripts: Sequence[Subscript], own: Sequence[str], facts: Facts) -> Verdict:
    """Whether points that differ in an index of ``own`` always name different cells."""
    if algebra.are_disjoint(subscripts, own):
        return Proved()
    from fuscoc.lang.presburger import Pair, TooHardError

    pair = Pair(facts, {}, [IndexRef(name) for name in own])
    try:
        found = pair.clash([(each.start, each.length or 1) for each in subscripts])
    except TooHardError:
        return Unknown()
    if found is None:
        return Proved()
    is_exact = pair.first.is_exact and pair.second.is_exact
    return Refuted(*found) if is_exact else Unknown()


def assignments(names: set[str], facts: Facts) -> Iterator[dict[str, int]]:
    """Values of run-time extents, small ones first, and few of them."""
    if not names:
        return
    wanted = sorted(names | ({"ranks"} if "rank" in names else set()), key=_order)
    choices = [num_ranks(facts) if name == "ranks" else SIZES for name in wanted]
    if "rank" in wanted:
        choices[wanted.index("rank")] = list(range(max(NUM_RANKS)))
    cases = (dict(zip(wanted, values, strict=True)) for values in product(*choices))
    fitting = (each for each in cases if each.get("rank", -1) < each.get("ranks", MAX_CASES))
    yield from islice(fitting, MAX_CASES)


def _order(name: str) -> tuple[bool, bool, str]:
    return name != "ranks", name != "rank", name


def num_ranks(facts: Facts) -> list[int]:
    """Numbers of ranks, among them some that leave all divisions of theirs by numbers even."""
    divisors = [
        part.rhs.value
        for scalar in facts.checked
        for part in parts(scalar)
        if isinstance(part, BinaryOp)
        and part.op == "/"
        and part.lhs == ExtentRef("ranks")
        and isinstance(part.rhs, Const)
    ]
    step = lcm(*divisors)
    return sorted({*NUM_RANKS, *(step * each for each in MULTIPLES)})


def described(values: Mapping[Scalar, int]) -> str:
    """A counterexample in words: "on rank 1 of 4, where `i` is 3 and `tokens` 5"."""
    rank, ranks = values.get(ExtentRef("rank")), values.get(ExtentRef("ranks"))
    where = []
    if rank is not None:
        where.append(f"on rank {rank}" + (f" of {ranks}" if ranks is not None else ""))
    elif ranks is not None:
        where.append("on one rank" if ranks == 1 else f"on {ranks} ranks")
    named = [
        (_name(scalar), value)
        for scalar, value in values.items()
        if isinstance(scalar, IndexRef | ExtentRef | Load)
        and scalar not in (ExtentRef("rank"), ExtentRef("ranks"))
    ]
    if named:
        (name, value), *others = named
        listed = [f"`{name}` is {value}", *(f"`{name}` {value}" for name, value in others)]
        where.append("where " + (", ".join(listed[:-1]) + " and " if others else "") + listed[-1])
    return ", ".join(where)


def two_points(found: Refuted, names: Sequence[str]) -> str:
    """Two points in words: "(0, 1) and (0, 2), where `tokens` is 3,"."""
    ends = [
        f"({', '.join(str(each[IndexRef(name)]) for name in names)})"
        for each in (found.values, found.others)
    ]
    rest = {
        scalar: value
        for scalar, value in found.values.items()
        if scalar not in {IndexRef(name) for name in names}
    }
    where = described(rest)
    return " and ".join(ends) + (f", {where}," if where else "")


def _name(scalar: IndexRef | ExtentRef | Load) -> str:
    if not isinstance(scalar, Load):
        return scalar.name
    at = [each.name for each in scalar.at if isinstance(each, IndexRef)]
    return f"{scalar.input}({', '.join(at)})" if len(at) == len(scalar.at) else scalar.input


def at(scalar: Scalar, values: Mapping[Scalar, int]) -> int | None:
    """The value of a scalar at a counterexample, if that gives all that it depends on."""
    match scalar:
        case Const(value=value):
            return value
        case BinaryOp(op=op, lhs=lhs, rhs=rhs):
            left, right = at(lhs, values), at(rhs, values)
            return None if left is None or right is None else OPERATORS[op](left, right)
    return values.get(scalar)
