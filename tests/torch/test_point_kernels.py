"""Numbers between points and slots, interpreted, against loops."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc_runtime.engine.node.point_kernels import values_at_points, weights_of_slots
from fuscoc_runtime.engine.node.rings import Launched, RingEntry
from fuscoc_runtime.room import MOST_SLOT_BITS

MAX_SOURCES, FANOUT, CAPACITY = 4, 3, 40


@st.composite
def routings(draw: st.DrawFn) -> tuple[list[list[list[tuple[int, int] | None]]], int]:
    """Of every rank's sources the (rank, slot) of each point, every slot once; and a rank."""
    num_ranks = draw(st.integers(1, 3))
    sizes = draw(st.lists(st.integers(0, MAX_SOURCES), min_size=num_ranks, max_size=num_ranks))
    free = [draw(st.permutations(range(CAPACITY))) for _ in range(num_ranks)]
    taken = [iter(slots) for slots in free]
    targets = st.sampled_from([None, *range(num_ranks)])
    routing = [
        [
            [
                None if target is None else (target, next(taken[target]))
                for target in draw(st.lists(targets, min_size=FANOUT, max_size=FANOUT))
            ]
            for _ in range(size)
        ]
        for size in sizes
    ]
    return routing, draw(st.integers(0, num_ranks - 1))


def code(place: tuple[int, int] | None) -> int:
    return -1 if place is None else place[0] << MOST_SLOT_BITS | place[1]


@settings(max_examples=25)
@given(drawn=routings(), seed=st.integers(0, 99))
def test_points_and_slots(
    drawn: tuple[list[list[list[tuple[int, int] | None]]], int], seed: int
) -> None:
    routing, rank = drawn
    random = torch.Generator().manual_seed(seed)
    num_ranks, own = len(routing), routing[rank]
    weights = torch.rand(num_ranks, MAX_SOURCES, FANOUT, generator=random)
    # What nobody has sent now is of an earlier call, and must not be taken for anything.
    stale = rank << MOST_SLOT_BITS | 5
    codes = torch.full((num_ranks, MAX_SOURCES, FANOUT), stale, dtype=torch.int32)
    for each, sources in zip(codes, routing, strict=True):
        for source, points in enumerate(sources):
            each[source] = torch.tensor([code(place) for place in points])
    points = weights.view(torch.int32).long() << 32 | codes.long() & 0xFFFFFFFF
    points[rank] = stale  # a rank does not tell itself
    num_sources_of = torch.tensor([*map(len, routing), 0], dtype=torch.int32)
    nothing = torch.empty(0, dtype=torch.int32)
    handle = Launched(
        RingEntry(0, 1, 0, False),
        len(own),
        codes[rank],
        nothing,
        nothing,
        num_sources_of,
        weights[rank, : len(own)],
    )

    expected, held = torch.zeros(CAPACITY), torch.full((CAPACITY,), -1)
    for r, sources in enumerate(routing):
        for s, places in enumerate(sources):
            for k, place in enumerate(places):
                if place is not None and place[0] == rank:
                    expected[place[1]], held[place[1]] = weights[r, s, k], place[1]
    of_slot, slots = weights_of_slots(points, handle, rank, CAPACITY)
    assert torch.equal(of_slot, expected)
    assert torch.equal(slots, held)

    values = torch.rand(num_ranks, CAPACITY, generator=random)
    wanted = [0.0 if place is None else float(values[place]) for places in own for place in places]
    assert values_at_points(values, handle).tolist() == wanted
