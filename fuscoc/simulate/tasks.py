"""A call as tasks: bytes on links, and which tasks each of them comes behind.

A task begins when those before it have ended, waits for its latency, and then moves all of its
bytes at one pace: a launch goes through its list in order, so that its rows meet all of its links
alike. Tasks without bytes are joins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64Array = NDArray[np.float64]
Int64Array = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Csr:
    """Rows of unequal length: those of row ``i`` are ``items[start[i]:start[i + 1]]``."""

    start: Int64Array
    items: Int64Array

    @classmethod
    def of(cls, rows: Int64Array, items: Int64Array, num_rows: int) -> tuple[Csr, Int64Array]:
        """From pairs in any order; also their order."""
        order = np.argsort(rows, kind="stable")
        start = np.zeros(num_rows + 1, np.int64)
        np.cumsum(np.bincount(rows, minlength=num_rows), out=start[1:])
        return cls(start, items[order]), order

    def places(self, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Where the items of some rows are, one row behind the other, and how many each has."""
        lengths = self.start[rows + 1] - self.start[rows]
        before = np.cumsum(lengths) - lengths
        return np.arange(lengths.sum()) + np.repeat(self.start[rows] - before, lengths), lengths


@dataclass(frozen=True, eq=False)
class Tasks:
    """Columns by task. ``lane``, ``name``: indices of words; lane -1 for joins. ``latency``: in
    seconds. ``links`` and ``bytes``: what a task moves, [num_entries], by ``links.start``.
    ``followers``: the tasks behind each one; ``num_before``: how many it waits for."""

    rank: Int64Array
    lane: Int64Array
    name: Int64Array
    latency: Float64Array
    links: Csr
    bytes: Float64Array
    followers: Csr
    num_before: Int64Array
    lanes: tuple[str, ...]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rank)


class Builder:
    """Collects tasks, demands and edges, as arrays of any shape."""

    def __init__(self) -> None:
        self._size = 0
        self._columns: list[tuple[Int64Array, Int64Array, Int64Array, Float64Array]] = []
        self._demands: list[tuple[Int64Array, Int64Array, Float64Array]] = []
        self._edges: list[tuple[Int64Array, Int64Array]] = []
        self._words: tuple[dict[str, int], dict[str, int]] = {}, {}

    def add(
        self,
        rank: Int64Array,
        lanes: str | Sequence[str] = "",
        names: Sequence[str] = ("",),
        latency: float | Float64Array = 0.0,
    ) -> Int64Array:
        """New tasks, in the shape of ``rank``. ``lanes``, ``names``: along the last dimension, or
        one of all; without a lane they are joins."""
        ids = np.arange(self._size, self._size + rank.size).reshape(rank.shape)
        self._size += rank.size
        lanes = [lanes] if isinstance(lanes, str) else lanes
        numbers = [
            np.array([-1 if not each else words.setdefault(each, len(words)) for each in given])
            for words, given in zip(self._words, (lanes, names), strict=True)
        ]
        columns = (*numbers, np.asarray(latency, np.float64))
        lane, name, late = (np.broadcast_to(each, rank.shape).ravel() for each in columns)
        self._columns.append((rank.ravel(), lane, name, late))
        return ids

    def demand(self, tasks: Int64Array, links: Int64Array, num_bytes: Float64Array) -> None:
        """Bytes of tasks on links, equal shapes."""
        kept = num_bytes > 0
        self._demands.append((tasks[kept], links[kept], num_bytes[kept]))

    def after(self, earlier: Int64Array, later: Int64Array) -> None:
        """``later`` tasks begin behind ``earlier`` ones; shapes that broadcast."""
        earlier, later = np.broadcast_arrays(earlier, later)
        self._edges.append((earlier.ravel(), later.ravel()))

    def join(self, tasks: Int64Array) -> Int64Array:
        """A task behind all of the last dimension: one less dimension."""
        found = self.add(np.zeros(tasks.shape[:-1], np.int64))
        self.after(tasks, found[..., None])
        return found

    def finish(self) -> Tasks:
        """All of it, checked to be acyclic by whoever runs it."""
        rank, lane, name, latency = (
            np.concatenate(each) for each in zip(*self._columns, strict=True)
        )
        task, link, amount = (
            (np.concatenate(each) for each in zip(*self._demands, strict=True))
            if self._demands
            else (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
        )
        links, order = Csr.of(task, link, self._size)
        earlier, later = (np.concatenate(each) for each in zip(*self._edges, strict=True))
        followers, _ = Csr.of(earlier, later, self._size)
        before = np.bincount(later, minlength=self._size)
        words = tuple(tuple(each) for each in self._words)
        return Tasks(rank, lane, name, latency, links, amount[order], followers, before, *words)
