"""Routes of a dense target that collide nowhere: a rank and free slots for every table entry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from fuscoc_runtime.errors import IndexOutOfRangeError
from fuscoc_runtime.manifest.declared import DenseTarget, DomainIndex
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.reference import RankData, scope_of
from fuscoc_runtime.scalar import (
    Extent,
    Inside,
    Load,
    Scalar,
    Scope,
    evaluate,
    is_dropped,
    render,
    subexpressions,
)

SPARE_SLOTS = 2

Entry = tuple[int, ...]


@dataclass
class Free:
    """Slots of a rank that nothing has been given yet: all from ``end`` on, and gaps before."""

    end: int = 0
    taken: set[int] = field(default_factory=set)

    def take(self, slots: Sequence[int], step: int) -> int:
        """How many times ``step`` has to be added to ``slots``; they are taken then."""
        times = self.end - min(slots) if step == 1 else 0
        while step and not self.taken.isdisjoint(slot + times * step for slot in slots):
            times += 1
        moved = [slot + times * step for slot in slots]
        self.taken.update(moved if step > 1 else ())
        self.end = max(self.end, *(slot + 1 for slot in moved))
        return times


class NoDataError(ValueError):
    """The relation has a form for which no data can be made up."""


def pack_routes(
    shuffle: ShuffleSpec,
    target: DenseTarget,
    ranks: Sequence[RankData],
    drop: float,
    random: torch.Generator,
) -> list[RankData]:
    """``ranks`` with their route inputs, until now zero, filled in, and the length of each target.

    Every table entry that the rank expression loads gets a random rank, or -1 with probability
    ``drop``, and so do all entries of an outermost index together; every entry that the slot
    expression adds, or a multiple of, gets slots of that rank that are free.

    Raises:
        NoDataError: the relation is not of that form.
        IndexOutOfRangeError: it computes a rank that does not exist.
    """
    rank_load, slot_load = _route_load(shuffle, target.rank), _route_load(shuffle, target.slot)
    if slot_load is not None and slot_load in subexpressions(target.rank):
        raise NoDataError(f"`{render(slot_load)}` says rank and slot")
    free = [Free() for _ in ranks]
    for source, data in enumerate(ranks):
        places = [place.value for place in shuffle.declared.places]
        points = live_points(shuffle.declared.domain, scope_of(data), places)
        if rank_load is not None:
            outer = shuffle.declared.domain[0]
            size = evaluate(outer.extent, Scope(data.extents, data.inputs))
            all_dropped = (torch.rand(size, generator=random) < drop).tolist()
            for here in points:
                owner = int(torch.randint(len(ranks), (), generator=random))
                dropped = float(torch.rand((), generator=random)) < drop
                dropped |= all_dropped[here.indices[outer.name]]
                data.inputs[rank_load.input][_entry(rank_load, here)] = -1 if dropped else owner
        drops = shuffle.declared.drops
        points = [here for here in points if not is_dropped(drops, here)]
        for owner, entry, step, slots in _slot_groups(target, slot_load, points):
            if not 0 <= owner < len(ranks):
                highest = len(ranks) - 1
                raise IndexOutOfRangeError(render(target.rank), source, (), owner, -1, highest)
            base = free[owner].take(slots, step)
            if slot_load is not None:
                data.inputs[slot_load.input][entry] = base
    return [
        replace(data, extents={**data.extents, **with_length(shuffle, target, data, num_slots)})
        for data, num_slots in zip(ranks, [each.end for each in free], strict=True)
    ]


def fill_places(shuffle: ShuffleSpec, data: RankData, drop: float, random: torch.Generator) -> None:
    """Fill in the inputs by which points look something up: places that exist, or -1 with
    probability ``drop``; where segments must lie apart, each place of a segment once.

    Raises:
        NoDataError: such a place is computed from an input.
    """
    scope = scope_of(data)
    for number, place in enumerate(shuffle.declared.places):
        if not isinstance(place.value, Load):
            raise NoDataError(f"`{render(place.value)}` is computed from an input")
        filled, taken = set(), set()
        starts = [each.start for each in shuffle.declared.source.subscripts]
        is_once = shuffle.program.relation.apart and place in starts
        before = [earlier.value for earlier in shuffle.declared.places[:number]]
        for here in live_points(shuffle.declared.domain, scope, before):
            entry, limit = _entry(place.value, here), evaluate(place.limit, here)
            if entry not in filled:
                exists = limit > 0 and float(torch.rand((), generator=random)) >= drop
                chosen = int(torch.randint(limit, (), generator=random)) if exists else -1
                if is_once and exists:
                    free = [each for each in range(limit) if each not in taken]
                    chosen = free[chosen % len(free)] if free else -1
                    taken.add(chosen)
                data.inputs[place.value.input][entry] = chosen
            filled.add(entry)


def live_points(
    domain: Sequence[DomainIndex], scope: Scope, drops: Sequence[Scalar]
) -> list[Scope]:
    """The scope at every domain point that none of ``drops`` drops, in order."""
    return [here for here in domain_points(domain, scope) if not is_dropped(drops, here)]


def domain_points(domain: Sequence[DomainIndex], scope: Scope) -> Iterator[Scope]:
    """The scope at every domain point, in order."""
    if not domain:
        yield scope
        return
    for value in range(evaluate(domain[0].extent, scope)):
        here = scope.at({**scope.indices, domain[0].name: value})
        yield from domain_points(domain[1:], here)


def _route_load(shuffle: ShuffleSpec, scalar: Scalar) -> Load | None:
    """The one element of a route input that ``scalar`` reads, if it reads any."""
    routes = {spec.name for spec in shuffle.declared.inputs if spec.role == "route"}
    parts = list(subexpressions(scalar))
    inner = {each for part in parts if isinstance(part, Inside) for each in subexpressions(part)}
    found = {part for part in parts if isinstance(part, Load) and part.input in routes} - inner
    if len(found) > 1:
        entries = ", ".join(sorted(map(render, found)))
        raise NoDataError(f"one expression reads several route entries: {entries}")
    return next(iter(found), None)


def _entry(load: Load, here: Scope) -> Entry:
    return tuple(evaluate(index, here) for index in load.at)


def _slot_groups(
    target: DenseTarget, load: Load | None, points: Sequence[Scope]
) -> list[tuple[int, Entry, int, list[int]]]:
    """(destination rank, table entry, what 1 more in it adds to a slot, slots relative to the
    entry) of the points that share one.

    Without a table every point is a group of its own, which nothing moves.
    """
    if load is None:
        return [(evaluate(target.rank, at), (), 0, [evaluate(target.slot, at)]) for at in points]
    groups: dict[Entry, tuple[int, Entry, int, list[int]]] = {}
    inputs = points[0].inputs if points else {}
    raised = {**inputs, load.input: inputs[load.input] + 1} if points else {}
    for here in points:
        entry, owner = _entry(load, here), evaluate(target.rank, here)
        slot = evaluate(target.slot, here)
        step = evaluate(target.slot, Scope(here.extents, raised, here.indices)) - slot
        group = groups.setdefault(entry, (owner, entry, step, []))
        if step < 1 or group[2] != step:
            raise NoDataError(f"`{load.input}` is not added to a slot")
        if group[0] != owner:
            raise NoDataError(f"an entry of `{load.input}` places slots on several ranks")
        group[3].append(slot)
    return list(groups.values())


def own_length(shuffle: ShuffleSpec, target: DenseTarget) -> str | None:
    """The run-time extent that is a factor of the target's length and nothing else, if one is."""
    domain = [part for index in shuffle.declared.domain for part in subexpressions(index.extent)]
    free = [p for p in subexpressions(target.length) if isinstance(p, Extent) and p not in domain]
    is_own = len(free) == 1 and free[0].name in shuffle.declared.extents
    return free[0].name if is_own else None


def with_length(
    shuffle: ShuffleSpec, target: DenseTarget, data: RankData, num_slots: int
) -> dict[str, int]:
    """The extent that makes room for so many slots, if one does nothing else.

    Raises:
        NoDataError: the length is another one, and has no room for them.
    """
    name = own_length(shuffle, target)
    if name is not None:
        none, one = (evaluate(target.length, Scope({**data.extents, name: n})) for n in (0, 1))
        if none == 0 and one > 0:
            return {name: -(-(num_slots + SPARE_SLOTS) // one)}
    if evaluate(target.length, Scope(data.extents, data.inputs)) < num_slots:
        raise NoDataError(f"{num_slots} slots do not fit the target's length")
    return {}
