"""Rows that another rank of the node sends over the network: FAST's pre-step, carried out.

A rank with less to send than its peers is a *carrier*: they store rows into its window, over
NVLink, and it sends them among its own. Who carries which rows follows from the shares, which all
ranks know, so nobody has to say another word.

carry      a row that another rank sends: src_offset, src_stride*, dst_peer, dst_row (of the
           carrier's window)
carried    a row that this rank sends for another: src_row (of its window), dst_row
net_send   a row of its own that it sends itself, as ``plan/send.py`` has it
hand_back  every row that it sends, on the way back: src_row (its ``dst_row`` above), dst_peer and
           dst_row (the source and its staging row)

All are ordered by the round in which their rows leave, and in it as they leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from torch import Tensor

from fuscoc_runtime.plan.arrays import upload
from fuscoc_runtime.plan.flows import Int64Array
from fuscoc_runtime.plan.rounds import Side, ranges
from fuscoc_runtime.plan.types import DescriptorList, Handover, PlanContext
from fuscoc_runtime.topology import Topology


@dataclass(frozen=True, eq=False)
class Handed:
    """``lists``: those above. ``row_rounds``: int64 [num_rows], the round in which each of this
    rank's network rows leaves, whoever sends it."""

    lists: dict[str, DescriptorList]
    entries: Handover
    row_rounds: Int64Array


@dataclass(frozen=True, eq=False)
class _Runs:
    """Consecutive rows that a rank sends, run by run in wire order: int64 [num_runs] each.

    ``source``: whose they are, and ``row``: the place of the first among the network rows of that
    rank. ``slice``: its place among all that the sender sends, by forwarder; ``window``: in the
    sender's window, if it is another's. ``round``, ``length``: when, and how many rows.
    """

    source: Int64Array
    row: Int64Array
    slice: Int64Array
    window: Int64Array
    round: Int64Array
    length: Int64Array

    def __getitem__(self, chosen: Any) -> _Runs:
        return _Runs(*(getattr(self, each.name)[chosen] for each in fields(self)))

    @classmethod
    def joined(cls, parts: Sequence[_Runs]) -> _Runs:
        columns = ([getattr(part, each.name) for part in parts] for each in fields(cls))
        return cls(*map(np.concatenate, columns))

    def each(self, first: Int64Array) -> Int64Array:
        """A column of first places as one of all rows."""
        return ranges(first, self.length)

    def alike(self, values: Int64Array) -> Int64Array:
        """A column of runs as one of all rows, which are alike in it."""
        return np.repeat(values, self.length)

    def per_round(self, num_rounds: int) -> tuple[int, ...]:
        """Rows in every round."""
        counts = np.zeros(num_rounds, np.int64)
        np.add.at(counts, self.round, self.length)
        return tuple(counts.tolist())


def landing_order(topology: Topology, local_rank: int) -> Int64Array:
    """int64 [num_ranks]: all ranks in the order in which their rows land at a forwarder.

    By sender, which is the rank with the forwarder's own ``local_rank``; there the sender's own
    rows come first.
    """
    rank = np.arange(topology.num_ranks)
    node, local = np.divmod(rank, topology.ranks_per_node)
    return np.lexsort((rank, local != local_rank, node))


def landing_before(topology: Topology, rank: int) -> Int64Array:
    """bool [num_ranks, num_ranks]: whether rows of a source (row) lie before those of ``rank`` at
    a forwarder (column)."""
    m = topology.ranks_per_node
    place = np.argsort([landing_order(topology, local) for local in range(m)], axis=1)
    before = place < place[:, rank, None]
    return np.tile(before.T, topology.num_nodes)


def hand_over(
    ctx: PlanContext,
    rows: Int64Array,
    sides: Mapping[int, Side],
    num_rounds: int,
    num_direct: Int64Array,
    addresses: Mapping[str, Tensor],
    row_source: Tensor,
) -> Handed:
    """The lists of one rank.

    Args:
        rows: int64 [R, R], network rows by source and forwarder.
        sides: what every rank of this node sends, in rounds.
        num_direct: int64 [R], rows of every rank's ``direct`` list.
        addresses: columns that say where this rank's sources are.
        row_source: int64 [num_rows], the source of each of its network rows.
    """
    m, me = ctx.topology.ranks_per_node, ctx.rank
    first = rows.cumsum(axis=1) - rows
    sent = {rank: _runs(rows, first, m, rank, side) for rank, side in sides.items()}
    out = sent[me]
    own, taken = out[out.source == me], out[out.source != me]
    parts = [(rank, runs[runs.source == me]) for rank, runs in sent.items() if rank != me]
    handed = _Runs.joined([part for _, part in parts])
    peer = np.repeat([rank % m for rank, _ in parts], [len(part.length) for _, part in parts])
    by_round = np.argsort(handed.round, kind="stable")
    handed, peer = handed[by_round], peer[by_round]

    tables = {
        "carry.row": handed.each(handed.row),
        "carry.dst_peer": handed.alike(peer),
        "carry.dst_row": handed.each(handed.window),
        "carried.src_row": taken.each(taken.window),
        "carried.dst_row": taken.each(taken.slice),
        "net_send.row": own.each(own.row),
        "net_send.dst_row": own.each(own.slice),
        "hand_back.src_row": out.each(out.slice),
        "hand_back.dst_peer": out.alike(out.source % m),
        "hand_back.dst_row": out.each(num_direct[out.source] + out.row),
    }
    there = upload(list(tables.values()), ctx.device)
    lists: dict[str, DescriptorList] = {}
    for place, column in zip(tables, there, strict=True):
        name, _, key = place.partition(".")
        if key == "row":
            source = row_source[column]
            lists[name] = {each: values[source] for each, values in addresses.items()}
        else:
            lists.setdefault(name, {})[key] = column

    row_rounds = np.empty(int(rows[me].sum()), np.int64)
    for part, name in ((handed, "carry.row"), (own, "net_send.row")):
        row_rounds[tables[name]] = part.alike(part.round)
    entries = Handover(*(part.per_round(num_rounds) for part in (handed, own, taken)))
    return Handed(lists, entries, row_rounds)


def _runs(rows: Int64Array, first: Int64Array, m: int, sender: int, side: Side) -> _Runs:
    """What ``sender`` sends, its own rows first in all that goes to a forwarder.

    ``first``: int64 [R, R], where the rows that a source leaves to a forwarder begin among its own.
    """
    node = range(sender // m * m, sender // m * m + m)
    sources = np.array([sender, *(rank for rank in node if rank != sender)])
    slices = side.slices
    peer = slices.peer[:, None]
    # A slice cut by sources: [num_slices, m].
    counts = rows[sources, peer]
    end = counts.cumsum(axis=1)
    begin = np.maximum(end - counts, slices.begin[:, None])
    length = np.maximum(np.minimum(end, slices.end[:, None]) - begin, 0)
    of_others = np.where(sources == sender, 0, length).ravel()
    return _Runs(
        np.tile(sources, len(slices.peer)),
        (first[sources, peer] + begin - (end - counts)).ravel(),
        ((side.begin - slices.begin)[:, None] + begin).ravel(),
        of_others.cumsum() - of_others,
        np.repeat(slices.stage, m),
        length.ravel(),
    )
