"""Which part of a row has a place that several are given, against a walk in order."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc_runtime.engine.into import NOWHERE, OUT_OF_RANGE, TAKEN
from fuscoc_runtime.engine.row_kernels import claim_places

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
