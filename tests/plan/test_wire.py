"""What ranks send and get in stages: every row once, sent and received alike."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fuscoc_runtime.plan.schedule import (
    Schedule,
    cut,
    pairwise_peers,
    spread_out_peers,
    stages_in_order,
)
from fuscoc_runtime.plan.wire import Part, Side
from tests.schedule.strategies import schedules

InStages = list[list[Part]]


def sides(schedule: Schedule, rank: int) -> tuple[Side, Side]:
    pairs = schedule.assignment.pairs
    sent, received = tuple(pairs[rank].tolist()), tuple(pairs[:, rank].tolist())
    return Side(schedule.sends(rank), sent), Side(schedule.receives(rank), received)


@given(schedules())
def test_every_row_travels_once(schedule: Schedule) -> None:
    """To the rank for which it lies where it does, which has one part in a stage at most."""
    for rank in range(len(schedule.assignment.share)):
        for side in sides(schedule, rank):
            stages = side.in_stages(schedule.num_stages)
            peers = np.repeat(np.arange(len(side.counts)), side.counts).tolist()
            rows = [(row, each.peer) for parts in stages for each in parts
                    for row in range(each.begin, each.end)]  # fmt: skip
            assert sorted(rows) == list(enumerate(peers))
            for parts in stages:
                assert [each.peer for each in parts] == sorted({each.peer for each in parts})
                assert all(each.begin < each.end for each in parts)


@given(schedules())
def test_what_one_sends_in_a_stage_the_other_receives_in_it(schedule: Schedule) -> None:
    pairs, ranks = schedule.assignment.pairs, range(len(schedule.assignment.share))
    sent_at, got_at = pairs.cumsum(axis=1) - pairs, pairs.cumsum(axis=0) - pairs
    sent, received = set(), set()
    for rank in ranks:
        out, into = (side.in_stages(schedule.num_stages) for side in sides(schedule, rank))
        for stage, (there, here) in enumerate(zip(out, into, strict=True)):
            for peer, begin, end in there:
                first = sent_at[rank, peer]
                sent.add((stage, rank, peer, begin - first, end - first))
            for peer, begin, end in here:
                first = got_at[peer, rank]
                received.add((stage, peer, rank, begin - first, end - first))
    assert sent == received


@given(schedules(), st.integers(1, 30))
def test_stages_that_are_cut(schedule: Schedule, rows: int) -> None:
    """The same rows in the same order, and, but for a row for every rank of a node, no more than so
    many at a time."""
    parts, m = cut(schedule, rows), schedule.assignment.ranks_per_node
    for rank in range(len(schedule.assignment.share)):
        for whole, side in zip(sides(schedule, rank), sides(parts, rank), strict=True):
            in_parts = side.in_stages(parts.num_stages)
            assert in_order(in_parts) == in_order(whole.in_stages(schedule.num_stages))
            for each in in_parts:
                assert sum(part.end - part.begin for part in each) <= rows + m


def in_order(stages: InStages) -> dict[int, list[int]]:
    """Rows by peer."""
    found: dict[int, list[int]] = defaultdict(list)
    for parts in stages:
        for peer, begin, end in parts:
            found[peer] += range(begin, end)
    return found


@given(schedules())
def test_stages_in_c_and_in_numpy(schedule: Schedule) -> None:
    order = {"pairwise": pairwise_peers, "spread-out": spread_out_peers}.get(schedule.kind)
    if order is not None:
        found = stages_in_order(schedule.assignment, order(len(schedule.tile)))
        for name, wanted in zip(("tile", "peer", "begin", "end"), found, strict=True):
            np.testing.assert_array_equal(getattr(schedule, name), wanted)
