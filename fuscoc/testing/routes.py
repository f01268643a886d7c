"""Drawing where points go: keys of a packed target, ranks and free slots of a dense one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import strategies as st

from fuscoc.testing.arrays import Ints, ints, joined
from fuscoc.testing.draws import digits
from fuscoc.testing.oracle import expect
from fuscoc.testing.points import Domain, evaluate, points_of
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.scalar import Extent, Load, Scalar, subexpressions
from fuscoc_runtime.schema import DenseTarget, PackedTarget, ShuffleSpec
from fuscoc_runtime.topology import Topology


def draw_routes(
    draw: st.DrawFn, shuffle: ShuffleSpec, topology: Topology, ranks: Sequence[RankData]
) -> None:
    """Fill in the route inputs of ``ranks``, which are all -1, and the lengths of dense targets.

    Uneven on purpose: besides destinations all over, a routing may name only a few of them, or one.
    """
    target = shuffle.target
    place = target.key if target.kind == "packed" else target.rank
    num_places = target.num_keys if target.kind == "packed" else topology.num_ranks
    if isinstance(place, Load):
        spread = st.just(list(range(-1, num_places)))
        few = st.lists(st.integers(-1, num_places - 1), min_size=1, max_size=3)
        palette = np.array(draw(st.one_of(spread, few)), np.int64)
        for data in ranks:
            _draw_entries(draw, shuffle, data, place, palette)
    if target.kind == "packed":
        _fit_capacity(shuffle, target, topology, ranks)
    else:
        _draw_slots(draw, shuffle, target, topology, ranks)


def _draw_entries(
    draw: st.DrawFn, shuffle: ShuffleSpec, data: RankData, place: Load, palette: Ints
) -> None:
    entries = np.unique(Domain(shuffle, data).entries(place))
    flat = data.inputs[place.input].view(-1)
    chosen = palette[digits(draw, len(entries), len(palette))]
    flat[torch.from_numpy(entries)] = torch.from_numpy(chosen).to(flat.dtype)


def _fit_capacity(
    shuffle: ShuffleSpec, target: PackedTarget, topology: Topology, ranks: Sequence[RankData]
) -> None:
    """Drop the last points for a rank that holds too many, until all fit."""
    if target.capacity is None or not isinstance(target.key, Load):
        return
    while True:
        points = points_of(shuffle, topology, ranks)
        expected = expect(shuffle, topology, ranks, points)
        full = np.flatnonzero(expected.num_slots > target.capacity)
        if len(full) == 0:
            return
        for rank in full:
            mine = np.flatnonzero(expected.rank == rank)
            for at in mine[-1 - len(mine) // 4 :]:
                data = ranks[expected.source_rank[at]]
                entry = Domain(shuffle, data).entries(target.key)[expected.point[at]]
                data.inputs[target.key.input].view(-1)[int(entry)] = -1


def _draw_slots(
    draw: st.DrawFn,
    shuffle: ShuffleSpec,
    target: DenseTarget,
    topology: Topology,
    ranks: Sequence[RankData],
) -> None:
    """Give every entry of the slot's table free slots; drop what then has no slot of its own."""
    load = slot_load(shuffle, target.slot)
    free = digits(draw, topology.num_ranks, 3)
    if load is not None:
        for data in ranks:
            data.inputs[load.input].view(-1)[_entries(shuffle, data, load)] = 0
        groups = [
            group for data in ranks for group in _slot_groups(shuffle, target, data, load)
        ]
        order = np.argsort(digits(draw, len(groups), 64), kind="stable")
        gaps = digits(draw, len(groups), 3)
        for number, gap in zip(order.tolist(), gaps.tolist(), strict=True):
            flat, entry, owners, slots = groups[number]
            base = max(int(free[owners].max()) - int(slots.min()), 0) + gap
            flat[entry] = base
            free[owners] = np.maximum(free[owners], base + int(slots.max()) + 1)
    extra = digits(draw, topology.num_ranks, 3)
    for data, used, more in zip(ranks, free.tolist(), extra.tolist(), strict=True):
        if isinstance(target.length, Extent) and _is_free(shuffle, target.length):
            data.extents = {**data.extents, target.length.name: used + more}  # type: ignore[misc]
    _drop_collisions(shuffle, target, topology, ranks)
