"""Drawing where points go: keys of a packed target, ranks and free slots of a dense one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from hypothesis import reject
from hypothesis import strategies as st
from torch import Tensor

from fuscoc.testing.arrays import Ints, ints
from fuscoc.testing.oracle import expect
from fuscoc.testing.points import Domain, points_of
from fuscoc.testing.sizes import digits
from fuscoc_runtime.manifest.declared import DenseTarget, PackedTarget
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.scalar import Extent, Load, Scalar, subexpressions
from fuscoc_runtime.topology import Topology

MOST_ROWS = 3


class NoRoutingError(ValueError):
    """The relation has a form for which no routing can be made up."""


def draw_routes(
    draw: st.DrawFn, shuffle: ShuffleSpec, topology: Topology, ranks: Sequence[RankData]
) -> None:
    """Fill in the route inputs of ``ranks``, which are all 0, and the lengths of dense targets.

    Uneven on purpose: besides destinations all over, a routing may name only a few of them, or one.
    """
    target = shuffle.declared.target
    _draw_places(draw, shuffle, ranks)
    place, num_places = (
        (target.placed, target.num_keys // target.group)
        if target.kind == "packed"
        else (target.rank, topology.num_ranks)
    )
    if isinstance(place, Load):
        spread = st.just(list(range(-1, num_places)))
        few = st.lists(st.integers(-1, num_places - 1), min_size=1, max_size=3)
        palette = np.array(draw(st.one_of(spread, few)), np.int64)
        for data in ranks:
            _draw_entries(draw, shuffle, data, place, palette)
    else:
        _draw_operands(draw, shuffle, topology, ranks, place, num_places)
    if target.kind == "packed":
        if target.distinct:
            _drop_repeats(shuffle, target, ranks)
        _fit_capacity(shuffle, target, topology, ranks)
    else:
        _draw_slots(draw, shuffle, target, topology, ranks)


def _draw_places(draw: st.DrawFn, shuffle: ShuffleSpec, ranks: Sequence[RankData]) -> None:
    """Places that exist, or -1, for what points look up by values of inputs; where segments must
    lie apart, each of theirs once on a rank."""
    starts = [each.start for each in shuffle.declared.source.subscripts]
    for place in shuffle.declared.places:
        is_apart = shuffle.program.relation.apart and place in starts
        if is_apart and not isinstance(place.value, Load):
            raise NoRoutingError(f"`{shuffle.name}` computes what it looks up from an input")
        for data in ranks:
            limits = Domain(shuffle, data).values(place.limit)
            most = max(int(limits.min()), 0) if len(limits) else 0
            for load in route_loads(shuffle, place.value):
                _draw_entries(draw, shuffle, data, load, np.arange(-1, most))
            lost = np.flatnonzero(~Domain(shuffle, data).exists(place))
            if not isinstance(place.value, Load):
                _drop(shuffle, data, place.value, lost)
            elif is_apart:
                values = data.inputs[place.value.input].view(-1).numpy()
                _, first = np.unique(values, return_index=True)
                again = np.setdiff1d(np.arange(len(values)), first)
                values[again] = -1


def _draw_operands(
    draw: st.DrawFn,
    shuffle: ShuffleSpec,
    topology: Topology,
    ranks: Sequence[RankData],
    place: Scalar,
    num_places: int,
) -> None:
    """Any numbers for the routes that a key or a rank is computed from, such as ids to hash, or
    ranks to add to; -1 where they would lead nowhere."""
    any_number = st.integers(-1, 2 * num_places) | st.integers(-100, 2**20)
    for load in route_loads(shuffle, place):
        palette = np.array(draw(st.lists(any_number, min_size=1, max_size=8)), np.int64)
        for data in ranks:
            _draw_entries(draw, shuffle, data, load, palette)
    for is_last in (False, True):
        for data, points in zip(ranks, points_of(shuffle, topology, ranks), strict=True):
            lost = np.flatnonzero(ints(points.columns["rank"]) == -2)
            if is_last and len(lost):
                raise NoRoutingError(
                    f"whatever is given to it, `{shuffle.name}` on {topology} goes to a key or a "
                    "rank that does not exist: if it is for other clusters, name them (--topology)"
                )
            _drop(shuffle, data, place, lost)


def _drop(shuffle: ShuffleSpec, data: RankData, place: Scalar, points: Ints) -> None:
    """Make -1 of what sends these points of a rank to ``place``, which drops them, and others that
    read the same entries."""
    parts = set(subexpressions(place))
    asked = [each.value for each in shuffle.declared.places if each in parts]
    only = [each for each in asked if isinstance(each, Load) and not isinstance(place, Load)][:1]
    for load in only or route_loads(shuffle, place):
        entries = torch.from_numpy(Domain(shuffle, data).entries(load)[points])
        data.inputs[load.input].view(-1)[entries] = -1


def route_loads(shuffle: ShuffleSpec, scalar: Scalar) -> list[Load]:
    """The elements of route inputs that ``scalar`` is computed from, but for those that only say
    where others stand."""
    routes = {each.name for each in shuffle.declared.inputs if each.role == "route"}
    asked = [each.value for each in shuffle.declared.places]
    parts = dict.fromkeys(subexpressions(scalar))
    loads = [part for part in parts if isinstance(part, Load) and part.input in routes]
    return [load for load in loads if load == scalar or load not in asked]


def _draw_entries(
    draw: st.DrawFn, shuffle: ShuffleSpec, data: RankData, place: Load, palette: Ints
) -> None:
    entries = np.unique(Domain(shuffle, data).entries(place))
    flat = data.inputs[place.input].view(-1)
    chosen = palette[digits(draw, len(entries), len(palette))]
    flat[torch.from_numpy(entries)] = torch.from_numpy(chosen).to(flat.dtype)


def _drop_repeats(shuffle: ShuffleSpec, target: PackedTarget, ranks: Sequence[RankData]) -> None:
    """Drop points whose key an earlier one of their segment has."""
    for data in ranks:
        domain = Domain(shuffle, data)
        segment = np.arange(domain.num_points) // shuffle.program.fanout
        named = segment * (target.num_keys + 1) + domain.values(target.key)
        _, first = np.unique(named, return_index=True)
        _drop(shuffle, data, target.key, np.setdiff1d(np.arange(len(named)), first))


def _fit_capacity(
    shuffle: ShuffleSpec, target: PackedTarget, topology: Topology, ranks: Sequence[RankData]
) -> None:
    """Drop the last points for a rank that holds too many, until all fit.

    Where keys depend on no route, nothing can be dropped: then other data have to be drawn.
    """
    while target.capacity is not None:
        points = points_of(shuffle, topology, ranks)
        expected = expect(shuffle, topology, ranks, points)
        full = np.flatnonzero(expected.num_slots > target.capacity)
        if len(full) == 0:
            return
        if not route_loads(shuffle, target.placed):
            reject()
        for rank in full:
            mine = np.flatnonzero(expected.rank == rank)
            for at in mine[-1 - len(mine) // 4 :]:
                data = ranks[expected.source_rank[at]]
                _drop(shuffle, data, target.placed, expected.point[at : at + 1])


def _draw_slots(
    draw: st.DrawFn,
    shuffle: ShuffleSpec,
    target: DenseTarget,
    topology: Topology,
    ranks: Sequence[RankData],
) -> None:
    """Give every entry of the slots' table free slots; drop what then has no slot of its own."""
    used = digits(draw, topology.num_ranks, 3)
    load = slot_load(shuffle, target)
    step = 1 if load is None else slot_step(shuffle, target, load, ranks)
    if load is not None and step != 1:
        # It counts rows, say, of which other inputs choose a part: few of them, so that some meet.
        for data in ranks:
            _draw_entries(draw, shuffle, data, load, np.arange(MOST_ROWS))
        used[:] = MOST_ROWS
    elif load is not None:
        groups = [
            group
            for data, points in zip(ranks, points_of(shuffle, topology, ranks), strict=True)
            for group in _slot_groups(shuffle, target, data, load, ints(points.columns["rank"]))
        ]
        order = np.argsort(digits(draw, len(groups), 64), kind="stable")
        gaps = digits(draw, len(groups), 3)
        for number, gap in zip(order.tolist(), gaps.tolist(), strict=True):
            group = groups[number]
            base = int(used[group.owners].max() - group.slots.min() + gap)
            group.table[group.entry] = base
            used[group.owners] = base + group.slots.max() + 1
    spare = digits(draw, topology.num_ranks, 3)
    if isinstance(target.length, Extent) and only_length(shuffle, target.length):
        for data, length in zip(ranks, (used + spare).tolist(), strict=True):
            assert isinstance(data.extents, dict)
            data.extents[target.length.name] = length
    _drop_collisions(shuffle, target, topology, ranks)


def slot_step(
    shuffle: ShuffleSpec, target: DenseTarget, load: Load, ranks: Sequence[RankData]
) -> int:
    """What one more in an input adds to the slots that are computed from it."""
    for data in ranks:
        before = Domain(shuffle, data).values(target.slot)
        if len(before):
            more = {**data.inputs, load.input: data.inputs[load.input] + 1}
            after = Domain(shuffle, replace(data, inputs=more)).values(target.slot)
            return int(after[0] - before[0])
    return 1


@dataclass(frozen=True, eq=False)
class SlotGroup:
    """Points that share an entry of the table: ``slots`` of the ``owners``, counted from 0."""

    table: Tensor
    entry: int
    owners: Ints
    slots: Ints


def _slot_groups(
    shuffle: ShuffleSpec, target: DenseTarget, data: RankData, load: Load, owners: Ints
) -> Iterator[SlotGroup]:
    domain, table = Domain(shuffle, data), data.inputs[load.input].view(-1)
    entries = domain.entries(load)
    entries = np.where(owners >= 0, entries, -1)
    slots = domain.values(target.slot)
    for entry in np.unique(entries[entries >= 0]).tolist():
        mine = entries == entry
        yield SlotGroup(table, entry, owners[mine], slots[mine])


def _drop_collisions(
    shuffle: ShuffleSpec, target: DenseTarget, topology: Topology, ranks: Sequence[RankData]
) -> None:
    """Drop points whose slot is taken or lies outside of the target."""
    expected = expect(shuffle, topology, ranks, points_of(shuffle, topology, ranks))
    seen: set[tuple[int, int]] = set()
    places = zip(expected.rank.tolist(), expected.slot.tolist(), strict=True)
    for at, place in enumerate(places):
        if place in seen or not 0 <= place[1] < expected.num_slots[place[0]]:
            if not route_loads(shuffle, target.rank):
                wrong = "which is taken" if place in seen else "which does not exist"
                raise NoRoutingError(
                    f"whatever is given to it, `{shuffle.name}` on {topology} goes to slot "
                    f"{place[1]} of rank {place[0]}, {wrong}"
                )
            data = ranks[expected.source_rank[at]]
            _drop(shuffle, data, target.rank, expected.point[at : at + 1])
        seen.add(place)


def slot_load(shuffle: ShuffleSpec, target: DenseTarget) -> Load | None:
    """The element of a route input that the slot is computed from, if there is one."""
    of_rank = set(subexpressions(target.rank))
    loads = [load for load in route_loads(shuffle, target.slot) if load not in of_rank]
    # Rather an element of the point's own than one that others look up, too.
    return min(loads, key=lambda load: len(list(subexpressions(load))), default=None)


def only_length(shuffle: ShuffleSpec, extent: Extent) -> bool:
    """Whether an extent is the length of a dense target and nothing else."""
    used: list[Scalar] = [index.extent for index in shuffle.declared.domain]
    used += shuffle.declared.source.dims
    used += [size for each in shuffle.declared.inputs for size in each.shape]
    return all(part != extent for scalar in used for part in subexpressions(scalar))
