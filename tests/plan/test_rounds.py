"""Rounds of slices: every row once, sent and received alike, never much more than a slice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuscoc_runtime.plan.balance import POLICIES
from fuscoc_runtime.plan.choose import arrange_stages
from fuscoc_runtime.plan.cost import CostModel
from fuscoc_runtime.plan.flows import Demand
from fuscoc_runtime.plan.rounds import Side, cut, slice_rows
from fuscoc_runtime.plan.schedule import (
    KINDS,
    Schedule,
    pairwise_peers,
    spread_out_peers,
    stages_in_order,
)

MODEL = CostModel(50e9, 450e9, 10e-6, 1000)


@st.composite
def stages(draw: st.DrawFn) -> tuple[Schedule, int]:
    """Any demand, forwarders and order of the nodes, to be cut into slices of so many rows."""
    n, m = draw(st.sampled_from([(2, 1), (2, 2), (3, 1), (3, 2), (4, 2), (5, 1)]))
    row = st.lists(st.integers(0, 40), min_size=n * m, max_size=n * m)
    copies = np.array(draw(st.lists(row, min_size=n * m, max_size=n * m)), np.int64)
    demand = Demand.without_sharing(copies, m)
    assignment = POLICIES[draw(st.sampled_from(sorted(POLICIES)))](demand)
    kind = draw(st.sampled_from([*KINDS, "auto"]))
    rows = draw(st.integers(1, 30))
    return arrange_stages(demand, assignment, kind, MODEL), rows


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Schedule, int]:
    """The same, cut."""
    schedule, rows = draw(stages())
    return cut(schedule, rows), rows


def sides(schedule: Schedule, rank: int) -> tuple[Side, Side]:
    pairs = schedule.assignment.pairs
    sent, received = tuple(pairs[rank].tolist()), tuple(pairs[:, rank].tolist())
    return Side(schedule.sends(rank), sent), Side(schedule.receives(rank), received)


def rows_of_rounds(side: Side, num_rounds: int) -> list[int]:
    rows = [0] * num_rounds
    for number, _, _, length in side.listed:
        rows[number] += length
    return rows


@given(rounds())
def test_every_row_travels_once(made: tuple[Schedule, int]) -> None:
    schedule, _ = made
    for rank in range(len(schedule.assignment.share)):
        for side in sides(schedule, rank):
            assert sorted(side.order().tolist()) == list(range(side.num_rows))
            in_wire_order = side.rounds()[side.order()]
            assert (np.diff(in_wire_order) >= 0).all()
            found = np.bincount(side.rounds(), minlength=schedule.num_stages)
            assert found.tolist() == rows_of_rounds(side, schedule.num_stages)
            assert side.is_ordered == (side.order().tolist() == list(range(side.num_rows)))


@given(rounds())
def test_what_one_sends_in_a_round_the_other_receives_in_it(made: tuple[Schedule, int]) -> None:
    schedule, _ = made
    sent, received = set(), set()
    for rank in range(len(schedule.assignment.share)):
        out, into = (side.slices for side in sides(schedule, rank))
        sent |= {
            (number, rank, peer, begin, end)
            for number, peer, begin, end in zip(
                *(c.tolist() for c in (out.stage, out.peer, out.begin, out.end)), strict=True
            )
        }
        received |= {
            (number, peer, rank, begin, end)
            for number, peer, begin, end in zip(
                *(c.tolist() for c in (into.stage, into.peer, into.begin, into.end)), strict=True
            )
        }
    assert sent == received


@given(stages())
def test_stages_in_c_and_in_numpy(made: tuple[Schedule, int]) -> None:
    stages, _ = made
    order = {"pairwise": pairwise_peers, "spread-out": spread_out_peers}.get(stages.kind)
    if order is not None:
        found = stages_in_order(stages.assignment, order(len(stages.tile)))
        for name, wanted in zip(("tile", "peer", "begin", "end"), found, strict=True):
            np.testing.assert_array_equal(getattr(stages, name), wanted)


@given(rounds())
def test_a_round_is_no_larger_than_a_slice(made: tuple[Schedule, int]) -> None:
    """But for rounding: at most a row more for every rank of a node."""
    schedule, rows = made
    m = schedule.assignment.ranks_per_node
    for rank in range(len(schedule.assignment.share)):
        for side in sides(schedule, rank):
            assert max(rows_of_rounds(side, schedule.num_stages), default=0) <= rows + m


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
