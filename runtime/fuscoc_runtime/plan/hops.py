"""Live points -> copies: who shares an NVLink copy, who shares a network copy, and their order.

Dedup ``rank`` makes one *pair* of all points of a source for one rank; otherwise every point is a
pair. A pair inside the node is a row of ``direct``. Dedup ``node`` makes one network *row* of all
remote pairs of a source for one node; otherwise every remote pair is a row. A row goes to a
forwarder of the destination node, which serves the row's pairs: ``forwarders.py``.

Copies are ordered before the census and listed after it, which tells the host how many there are.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuscoc_runtime.arrays import Array, namespace
from fuscoc_runtime.plan.arrays import count, differs, empty, stable_order
from fuscoc_runtime.plan.points import LivePoints, SortedPoints
from fuscoc_runtime.plan.types import PlanContext


@dataclass(frozen=True, eq=False)
class Copies:
    """The copies among the sorted points.

    ``order``: int64 [num_points], first those that lead a pair inside the node, then those that
    lead a pair on another node, by node; the rest behind. ``leads_row``: bool [num_points], the
    first pair of a network row. ``per_rank``: int64 [num_ranks], pairs by destination rank.
    ``per_node``: int64 [num_nodes], rows by node.
    """

    order: Array
    leads_row: Array
    per_rank: Array
    per_node: Array


@dataclass(frozen=True, eq=False)
class DirectPairs:
    """Pairs inside the node, ordered by (source, destination rank)."""

    lead: Array  # index of the pair's first live point
    source: Array
    rank: Array


@dataclass(frozen=True, eq=False)
class RemotePairs:
    """Pairs on other nodes in the order in which their forwarder serves them: by row, then rank."""

    lead: Array
    rank: Array
    row: Array  # among the network rows


@dataclass(frozen=True, eq=False)
class Hops:
    """Every copy that starts at this rank.

    ``row_source``: int64 [num_rows], the source of every network row in sending order: by node,
    then source. A forwarder of a node takes consecutive rows, so this is also the order by
    forwarder.
    """

    direct: DirectPairs
    row_source: Array
    remote: RemotePairs


@dataclass(frozen=True)
class NumCopies:
    """How many copies start at a rank: ``near`` and ``far`` pairs, network ``rows``."""

    near: int
    far: int
    rows: int


def order_copies(ctx: PlanContext, ordered: SortedPoints) -> Copies:
    """Group the points into copies."""
    points = ordered.points
    topology, program = ctx.topology, ctx.program
    num_ranks, num_nodes, m = topology.num_ranks, topology.num_nodes, topology.ranks_per_node
    node = points.rank // m
    leads_pair = ordered.live
    if program.copies_once("rank"):
        leads_pair = leads_pair & differs(points.pair)
    leads_row = leads_pair & (node != topology.node(ctx.rank))
    near = leads_pair ^ leads_row
    if program.copies_once("node"):
        leads_far, leads_row = leads_row, leads_row & differs(points.pair // m)
    else:
        leads_far = leads_row
    # Ascending: pairs inside the node, those on node 0, 1, ..., points that lead nothing.
    where = namespace(node).where
    group = where(leads_far, node + 1, where(near, 0, num_nodes + 1))
    return Copies(
        stable_order(group, num_nodes + 2),
        leads_row,
        count(points.rank, num_ranks, leads_pair),
        count(node, num_nodes, leads_row),
    )


def list_hops(points: LivePoints, copies: Copies, sizes: NumCopies) -> Hops:
    """List the copies."""
    near = copies.order[: sizes.near]
    far = copies.order[sizes.near : sizes.near + sizes.far]
    row = copies.leads_row[far].cumsum(0) - 1
    row_source = empty(sizes.rows, row)
    row_source[row] = points.source[far]  # the same one for all pairs of a row
    return Hops(
        DirectPairs(near, points.source[near], points.rank[near]),
        row_source,
        RemotePairs(far, points.rank[far], row),
    )
