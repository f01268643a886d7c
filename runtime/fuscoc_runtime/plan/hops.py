"""Live points -> copies: who shares an NVLink copy, who shares a network copy, and their order.

Dedup ``rank`` makes one *pair* of all points of a source for one rank; otherwise every point is a
pair. A pair inside the node is a row of ``direct``. Dedup ``node`` makes one network *row* of all
remote pairs of a source for one node; otherwise every remote pair is a row. A row goes to a
forwarder of the destination node, which serves the row's pairs: ``forwarders.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fuscoc_runtime.plan.arrays import (
    count,
    indices,
    inverse,
    iota,
    stable_order,
    starts,
)
from fuscoc_runtime.plan.points import LivePoints
from fuscoc_runtime.plan.types import PlanContext


@dataclass(frozen=True, eq=False)
class DirectPairs:
    """Pairs inside the node, ordered by (source, destination rank)."""

    lead: Tensor  # index of the pair's first live point
    source: Tensor
    rank: Tensor


@dataclass(frozen=True, eq=False)
class NetworkRows:
    """Rows for other nodes in sending order: by node, then source.

    A forwarder of a node takes consecutive rows, so this is also the order by forwarder.
    """

    source: Tensor
    per_node: Tensor  # int64 [num_nodes]


@dataclass(frozen=True, eq=False)
class RemotePairs:
    """Pairs on other nodes in the order in which their forwarder serves them: by row, then rank."""

    lead: Tensor
    rank: Tensor
    row: Tensor  # among the network rows


@dataclass(frozen=True, eq=False)
class Hops:
    """Every copy that starts at this rank."""

    direct: DirectPairs
    rows: NetworkRows
    remote: RemotePairs
    per_rank: Tensor  # int64 [num_ranks]: pairs, near and far, by destination rank


def plan_hops(ctx: PlanContext, live: LivePoints) -> Hops:
    """Group the live points into copies."""
    topology, dedup = ctx.topology, ctx.shuffle.policy.dedup
    lead = indices(starts(live.source, live.rank)) if "rank" in dedup else iota(live.point)
    source, rank = live.source[lead], live.rank[lead]
    node = rank // topology.ranks_per_node
    is_remote = node != topology.node(ctx.rank)

    near = indices(~is_remote)
    direct = DirectPairs(lead[near], source[near], rank[near])

    far = indices(is_remote)
    far_source, far_node = source[far], node[far]
    first = starts(far_source, far_node) if "node" in dedup else torch.ones_like(far_source) > 0
    row_of_pair = first.cumsum(0) - 1
    row_source, row_node = far_source[first], far_node[first]
    sending = stable_order(row_node)

    pair_row = inverse(sending)[row_of_pair]
    serving = stable_order(pair_row)
    far = far[serving]
    return Hops(
        direct,
        NetworkRows(row_source[sending], count(row_node, topology.num_nodes)),
        RemotePairs(lead[far], rank[far], pair_row[serving]),
        count(rank, topology.num_ranks),
    )
