"""Whether every segment has a slot of its own in a target that the spec computes, and every slot a
segment.

A run finds two segments in one slot by itself, and a slot that stays empty is none of its business.
So what holds for some numbers of ranks and not for others is left to it; reported is what is wrong
for all that were tried.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import TYPE_CHECKING

from fuscoc.lang import ast
from fuscoc.lang.checked import RANK, RANKS, DomainIndex, IndexRef, Scalar
from fuscoc.lang.determined import are_as_many, determines
from fuscoc.lang.proof import Facts, at, num_ranks
from fuscoc.lang.scalars import extents, loads
from fuscoc.lang.scope import LayoutInfo, Scope

if TYPE_CHECKING:
    from fuscoc.lang.presburger import System

MAX_TRIED = 3  # numbers of ranks
WRONG = ("FSC059", "FSC092")
"""What can be wrong: two segments in a slot, and none."""


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
    def own(self) -> list[Scalar]:
        """What tells the points of all ranks apart."""
        return [RANK, *(IndexRef(index.name) for index in self.domain)]

    @property
    def facts(self) -> Facts:
        sizes = {index.name: index.extent for index in self.domain}
        return Facts(sizes, [*sizes.values(), *self.sizes], frozenset())


@dataclass(frozen=True)
class Outcome:
    """What is wrong for some number of ranks: a code, if anything is, and a note about it."""

    code: str | None
    note: str = ""


def check_delivery(
    delivery: Delivery,
    dispatch: ast.Dispatch,
    layout: LayoutInfo,
    scope: Scope,
    *,
    codes: Collection[str] = WRONG,
) -> None:
    """Report two segments in one slot, or warn about a slot without any: those of the ``codes``."""
    known = {name for scalar in delivery.scalars for name in extents(scalar)} <= {"rank", "ranks"}
    if not known or any(loads(scalar) for scalar in delivery.scalars) or _is_bijective(delivery):
        return
    from fuscoc.lang.presburger import TooHardError

    counts = (count for count in num_ranks(delivery.facts) if count > 1)
    try:
        tried = (found for count in counts if (found := _tried(delivery, count)) is not None)
        outcomes = list(islice(tried, MAX_TRIED))
    except TooHardError:
        return
    agreed = {outcome.code for outcome in outcomes}
    messages = {
        "FSC059": f"two segments go to one slot of `{layout.ident.name}`",
        "FSC092": f"no segment goes to some slots of `{layout.ident.name}`",
    }
    code = agreed.pop() if len(agreed) == 1 else None
    if code is not None and code in codes:
        notes = [outcomes[0].note]
        scope.sink.report(code, dispatch.target.span, messages[code], notes=notes)


def _is_bijective(delivery: Delivery) -> bool:
    """Whether it is seen that all slots have one segment each, if no segment leaves the target."""
    sizes = delivery.facts.extents
    told = [delivery.rank, *delivery.places]
    return determines(told, delivery.own, sizes) and are_as_many(
        list(sizes.values()), delivery.sizes
    )


def _tried(delivery: Delivery, count: int) -> Outcome | None:
    """What is wrong with so many ranks; None if the shuffle would not run on them."""
    from fuscoc.lang.presburger import Pair, System, solution

    fixed = {"ranks": count}
    system = System(delivery.facts, fixed)
    ends = [(delivery.rank, RANKS), *zip(delivery.places, delivery.dims, strict=True)]
    leaves = []
    for value, end in ends:
        system.positive_divisors(value)
        leaves += [f"{system.text(value)} < 0", f"{system.text(value)} >= {system.text(end)}"]
    for scalar in delivery.own:
        system.text(scalar)
    runs = solution([*system.variables.values()], system.constraints) is not None
    if not system.is_exact or not runs:
        return None
    if not delivery.is_clipped and system.counterexample(leaves) is not None:
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
    return Outcome("FSC092", _empty_slot(delivery, system, ends, count))


def _total(sizes: Sequence[Scalar], count: int) -> int:
    """The product of sizes, of all ranks together."""
    of_ranks = [
        [at(size, {RANK: rank, RANKS: count}) or 0 for size in sizes] for rank in range(count)
    ]
    return sum(map(prod, of_ranks))


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
