"""When what was busy: pictures of all ranks, and the spans of as many of them as fit a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fuscoc.simulate.explorer.coverage import lane_levels, load_levels
from fuscoc.simulate.explorer.kinds import Kind
from fuscoc.simulate.explorer.pack import Block
from fuscoc.simulate.explorer.rows import Rows, row_ranks
from fuscoc.simulate.kept import chosen_ranks, finish_times
from fuscoc.simulate.record import Int64Array, Load, Record, Spans

MAX_SPANS = 240_000
"""Spans that a page holds of all runs together: some 2 MB of it."""

TICKS = 2**31
"""Times are kept as whole parts of a leg, as fine as that."""


class Timelines:
    """Makes the timelines of a record's legs, which share one budget of spans."""

    def __init__(self, record: Record, kinds: Sequence[Kind], block: Block) -> None:
        cluster, every = record.cluster, list(_all_spans(record))
        highest = max((int(spans.ranks.max(initial=0)) for spans in every), default=0)
        self.num_ranks, node = highest + 1, 1
        if cluster is not None:
            self.num_ranks = max(self.num_ranks, cluster.num_nodes * cluster.ranks_per_node)
            node = cluster.ranks_per_node
        self.group = row_ranks(self.num_ranks, node)
        self._kinds, self._block = kinds, block
        self._budget = MAX_SPANS // max(1, len(every))

    def of(self, spans: Spans, seconds: float, load: Load | None = None) -> dict[str, Any]:
        """One leg's; it lasts ``seconds``, or as long as its last span."""
        spans = lanes_by_begin(spans)
        seconds = max(seconds, float(spans.end.max(initial=0)), 1e-9)
        rows = Rows.of(spans.ranks, self.group)
        row, count = rows.place(spans.ranks), len(rows.first)
        pictures = [
            self._picture(name, "rank", rows, lane_levels(spans, lane, seconds, row, count))
            | {"lane": True}
            for lane, name in enumerate(spans.lanes)
        ]
        if load is not None:
            pictures += self._loads(load, seconds)
        return {"seconds": seconds, "pictures": pictures, **self._spans(spans, seconds)}

    def _loads(self, load: Load, seconds: float) -> Iterator[dict[str, Any]]:
        for kind in self._kinds:
            columns = np.flatnonzero(np.isin(load.links, kind.ids))
            if len(columns):
                owner = kind.place[np.searchsorted(kind.ids, load.links[columns])]
                rows = Rows.of(np.unique(owner), self.group)
                place, count = rows.place(owner), len(rows.first)
                levels = load_levels(load, columns, seconds, place, count)
                yield self._picture(kind.label, kind.owner, rows, levels) | {"lane": False}

    def _picture(self, label: str, of: str, rows: Rows, levels: Int64Array) -> dict[str, Any]:
        return {
            "label": label,
            "of": of,
            "first": self._block.add(rows.first, "u4"),
            "size": rows.size,
            "levels": self._block.add(levels, "u1"),
        }

    def _spans(self, spans: Spans, seconds: float) -> dict[str, Any]:
        kept = chosen_ranks(spans, self.group, self._budget)
        taken = np.flatnonzero(np.isin(spans.rank, kept))
        order = taken[np.lexsort((spans.begin[taken], spans.lane[taken], spans.rank[taken]))]
        rank = spans.rank[order]
        tick = seconds / TICKS
        begin = np.rint(spans.begin[order] / tick)
        return {
            "lanes": list(spans.lanes),
            "names": list(spans.names),
            "tick": tick,
            "allRanks": len(spans.ranks),
            "ranks": self._block.add(kept, "u4"),
            "finish": self._block.add(finish_times(spans)[np.isin(spans.ranks, kept)], "f4"),
            "first": self._block.add(np.searchsorted(rank, kept), "u4"),
            "lane": self._block.add(spans.lane[order], "u1"),
            "name": self._block.add(spans.name[order], "u4"),
            "begin": self._block.add(begin, "u4"),
            "length": self._block.add(np.rint(spans.end[order] / tick) - begin, "u4"),
        }


def lanes_by_begin(spans: Spans) -> Spans:
    """The same spans, the lanes in the order in which they begin."""
    first = np.full(len(spans.lanes), np.inf)
    np.minimum.at(first, spans.lane, spans.begin)
    order = np.argsort(first, kind="stable")
    lanes = tuple(spans.lanes[lane] for lane in order)
    return replace(spans, lanes=lanes, lane=np.argsort(order)[spans.lane])


def _all_spans(record: Record) -> Sequence[Spans]:
    legs = [leg for run in record.runs for leg in (run.dispatch, run.combine) if leg is not None]
    recorded = [record.recorded] if record.recorded is not None else []
    return [*(leg.spans for leg in legs), *recorded]
