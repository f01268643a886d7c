"""Live points -> copies: who shares an NVLink copy, who shares a network copy, and their order.

Dedup ``rank`` makes one *pair* of all points of a source for one rank; otherwise every point is a
pair. A pair inside the node is a row of ``direct``. Dedup ``node`` makes one network *row* of all
remote pairs of a source for one node; otherwise every remote pair is a row. A row goes to a
forwarder of the destination node, which serves the row's pairs: ``forwarders.py``.

Who leads a copy is known before the census. Copies are ordered while that travels, and listed after
it, which tells the host how many there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fuscoc_runtime.plan.arrays import differs, stable_order
from fuscoc_runtime.plan.points import LivePoints, SortedPoints
from fuscoc_runtime.plan.types import PlanContext


@dataclass(frozen=True, eq=False)
class Leads:
    """Which of the sorted points lead a copy.

    bool [num_points] each: ``pair``, the first of a pair; ``far``, of one on another node; ``row``,
    the first pair of a network row. ``node``: int64 [num_points], where a point goes.
    """

    pair: Tensor
    far: Tensor
    row: Tensor
    node: Tensor


@dataclass(frozen=True, eq=False)
class Copies:
    """The copies among the sorted points.

    int64 [num_points] each: first the pairs inside the node, then those on other nodes, by node;
    the rest behind. ``lead``, ``source``, ``rank``: as in ``DirectPairs``; ``row``: as in
    ``RemotePairs``.
    """

    lead: Tensor
    source: Tensor
    rank: Tensor
    row: Tensor


@dataclass(frozen=True, eq=False)
class DirectPairs:
    """Pairs inside the node, ordered by (source, destination rank)."""

    lead: Tensor  # index of the pair's first live point
    source: Tensor
    rank: Tensor


@dataclass(frozen=True, eq=False)
class RemotePairs:
    """Pairs on other nodes in the order in which their forwarder serves them: by row, then rank."""

    lead: Tensor
    rank: Tensor
    row: Tensor  # among the network rows


@dataclass(frozen=True, eq=False)
class Hops:
    """Every copy that starts at this rank.

    ``row_source``: int64 [num_rows], the source of every network row in sending order: by node,
    then source. A forwarder of a node takes consecutive rows, so this is also the order by
    forwarder.
    """

    direct: DirectPairs
    row_source: Tensor
    remote: RemotePairs


@dataclass(frozen=True)
class NumCopies:
    """How many copies start at a rank: ``near`` and ``far`` pairs, network ``rows``."""

    near: int
    far: int
    rows: int


def find_leads(ctx: PlanContext, ordered: SortedPoints) -> Leads:
    """Group the points into copies."""
    points, program, m = ordered.points, ctx.program, ctx.topology.ranks_per_node
    node = points.rank // m
    pair = ordered.live
    if program.copies_once("rank"):
        pair = pair & differs(points.pair)
    row = far = pair & (node != ctx.topology.node(ctx.rank))
    if program.copies_once("node"):
        row = far & differs(points.pair // m)
    return Leads(pair, far, row, node)


def order_copies(ctx: PlanContext, points: LivePoints, leads: Leads) -> Copies:
    """Order the copies."""
    num_nodes = ctx.topology.num_nodes
    # Ascending: pairs inside the node, those on node 0, 1, ..., points that lead nothing.
    group = torch.where(leads.pair, (leads.node + 1) * leads.far, num_nodes + 1)
    order = stable_order(group, num_nodes + 2)
    row = leads.row[order].cumsum(0) - 1
    return Copies(order, points.source[order], points.rank[order], row)


def list_hops(copies: Copies, sizes: NumCopies) -> Hops:
    """List the copies."""
    near, far = slice(sizes.near), slice(sizes.near, sizes.near + sizes.far)
    remote = RemotePairs(copies.lead[far], copies.rank[far], copies.row[far])
    row_source = torch.empty(sizes.rows, dtype=torch.int64, device=copies.row.device)
    row_source[remote.row] = copies.source[far]  # the same one for all pairs of a row
    direct = DirectPairs(copies.lead[near], copies.source[near], copies.rank[near])
    return Hops(direct, row_source, remote)
