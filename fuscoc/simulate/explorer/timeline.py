"""When what was busy: pictures of all ranks, and the spans of as many of them as fit a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fuscoc.simulate.explorer.coverage import (
    MAX_ROWS,
    chosen_ranks,
    finish_times,
    lane_levels,
    load_levels,
)
from fuscoc.simulate.explorer.kinds import Kind
from fuscoc.simulate.explorer.pack import Block
from fuscoc.simulate.record import Int64Array, Load, Record, Spans

MAX_SPANS = 240_000
"""Spans that a page holds of all runs together: some 2 MB of it."""

MIN_ROWS = 32
"""Nodes of a cluster whose rows are nodes; those of fewer would be too much in one row."""

TICKS = 2**31
"""Times are kept as whole parts of a leg, as fine as that."""


def row_ranks(num_ranks: int, node: int) -> int:
    """How many ranks share a row of a picture if there are too many for one each.

    Those of a node, of several nodes where there are many, or of an even part of a large node.
    """
    if num_ranks < node * MIN_ROWS:
        return min(part for part in range(1, node + 1)
                   if node % part == 0 and num_ranks <= part * MAX_ROWS)  # fmt: skip
    return node * -(-num_ranks // (node * MAX_ROWS))


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
        self.by_group = self.num_ranks > MAX_ROWS
        self._kinds, self._block = kinds, block
        self._budget = MAX_SPANS // max(1, len(every))

    def shape(self) -> dict[str, Any]:
        """What the rows of a picture are."""
        return {"ranks": self.num_ranks, "group": self.group, "byGroup": self.by_group}

    def of(self, spans: Spans, seconds: float, load: Load | None = None) -> dict[str, Any]:
        """One leg's; it lasts ``seconds``, or as long as its last span."""
        spans = lanes_by_begin(spans)
        seconds = max(seconds, float(spans.end.max(initial=0)), 1e-9)
        row = np.arange(self.num_ranks) // (self.group if self.by_group else 1)
        rows = int(row[-1]) + 1
        pictures = [
            {
                "label": name,
                "lane": True,
                "of": "rank",
                "levels": self._block.add(lane_levels(spans, lane, seconds, row, rows), "u1"),
            }
            for lane, name in enumerate(spans.lanes)
        ]
        if load is not None:
            pictures += self._loads(load, seconds, row)
        return {"seconds": seconds, "pictures": pictures, **self._spans(spans, seconds)}

    def _loads(self, load: Load, seconds: float, row: Int64Array) -> list[dict[str, Any]]:
        pictures = []
        for kind in self._kinds:
            columns = np.flatnonzero(np.isin(load.links, kind.ids))
            if not len(columns):
                continue
            place = kind.place[np.searchsorted(kind.ids, load.links[columns])]
            num_rows = kind.count
            if kind.owner == "rank":
                place, num_rows = row[place], int(row[-1]) + 1
            levels = load_levels(load, columns, seconds, place, num_rows)
            pictures.append(
                {
                    "label": kind.label,
                    "lane": False,
                    "of": kind.owner,
                    "levels": self._block.add(levels, "u1"),
                }
            )
        return pictures

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
