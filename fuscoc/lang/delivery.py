"""Whether every segment has a slot of its own in a target that the spec computes, and every slot a
segment.

A run finds two segments in one slot by itself, and one that has no slot. Slots that stay empty on
some numbers of ranks are the room that parts of other sizes leave. So what holds for some and not
for others is left to a run; reported is what is wrong for all that were tried.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from fuscoc.lang import ast
from fuscoc.lang.algebra import stays_inside
from fuscoc.lang.checked import RANK, RANKS, Const, DomainIndex, IndexRef, Scalar
from fuscoc.lang.determined import are_as_many, determines
from fuscoc.lang.proof import Facts, at, num_ranks
from fuscoc.lang.scalars import extents, loads, may_be_negative, of_ranks, on_rank
from fuscoc.lang.scope import LayoutInfo, Scope

if TYPE_CHECKING:
    from fuscoc.lang.presburger import System

MAX_TRIED = 3  # numbers of ranks
MAY_FIT = 2  # ranks, on which most targets are seen to have all slots that segments go to
MANY_RANKS = (16, 64, 256, 1024)
"""On some of which there may be room for what fewer ranks have none for."""
EMPTY = "FSC037"
"""A slot without a segment, which a dispatch that is `partial` may have."""
WRONG = ("FSC034", "FSC059", EMPTY)
"""What can be wrong: a segment without a slot, two in one, and that."""


@dataclass(frozen=True)
class Delivery:
    """A point of ``domain`` goes to ``places`` of ``rank``, whose target has ``dims`` there.

    ``sizes`` are the target's extents as a rank has them. What has no place there is dropped where
    it ``is_clipped``.
    """

    domain: tuple[DomainIndex, ...]
    rank: Scalar
    places: tuple[Scalar, ...]
    dims: tuple[Scalar, ...]
    sizes: tuple[Scalar, ...]
    is_clipped: bool = False

    @property
    def scalars(self) -> list[Scalar]:
        return [self.rank, *self.places, *self.sizes, *(index.extent for index in self.domain)]

    @property
    def ends(self) -> list[tuple[Scalar, Scalar]]:
        """The rank and the places, each with what it must be below."""
        return [(self.rank, RANKS), *zip(self.places, self.dims, strict=True)]

    @property
    def own(self) -> list[Scalar]:
        """What tells the points of all ranks apart."""
        return [RANK, *(IndexRef(index.name) for index in self.domain)]

    @property
    def facts(self) -> Facts:
        sizes = {index.name: index.extent for index in self.domain}
        return Facts(sizes, [*sizes.values(), *self.sizes], frozenset())


@dataclass(frozen=True)
class Outcome:
    """What is wrong for some number of ranks: a code, if anything is, and a note about it. Of a
    segment without a slot, ``leaves`` is which number of the rank and the subscripts is wrong."""

    code: str | None
    note: str = ""
    leaves: int | None = None


def check_delivery(
    delivery: Delivery,
    dispatch: ast.Dispatch,
    layout: LayoutInfo,
    scope: Scope,
    *,
    codes: Collection[str] = WRONG,
) -> None:
    """Report segments without a slot, two in one, and slots without any: those of the ``codes``."""
    known = {name for scalar in delivery.scalars for name in extents(scalar)} <= {"rank", "ranks"}
    if not known or any(loads(scalar) for scalar in delivery.scalars):
        return
    if _is_bijective(delivery) and _fits(delivery, MAY_FIT):
        return
    from fuscoc.lang.presburger import TooHardError

    try:
        outcome = _agreed(delivery)
    except TooHardError:
        return
    if outcome.code is None or outcome.code not in codes:
        return
    name, span = layout.ident.name, dispatch.target.span
    message = {
        "FSC034": "a segment goes to a rank that does not exist",
        "FSC059": f"two segments go to one slot of `{name}`",
        EMPTY: f"no segment goes to some slots of `{name}`",
    }[outcome.code]
    if outcome.leaves == 0:
        span = next((each.span for each in dispatch.options if isinstance(each, ast.On)), span)
    elif outcome.leaves is not None:
        message = f"this leaves `{layout.dims[outcome.leaves - 1]}` of `{name}`"
    help = "say `partial` if they may hold anything" if outcome.code == EMPTY else None
    scope.sink.report(outcome.code, span, message, notes=[outcome.note], help=help)


def _agreed(delivery: Delivery) -> Outcome:
    """What is wrong with all numbers of ranks that were tried."""
    counts = [count for count in num_ranks(delivery.facts) if count > 1]
    outcomes, leaving = list[Outcome](), list[Outcome]()
    for count in counts:
        found = _tried(delivery, count)
        if found is not None:
            (outcomes if found.leaves is None else leaving).append(found)
        if len(outcomes) == MAX_TRIED:
            break
    if not outcomes and leaving and _always_leaves(delivery):
        return leaving[0]
    agreed = {outcome.code for outcome in outcomes}
    return outcomes[0] if len(agreed) == 1 else Outcome(None)


def _is_bijective(delivery: Delivery) -> bool:
    """Whether it is seen that all slots have one segment each, if no segment leaves the target."""
    sizes = delivery.facts.extents
    told = [delivery.rank, *delivery.places]
    return determines(told, delivery.own, sizes) and are_as_many(
        list(sizes.values()), delivery.sizes
    )


def _fits(delivery: Delivery, count: int) -> bool:
    """Whether it is seen that no segment leaves the target on so many ranks."""
    sizes: dict[str, Scalar] = {"rank": Const(count)}
    sizes |= {index.name: of_ranks(index.extent, count) for index in delivery.domain}
    return all(
        stays_inside(
            on_rank(of_ranks(value, count), IndexRef("rank")), 1, of_ranks(end, count), sizes
        )
        for value, end in delivery.ends
    )


def _always_leaves(delivery: Delivery) -> bool:
    """Whether segments have no slot on any number of ranks above 1, which has been seen of few."""
    from fuscoc.lang.presburger import System, first_outside

    system = System(delivery.facts, {})
    leaves = " or ".join(_leaves(delivery, system))
    ranks = system.text(RANKS)
    if system.is_exact:
        wrong = [*system.variables.values()], [*system.constraints, f"({leaves})"]
        return first_outside([ranks], ([ranks], [f"{ranks} >= 2"]), wrong) is None
    tried = (_tried(delivery, count) for count in MANY_RANKS)
    return all(found is None or found.leaves is not None for found in tried)


def _leaves(delivery: Delivery, system: System) -> list[str]:
    """That a segment has no slot, because of the rank and because of each of the subscripts. A rank
    of -1 drops it."""
    rank, *places = delivery.ends
    for value, _ in delivery.ends:
        system.positive_divisors(value)
    there = system.text(rank[0])
    alternatives = [f"({there} < -1 or {there} >= {system.text(rank[1])})"]
    for value, end in places:
        place = system.text(value)
        alternatives.append(f"({there} >= 0 and ({place} < 0 or {place} >= {system.text(end)}))")
    return alternatives


def _tried(delivery: Delivery, count: int) -> Outcome | None:
    """What is wrong with so many ranks; None if the shuffle would not run on them, or drops
    segments."""
    from fuscoc.lang.presburger import Pair, System, solution

    fixed = {"ranks": count}
    system = System(delivery.facts, fixed)
    leaves = _leaves(delivery, system)
    for scalar in delivery.own:
        system.text(scalar)
    runs = solution([*system.variables.values()], system.constraints) is not None
    if not system.is_exact or not runs:
        return None
    ends = delivery.ends
    if not delivery.is_clipped:
        outside = system.counterexample(leaves)
        if outside is not None:
            return _outside(delivery, {**outside, RANKS: count})
        dropped = [f"{system.text(delivery.rank)} < 0"]
        if may_be_negative(delivery.rank, ()) and system.counterexample(dropped) is not None:
            return None
    pair = Pair(delivery.facts, fixed, delivery.own)
    if delivery.is_clipped:
        for value, end in ends:
            pair.first.constraints.append(f"0 <= {pair.first.text(value)} < {pair.first.text(end)}")
    clash = pair.clash([(value, 1) for value, _ in ends])
    if clash is not None:
        return Outcome("FSC059", _two_segments(delivery, clash, count))
    if delivery.is_clipped:
        return Outcome(None)
    points = _total([index.extent for index in delivery.domain], count)
    slots = _total(delivery.sizes, count)
    if points == slots:
        return Outcome(None)
    return Outcome(EMPTY, _empty_slot(delivery, system, ends, count))


def _total(sizes: Sequence[Scalar], count: int) -> int:
    """The product of sizes, of all ranks together."""
    of_ranks = [
        [at(size, {RANK: rank, RANKS: count}) or 0 for size in sizes] for rank in range(count)
    ]
    return sum(map(prod, of_ranks))


def _outside(delivery: Delivery, values: Mapping[Scalar, int]) -> Outcome:
    """A segment that has no slot, in words."""
    ends = [(at(value, values), at(end, values) or 0) for value, end in delivery.ends]
    number = next(i for i, (value, end) in enumerate(ends) if value is None or not 0 <= value < end)
    names = ", ".join(index.name for index in delivery.domain)
    indices = ", ".join(str(values[IndexRef(index.name)]) for index in delivery.domain)
    (rank, count), *places = ends
    last = ends[number][1] - 1
    there = f"ranks 0 to {last}" if number == 0 else f"0 to {last} there" if last >= 0 else "none"
    note = (
        f"on {count} ranks, the segment ({names}) = ({indices}) of rank {values[RANK]} goes to "
        f"[{', '.join(str(place) for place, _ in places)}] on rank {rank}, and there are {there}"
    )
    return Outcome("FSC034", note, number)


def _two_segments(delivery: Delivery, clash: tuple[dict[Scalar, int], ...], count: int) -> str:
    segments = []
    for values in clash:
        indices = ", ".join(str(values[IndexRef(index.name)]) for index in delivery.domain)
        segments.append(f"({indices}) of rank {values[RANK]}")
    values = {**clash[0], RANKS: count}
    place = ", ".join(str(at(each, values)) for each in delivery.places)
    names = ", ".join(index.name for index in delivery.domain)
    return (
        f"on {count} ranks, the segments ({names}) = {' and '.join(segments)} both go to "
        f"[{place}] on rank {at(delivery.rank, values)}"
    )


def _empty_slot(
    delivery: Delivery, system: System, ends: Sequence[tuple[Scalar, Scalar]], count: int
) -> str:
    """The first slot that no segment goes to, in words."""
    from fuscoc.lang.presburger import System, first_outside

    slots = System(Facts({}, delivery.sizes, frozenset()), {"ranks": count}, "s")
    rank = slots.text(RANK)
    names = [rank, *(f"p{number}" for number in range(len(delivery.places)))]
    inside = [
        f"0 <= {name} < {slots.text(size)}"
        for name, size in zip(names[1:], delivery.sizes, strict=True)
    ]
    image = [f"{name} = {system.text(value)}" for name, (value, _) in zip(names, ends, strict=True)]
    place = first_outside(
        names,
        ([*slots.variables.values()], [*slots.constraints, *inside]),
        ([*system.variables.values()], [*system.constraints, *image]),
    )
    assert place is not None, "there are fewer segments than slots"
    rank_idx, *slot = place
    return f"on {count} ranks, nothing goes to [{', '.join(map(str, slot))}] on rank {rank_idx}"
