"""Pictures over time against sums over every span and slot."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc.simulate.kept import chosen_ranks, finish_times
from fuscoc.simulate.record import Load, Spans

for needed in ("jinja2", "plotly"):
    pytest.importorskip(needed, reason="the explorer needs the extra `plot`")
coverage = import_module("fuscoc.simulate.explorer.coverage")
SLOTS, UNKNOWN = coverage.SLOTS, coverage.UNKNOWN
SECONDS = 0.5


@st.composite
def some_spans(draw: st.DrawFn) -> Spans:
    """Spans on two lanes; not all of the ranks have any."""
    ranks = sorted(draw(st.sets(st.integers(0, 11), min_size=1, max_size=8)))
    time = st.floats(0, SECONDS, allow_subnormal=False)
    rows = draw(st.lists(st.tuples(st.sampled_from(ranks), st.integers(0, 1), time, time)))
    rank, lane = (np.array([row[i] for row in rows], np.int64) for i in (0, 1))
    begin = np.array([min(row[2:]) for row in rows], np.float64)
    end = np.array([max(row[2:]) for row in rows], np.float64)
    names = np.zeros(len(rows), np.int64)
    return Spans(np.array(ranks), ("wire", "host"), ("round",), rank, lane, names, begin, end)


def covered(spans: Spans, lane: int, rank: int) -> np.ndarray:
    """float64 [SLOTS]: what is covered of every slot, span by span."""
    width = SECONDS / SLOTS
    parts = np.zeros(SLOTS)
    for which, on, begin, end in zip(spans.rank, spans.lane, spans.begin, spans.end, strict=True):
        if (which, on) == (rank, lane):
            for slot in range(SLOTS):
                common = min(end, (slot + 1) * width) - max(begin, slot * width)
                parts[slot] += max(0.0, common) / width
    return np.minimum(parts, 1)


@given(some_spans(), st.sampled_from([1, 4]))
@settings(max_examples=40, deadline=None)
def test_lanes(spans: Spans, group: int) -> None:
    row = spans.ranks // group
    levels = coverage.lane_levels(spans, 0, SECONDS, row, 12 // group)
    for place in range(12 // group):
        members = spans.ranks[row == place]
        if not len(members):
            assert (levels[place] == UNKNOWN).all()
            continue
        mean = np.mean([covered(spans, 0, rank) for rank in members], axis=0)
        assert np.abs(levels[place] - 100 * mean).max() <= 0.5 + 1e-6


@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=9))
@settings(max_examples=40, deadline=None)
def test_loads(samples: list[list[float]]) -> None:
    """Links 0 and 2 are of row 0, link 1 of row 2; nothing is known of row 1."""
    busy = np.array(samples)
    times = np.linspace(0, SECONDS, len(busy) + 1) ** 2 / SECONDS
    load = Load(times, np.arange(3), busy)
    levels = coverage.load_levels(load, np.arange(3), SECONDS, np.array([0, 2, 0]), 3)
    edges = np.linspace(0, SECONDS, SLOTS + 1)
    means = np.zeros((SLOTS, 3))
    for slot in range(SLOTS):
        for begin, end, parts in zip(times[:-1], times[1:], busy, strict=True):
            common = max(0.0, min(end, edges[slot + 1]) - max(begin, edges[slot]))
            means[slot] += parts * common / (SECONDS / SLOTS)
    assert np.abs(levels[0] - 100 * means[:, [0, 2]].max(axis=1)).max() <= 0.5 + 1e-6
    assert (levels[1] == UNKNOWN).all()
    assert np.abs(levels[2] - 100 * means[:, 1]).max() <= 0.5 + 1e-6


@given(some_spans(), st.integers(0, 40))
def test_kept_ranks(spans: Spans, most: int) -> None:
    kept = chosen_ranks(spans, 4, most)
    assert kept.tolist() == sorted(set(kept.tolist()))
    finish = finish_times(spans)
    for rank, time in zip(spans.ranks, finish, strict=True):
        assert time == max(spans.end[spans.rank == rank], default=0)
    assert finish.max() == finish[np.isin(spans.ranks, kept)].max()
    assert finish.min() == finish[np.isin(spans.ranks, kept)].min()
    assert len(kept) <= 3 or np.isin(spans.rank, kept).sum() <= most
    if most >= len(spans.rank):
        assert kept.tolist() == spans.ranks.tolist()


@given(st.integers(1, 5000), st.integers(1, 80), st.floats(0.01, 1))
def test_rows_are_ranks_nodes_or_parts_of_them(num_ranks: int, node: int, part: float) -> None:
    num_ranks += -num_ranks % node
    known = np.arange(num_ranks)[-max(1, int(num_ranks * part)) :]
    rows = import_module("fuscoc.simulate.explorer.rows")
    group = rows.row_ranks(num_ranks, node)
    assert group % node == 0 or node % group == 0
    found = rows.Rows.of(known, group)
    assert len(found.first) <= 128
    assert found.size == (1 if len(known) <= 128 else group)
    for number, row in zip(known, found.place(known), strict=True):
        assert found.first[row] <= number < found.first[row] + found.size
