"""Which part of a row has a place that several are given, against a walk in order."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc_runtime.engine.into import NOWHERE, OUT_OF_RANGE, TAKEN
from fuscoc_runtime.engine.row_kernels import claim_places
from fuscoc_runtime.kernels.launches import start
from fuscoc_runtime.kernels.loader import device_module

PLACES = st.one_of(
    st.lists(st.integers(-2, 12), max_size=40),
    st.lists(st.sampled_from([-2, -1, 0, 5, 2**31, 2**40 + 1, 2**62]), max_size=40),
    st.tuples(st.integers(250, 530), st.integers(1, 600)).map(
        lambda sizes: [7 * i % sizes[1] for i in range(sizes[0])]
    ),
    st.integers(256, 258).map(lambda count: [9] * count),
)


@settings(max_examples=60)
@given(places=PLACES, parts=st.integers(1, 5))
def test_the_first_part_has_a_place(places: list[int], parts: int) -> None:
    places = places[: len(places) // parts * parts]
    seen, wanted = set[int](), []
    for place in places:
        wanted.append(TAKEN if place in seen else place)
        if place > NOWHERE:
            seen.add(place)
    rows = [wanted[first : first + parts] for first in range(0, len(wanted), parts)]
    found = torch.tensor(places, dtype=torch.int64)
    lost = torch.tensor([10, 20])
    claim_places(found, parts, (OUT_OF_RANGE, TAKEN), lost)
    assert found.tolist() == wanted
    outside, taken = (sum(fault in row for row in rows) for fault in (OUT_OF_RANGE, TAKEN))
    assert lost.tolist() == [10 + outside, 20 + taken]


def test_more_parts_than_32_bits_count() -> None:
    """The first program of many, whose parts have their places but for the last one of slot 1."""
    num_slots, parts, homes = 2**30, 4, torch.arange(1024)
    table = torch.stack([homes + 1, num_slots * parts - homes])
    table[1, 7] += 1
    places, lost = torch.arange(1024), torch.zeros(2, dtype=torch.int64)
    sizes = num_slots, parts, len(homes), OUT_OF_RANGE, TAKEN, len(homes) // parts, parts
    start(device_module("rows", interpreted=True).concede, (places, table, homes, lost, *sizes), 1)
    assert places.tolist() == [TAKEN if place == 7 else place for place in range(1024)]
    assert lost.tolist() == [0, 1]
