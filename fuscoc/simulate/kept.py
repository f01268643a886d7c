"""Whose spans are kept where there are too many: in a record, and again in a page."""

from __future__ import annotations

import numpy as np

from fuscoc.simulate.record import Float64Array, Int64Array, Spans


def finish_times(spans: Spans) -> Float64Array:
    """float64: when each of ``spans.ranks`` has done its last."""
    finish = np.zeros(len(spans.ranks))
    np.maximum.at(finish, np.searchsorted(spans.ranks, spans.rank), spans.end)
    return finish


def chosen_ranks(spans: Spans, group: int, most: int) -> Int64Array:
    """The ranks whose spans are kept if no more than ``most`` of all may be, ascending.

    First the last, the median and the first to finish, then the last of every ``group`` ranks,
    then the others by number.
    """
    finish = finish_times(spans)
    by_finish = np.argsort(finish, kind="stable")
    if not len(by_finish):
        return spans.ranks
    groups = spans.ranks // group
    late_first = by_finish[::-1]
    _, last_of_group = np.unique(groups[late_first], return_index=True)
    wanted = [late_first[0], by_finish[len(by_finish) // 2], by_finish[0]]
    order = dict.fromkeys([*wanted, *late_first[np.sort(last_of_group)], *range(len(finish))])
    positions = np.array(list(order), np.int64)
    count = np.bincount(np.searchsorted(spans.ranks, spans.rank), minlength=len(finish))
    fits = int(np.searchsorted(count[positions].cumsum(), most, side="right"))
    return np.asarray(np.sort(spans.ranks[positions[: max(fits, 3)]]))
