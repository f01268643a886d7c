"""A path as kernels of a fixed capacity carry it out inside one node: all at once.

Such kernels plan by themselves and pass rows on as they come, so that copies inside a rank's memory
go beside those to other ranks; what is not hidden of planning and of the ends comes before. Of what
every rank reads and writes, caches hold what ``benchmarks/moe_bound.py`` says: a segment is read
once, however many ranks it goes to, and sums of a rank's own segments never leave the chip.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fuscoc.simulate.counts import Counts
from fuscoc.simulate.steps import Wires
from fuscoc.simulate.tasks import Builder

Float64Array = NDArray[np.float64]
Int64Array = NDArray[np.int64]


def build_dispatch(wires: Wires, counts: Counts, begin: Int64Array) -> Int64Array:
    """Rows to their first slots, and from there to the others, behind ``begin`` [R]; returns the
    last tasks, [R]. No pair of ``counts`` is of two nodes."""
    ranks, builder = np.arange(wires.cluster.num_ranks), wires.builder
    source, target = wires.row_bytes("source"), wires.row_bytes("target")
    sends = _Sends(builder, begin, counts.pairs, "direct")
    wires.hbm(sends.rank_tasks, ranks, np.asarray(counts.sources * float(source)))
    wires.nvlink(sends.ids, sends.rank, sends.peer, sends.rows * target)
    wires.hbm(sends.ids, sends.peer, sends.rows * target)
    copies = builder.add(ranks, "local", ("all rows",))
    builder.after(begin, copies)
    away = counts.shared.copy()
    np.fill_diagonal(away, 0)
    further = np.asarray((counts.points - counts.pairs).sum(axis=0) * float(target))
    is_copied = "local" in [each.name for each in wires.program.dispatch.lists]
    if wires.program.is_compact or not is_copied:
        further = away = np.zeros_like(further)
    wires.hbm(copies, ranks, further + away.sum(axis=0) * float(target))
    return _end(builder, ranks, sends, copies)


def build_combine(
    wires: Wires,
    counts: Counts,
    begin: Int64Array,
    result: str = "result",
    further: Int64Array | int = 0,
) -> Int64Array:
    """Sums to their sources, and sums of these into the buffer ``result``, likewise. ``further``
    [R]: rows of staging that sums take besides."""
    ranks, builder = np.arange(wires.cluster.num_ranks), wires.builder
    rows, staging = wires.row_bytes("rows"), wires.row_bytes("staging")
    sends = _Sends(builder, begin, counts.pairs.T, "reduce direct")
    wires.hbm(sends.rank_tasks, ranks, counts.points.sum(axis=0) * float(rows))
    wires.nvlink(sends.ids, sends.rank, sends.peer, sends.rows * staging)
    away = sends.rank != sends.peer
    wires.hbm(sends.ids[away], sends.peer[away], sends.rows[away] * staging)
    sums = builder.add(ranks, "reduce source", ("all rows",))
    builder.after(begin, sums)
    remote = counts.pairs.copy()
    np.fill_diagonal(remote, 0)
    read = (remote.sum(axis=1) + further) * float(staging)
    wires.hbm(sums, ranks, read + counts.sources * float(wires.row_bytes(result)))
    return _end(builder, ranks, sends, sums)


class _Sends:
    """Tasks of all ranks that read, and of all pairs of ranks that move rows.

    A rank's launch goes through its rows in turn, so one task of it moves all of them.
    """

    def __init__(self, builder: Builder, begin: Int64Array, pairs: Int64Array, name: str) -> None:
        self.rank, self.peer = np.nonzero(pairs)
        self.rows = pairs[self.rank, self.peer].astype(np.float64)
        self.rank_tasks = builder.add(np.arange(len(begin)), name, ("all rows",))
        builder.after(begin, self.rank_tasks)
        self.ids = self.rank_tasks[self.rank]


def _end(builder: Builder, ranks: Int64Array, sends: _Sends, others: Int64Array) -> Int64Array:
    """A rank is done when its own work is, and what others store into its memory."""
    end = builder.add(ranks)
    builder.after(others, end)
    builder.after(sends.rank_tasks, end)
    builder.after(sends.ids, end[sends.peer])
    return end
