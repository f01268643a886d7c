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

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fuscoc_runtime.plan import native
from fuscoc_runtime.plan.arrays import upload
from fuscoc_runtime.plan.flows import Int64Array, Shares
from fuscoc_runtime.plan.rounds import Rounds
from fuscoc_runtime.plan.types import DescriptorList, Handover, PlanContext
from fuscoc_runtime.topology import Topology


@dataclass(frozen=True, eq=False)
class Handed:
    """``lists``: those that fill slices. ``back``: int64 [3, num_sent] on the host, the columns of
    ``hand_back``. ``row_rounds``: int64 [num_rows], the round in which each of this rank's network
    rows leaves, whoever sends it."""

    lists: dict[str, DescriptorList]
    entries: Handover
    back: Int64Array
    row_rounds: Int64Array

    def hand_back(self, ctx: PlanContext) -> DescriptorList:
        """The list of the way back, which nothing waits for."""
        [there] = upload([self.back], ctx.device)
        return dict(zip(("src_row", "dst_peer", "dst_row"), there.unbind(0), strict=True))


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
    rounds: Rounds,
    num_rounds: int,
    shares: Shares,
    num_direct: Int64Array,
    sources: Mapping[str, Tensor],
) -> Handed:
    """The lists of one rank.

    Args:
        shares: those that ``rounds`` are of.
        num_direct: int64 [R], rows of every rank's ``direct`` list.
        sources: columns that say where the source of each of this rank's network rows is.
    """
    stages, me = rounds.stages, ctx.rank
    sizes = _sizes(shares, me)
    handed, own, taken = sizes
    first, back, row_rounds, entries = native.hand_over(
        (stages.peer, stages.begin, stages.end, stages.tile),
        rounds.rows,
        me,
        shares.sent,
        shares.rows,
        num_direct,
        num_rounds,
        sizes,
    )
    [there] = upload([first], ctx.device)
    row, *columns = there.split_with_sizes([handed + own, handed, handed, own, taken, taken])
    peer, window, own_place, carried_row, place = columns
    addresses = {
        name: column[row].split_with_sizes([handed, own]) for name, column in sources.items()
    }
    lists: dict[str, DescriptorList] = {
        "carry": {
            **{name: parts[0] for name, parts in addresses.items()},
            "dst_peer": peer,
            "dst_row": window,
        },
        "carried": {"src_row": carried_row, "dst_row": place},
        "net_send": {
            **{name: parts[1] for name, parts in addresses.items()},
            "dst_row": own_place,
        },
    }
    return Handed(lists, Handover(*map(tuple, entries.tolist())), back, row_rounds)


def _sizes(shares: Shares, rank: int) -> tuple[int, int, int]:
    """Rows of ``rank`` that others send, that it sends itself, and that it sends for others."""
    by_carrier = shares.assignment.handed
    handed, taken = int(by_carrier[rank].sum()), int(by_carrier[:, rank].sum())
    return handed, int(shares.rows[rank].sum()) - handed, taken
