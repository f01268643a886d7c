"""Rounds of slices: how large they are, and how many are under way."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuscoc.simulate.rounds import RING_SLOTS, ring_slots, slice_rows
from fuscoc_runtime.plan.cost import CostModel

MODEL = CostModel(50e9, 450e9, 10e-6, 1000)


@pytest.mark.parametrize(
    ("total", "most_bytes", "expected"),
    [(10_000, 1 << 30, 5000), (100_000, 1 << 30, 16667), (10_000, 64_000, 64), (10_000, 1, 1)],
)
def test_the_size_of_a_slice(total: int, most_bytes: int, expected: int) -> None:
    """About sqrt(total * 1000 B * 10 us * 450 GB/s / 2) bytes (4.7 and 15 MB), unless the spec says
    less: 2 and 6 rounds."""
    assert slice_rows(total, 1000, most_bytes, MODEL) == expected


@given(st.integers(1, 10**6), st.integers(1, 10**5), st.integers(1, 1 << 24), st.integers(2, 8))
def test_slices_fit_and_lanes_get_equally_many(
    total: int, row_bytes: int, most_bytes: int, num_lanes: int
) -> None:
    model = replace(MODEL, segment_bytes=row_bytes, num_lanes=num_lanes)
    rows = slice_rows(total, row_bytes, most_bytes, model)
    assert 1 <= rows <= max(1, most_bytes // row_bytes)
    num_rounds = -(-total // rows)
    seconds = model.nic_seconds(total)
    worthwhile = [n for n in range(3, num_lanes + 1) if seconds >= n * model.stage_latency]
    lanes = max(worthwhile, default=2)
    assert num_rounds % lanes == 0 or rows <= num_rounds  # so few that they do not divide evenly


def test_lanes_that_would_mostly_wait_get_nothing() -> None:
    """A slice travels for as long as its latency, 500 rows here, wherever more than two do."""
    model = replace(MODEL, stage_latency=500.5 * MODEL.nic_seconds(1), num_lanes=8)
    expected = {600: 300, 1600: 534, 2600: 520, 5000: 625}
    assert {total: slice_rows(total, 1000, 1 << 30, model) for total in expected} == expected


@pytest.mark.parametrize(
    ("bandwidth", "num_lanes", "slots"),
    [(1e8, 2, 3), (4e9, 2, 4), (4e9, 6, 6), (50e9, 2, RING_SLOTS)],
)
def test_rings_are_as_deep_as_the_network_is_fast(
    bandwidth: float, num_lanes: int, slots: int
) -> None:
    """What a network of that bandwidth carries in 4 ms, in slices of 8 MiB, and two more, or one
    for every lane."""
    assert ring_slots(CostModel(bandwidth, 450e9, 1e-5, 64, num_lanes=num_lanes)) == slots
