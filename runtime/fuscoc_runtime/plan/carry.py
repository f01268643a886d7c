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

All are ordered by sender and, in that, as the sender has its rows: by forwarder, its own first and
then those of other ranks, ascending.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fuscoc_runtime.arrays import Array
from fuscoc_runtime.plan.arrays import before, upload
from fuscoc_runtime.plan.flows import Int64Array, Shares
from fuscoc_runtime.plan.types import DescriptorList, PlanContext
from fuscoc_runtime.topology import Topology


@dataclass(frozen=True, eq=False)
class _Runs:
    """Consecutive rows of one source that a rank sends: int64 [num_runs] each.

    ``first``: among the network rows of their source. ``place``: among all that the rank sends;
    ``window``: in its window, if they are another's.
    """

    source: Int64Array
    first: Int64Array
    place: Int64Array
    window: Int64Array
    length: Int64Array

    @classmethod
    def of(cls, sender: int, shares: Shares, topology: Topology) -> _Runs:
        """All that ``sender`` sends, in its order."""
        rows, rank = shares.rows, np.arange(topology.num_ranks)
        node = topology.node_ranks(topology.node(sender))
        sources = np.array([sender, *(each for each in node if each != sender)])
        sent_here = rank % topology.ranks_per_node == topology.local_rank(sender)
        length = np.where(sent_here, rows[sources], 0).T.ravel()
        source = np.tile(sources, topology.num_ranks)
        of_others = np.where(source == sender, 0, length)
        first = (rows.cumsum(axis=1) - rows)[sources].T.ravel()
        return cls(source, first, before(length), before(of_others), length)

    def where(self, kept: NDArray[np.bool_]) -> _Runs:
        return _Runs(*(column[kept] for column in vars(self).values()))

    def each(self, begin: Int64Array) -> Int64Array:
        """int64 [num_rows]: what begins at ``begin`` with every run, and grows by one a row."""
        return np.arange(int(self.length.sum())) + self.alike(begin - before(self.length))

    def alike(self, values: Int64Array) -> Int64Array:
        """int64 [num_rows]: a value of every run for each of its rows."""
        return np.repeat(values, self.length)


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
    ctx: PlanContext, shares: Shares, num_direct: Int64Array, sources: Mapping[str, Array]
) -> dict[str, DescriptorList]:
    """The lists of one rank.

    Args:
        num_direct: int64 [R], rows of every rank's ``direct`` list.
        sources: columns that say where the source of each of this rank's network rows is.
    """
    me, topology = ctx.rank, ctx.topology
    node = topology.node_ranks(topology.node(me))
    sent = _Runs.of(me, shares, topology)
    own, taken = sent.where(sent.source == me), sent.where(sent.source != me)
    handed = [(rank, _Runs.of(rank, shares, topology)) for rank in node if rank != me]
    given = [(rank, runs.where(runs.source == me)) for rank, runs in handed]
    local = sent.source % topology.ranks_per_node
    columns = upload(
        [
            np.concatenate([runs.each(runs.first) for _, runs in given]),
            np.concatenate(
                [runs.alike(np.full_like(runs.length, topology.local_rank(r))) for r, runs in given]
            ),
            np.concatenate([runs.each(runs.window) for _, runs in given]),
            own.each(own.first),
            own.each(own.place),
            taken.each(taken.window),
            taken.each(taken.place),
            sent.each(sent.place),
            sent.alike(local),
            sent.each(num_direct[sent.source] + sent.first),
        ],
        ctx.device,
    )
    row, peer, window, own_row, own_place, *carried = columns
    return {
        "carry": {**_at(sources, row), "dst_peer": peer, "dst_row": window},
        "carried": dict(zip(("src_row", "dst_row"), carried[:2], strict=True)),
        "net_send": {**_at(sources, own_row), "dst_row": own_place},
        "hand_back": dict(zip(("src_row", "dst_peer", "dst_row"), carried[2:], strict=True)),
    }


def _at(columns: Mapping[str, Array], rows: Array) -> DescriptorList:
    return {name: column[rows] for name, column in columns.items()}
