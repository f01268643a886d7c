"""What happened when, as whole percents of equal slots of time: small, and fast to draw."""

from __future__ import annotations

import numpy as np

from fuscoc.simulate.record import Float64Array, Int64Array, Load, Spans

SLOTS = 240
"""Columns of a picture over time; a screen shows some 1000 pixels."""

UNKNOWN = 255
"""The level of a row of which nothing was kept."""


def lane_levels(
    spans: Spans, lane: int, seconds: float, row: Int64Array, num_rows: int
) -> Int64Array:
    """Spans of one lane -> int64 [num_rows, SLOTS], the percent of a slot in which it is busy.

    ``row``: int64, the row of each of ``spans.ranks``; a row shows the mean of its ranks.
    """
    taken = spans.lane == lane
    rank, begin, end = spans.rank[taken], spans.begin[taken], spans.end[taken]
    position, ranks = np.searchsorted(spans.ranks, rank), len(spans.ranks)
    covered = np.minimum(_covered(position, begin, end, ranks, seconds), 1)
    total, count = np.zeros((num_rows, SLOTS)), np.zeros(num_rows)
    np.add.at(total, row, covered)
    np.add.at(count, row, 1)
    return _percent(total / np.maximum(count, 1)[:, None], count > 0)


def _covered(
    row: Int64Array, begin: Float64Array, end: Float64Array, num_rows: int, seconds: float
) -> Float64Array:
    """float64 [num_rows, SLOTS]: the part of every slot that intervals cover, summed up.

    The integral of what covers a time, at the edges of the slots, is a sum of ramps: each interval
    adds one that rises from its begin, and takes one away from its end.
    """
    integral = np.zeros((num_rows, SLOTS + 1))
    slope = np.zeros((num_rows, SLOTS + 2))
    for time, sign in ((begin, 1.0), (end, -1.0)):
        at = np.clip(time * (SLOTS / seconds), 0, SLOTS)
        edge = np.ceil(at).astype(np.int64)
        np.add.at(slope, (row, edge), sign)
        np.add.at(integral, (row, edge), sign * (edge - at))
    integral = integral.cumsum(axis=1)
    integral[:, 1:] += slope[:, :SLOTS].cumsum(axis=1).cumsum(axis=1)
    return np.asarray(np.diff(integral, axis=1))


def load_levels(
    load: Load, columns: Int64Array, seconds: float, row: Int64Array, num_rows: int
) -> Int64Array:
    """Links' loads -> int64 [num_rows, SLOTS], percents of the busiest link of every row.

    ``columns``: int64 [C], columns of ``load.busy``; ``row``: int64 [C], the row that shows each.
    """
    width = np.diff(load.times)[:, None]
    integral = np.concatenate(
        [np.zeros((1, len(columns))), (load.busy[:, columns] * width).cumsum(axis=0)]
    )
    edges = np.linspace(0, seconds, SLOTS + 1)
    levels, known = np.zeros((num_rows, SLOTS)), np.zeros(num_rows, bool)
    for column, place in enumerate(row):
        mean = np.diff(np.interp(edges, load.times, integral[:, column])) * (SLOTS / seconds)
        levels[place] = np.maximum(levels[place], mean)
    known[row] = True
    return _percent(levels, known)


def _percent(parts: Float64Array, known: object) -> Int64Array:
    """Parts of 1 -> percents; ``UNKNOWN`` in rows of which nothing is known."""
    percent = np.rint(np.clip(parts, 0, 1) * 100).astype(np.int64)
    return np.where(np.asarray(known)[:, None], percent, UNKNOWN)
