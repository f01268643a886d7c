"""The points of a relation, as ``fsc.node_points`` says them one by one and as pieces do.

Points are the rows of an array: outer indices, first cell, rank, slot, strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import prod
from typing import Any

import numpy as np

from fuscoc.dialect import new_context
from fuscoc.dialect.base import ops_of
from fuscoc.dialect.builder import build_module
from fuscoc.dialect.fused import NodePieces, NodePoints
from fuscoc.dialect.l0 import Shuffle
from fuscoc.dialect.node import Node
from fuscoc.lang.checked import CheckedShuffle
from fuscoc.pipeline import PASS_NAMES, PASSES
from tests.passes.interpreter import Rank, entry, evaluate

Rows = np.ndarray[Any, Any]

_context = cache(new_context)


@dataclass(frozen=True)
class Split:
    """A module behind split-affine; it keeps its context alive."""

    module: Any

    @classmethod
    def of(cls, checked: CheckedShuffle) -> Split:
        with _context():
            module = build_module(checked)
            for step in PASSES[: PASS_NAMES.index("split-affine")]:
                step.run(module)
        assert module.operation.verify()
        return cls(module)

    @cached_property
    def points(self) -> Any:
        (node,) = ops_of(self.module, Node)
        (points,) = ops_of(node, NodePoints)
        return points

    @cached_property
    def pieces(self) -> Any:
        """The ``fsc.node_pieces``, or None."""
        nodes = ops_of(self.module, Node)
        return next((each for node in nodes for each in ops_of(node, NodePieces)), None)

    @cached_property
    def runs(self) -> Any:
        """How the first field of a segment lies in the source."""
        (shuffle,) = ops_of(self.module, Shuffle)
        return shuffle.read("runs")[0]

    @property
    def num_pieces(self) -> int:
        """0 where points have their slots one by one."""
        if self.pieces is None:
            return 0
        return sum(op.operation.name == "fsc.piece" for op in self.pieces.entry.blocks[0])

    def with_cells(self, rank: Rank) -> Rank:
        """The same rank with its source's entries one behind the other, if it is ragged."""
        cells, _ = self._sizes(rank)
        return replace(rank, cell_offset=np.concatenate([[0], np.cumsum(cells)]))

    def relation(self, rank: Rank, outer: Sequence[int]) -> Rows:
        """The points of a rank that are not dropped; ``outer`` are the indices that rows have."""
        _, extents = self._sizes(rank)
        grids = [np.zeros((extents.shape[1], 0), dtype=int)]
        for at, sizes in enumerate(extents.tolist()):
            grids.append(_grid([1, *sizes[1:]]))
            grids[-1][0] = at
        indices = np.concatenate(grids, axis=1)
        found = evaluate(self.points.relation, list(indices), rank)
        columns = [found[name] for name in ("offset", "rank", "place", "strides")]
        return _rows(indices[list(outer)], [value for column in columns for value in column])

    def enumerated(self, rank: Rank) -> Rows:
        """The same, from pieces, once for each time that one has the point.

        One number of a piece at most moves the rank.
        """
        outer = list(self.pieces.read("outer"))
        sizes = evaluate(self.points.domain, [np.arange(0)], rank)["extents"]
        entries = _grid([sizes[index] for index in outer])
        dropped, pieces = entry(self.pieces.entry, list(entries), rank)
        num_entries = entries.shape[1]
        kept = np.flatnonzero(~np.broadcast_to(np.asarray(dropped, dtype=bool), num_entries))
        found = [np.zeros((0, len(outer) + 3 + len(pieces[0].strides)), dtype=int)]
        for piece in pieces:
            counts, place, strides = (
                _table(each, num_entries) for each in (piece.counts, piece.place, piece.strides)
            )
            steps = np.stack([_table(each, num_entries) for each in piece.steps])
            for at in kept:
                grid = _grid(np.maximum(counts[:, at], 0).tolist())
                if grid.size:
                    assert np.count_nonzero((steps[1, :, at] != 0) & (counts[:, at] > 1)) <= 1
                places = place[:, at, None] + steps[:, :, at] @ grid
                found.append(_rows(entries[:, at, None], [*places, *strides[:, at]]))
        return np.concatenate(found)

    def cells(self, points: Rows) -> Rows:
        """The source cells of every point's segment, in their order."""
        first = len(self.pieces.read("outer"))
        strides = points[:, first + 3 :]
        offsets = np.zeros((len(points), 1), dtype=int)
        for dim in self.runs["run_dims"]:
            step = dim["src_stride"]
            if isinstance(step, str):
                step = strides[:, [int(step.removeprefix("src_stride"))]]
            offsets = _spread(offsets, step * np.arange(dim["count"]))
        run = self.runs["run_elems"] // self.runs["cell_elems"]
        return points[:, [first]] + _spread(offsets, np.arange(run))

    def _sizes(self, rank: Rank) -> tuple[Rows, Rows]:
        """The cells, if they differ, and the extents of every entry of the outermost index."""
        rows = evaluate(self.points.domain, [np.arange(0)], rank)["extents"][0]
        found = evaluate(self.points.domain, [np.arange(rows)], rank)
        return _table(found["cells"], rows), _table(found["extents"], rows).T


def ranks_of(num_ranks: int, **extents: int) -> list[Rank]:
    """All ranks of a call, with extents that are the same for each."""
    return [Rank({"ranks": num_ranks, "rank": rank} | extents) for rank in range(num_ranks)]


def moved(found: Split, ranks: Sequence[Rank]) -> Rows:
    """What pieces bring, a row for each point: the rank and slot, and the rank and cells that it
    comes from."""
    at, rows = len(found.pieces.read("outer")) + 1, []
    ragged = found.points.read("ragged")
    for number, each in enumerate(ranks):
        points = found.enumerated(found.with_cells(each) if ragged else each)
        source = np.full((len(points), 1), number)
        rows.append(np.hstack([points[:, at : at + 2], source, found.cells(points)]))
    return np.concatenate(rows)


def ordered(rows: Rows) -> Rows:
    """The same rows in one order."""
    return rows[np.lexsort(rows.T[::-1])]


def _spread(places: Rows, steps: Rows) -> Rows:
    """Every place with every step behind it, in a row for each point."""
    found = places[:, :, None] + np.broadcast_to(steps, (len(places), steps.shape[-1]))[:, None]
    return found.reshape(len(places), places.shape[1] * steps.shape[-1])


def _grid(sizes: Sequence[int]) -> Rows:
    """All numbers below some sizes, a column for each."""
    return np.indices(tuple(sizes)).reshape(len(sizes), prod(sizes))


def _table(values: list[Any], size: int) -> Rows:
    """A row for each value, which is one number or ``size`` of them."""
    table = np.empty((len(values), size), dtype=int)
    for row, each in zip(table, values, strict=True):
        row[:] = each
    return table


def _rows(outer: Rows, columns: list[Any]) -> Rows:
    """Points that are not dropped: at ``outer`` indices, with numbers or arrays as columns."""
    size = max([outer.shape[1], *(np.size(each) for each in columns if np.ndim(each))])
    if any(np.ndim(each) and not np.size(each) for each in columns):
        size = 0
    rows = np.concatenate([np.broadcast_to(outer, (len(outer), size)), _table(columns, size)]).T
    return rows[rows[:, len(outer) + 1] != -1]
