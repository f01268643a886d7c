"""Live points -> copies: who shares an NVLink copy, who shares a network copy, and their order.

Dedup ``rank`` makes one *pair* of all points of a source for one rank; otherwise every point is a
pair. A pair inside the node is a row of ``direct``. Dedup ``node`` makes one network *row* of all
remote pairs of a source for one node; otherwise every remote pair is a row. A row goes to a
forwarder of the destination node, which serves the row's pairs: its ``forward`` list.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fuscoc_runtime.plan.arrays import (
    count,
    exclusive_cumsum,
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
    """Rows for other nodes in sending order: by forwarder, then source."""

    source: Tensor
    per_forwarder: Tensor  # int64 [num_ranks]


@dataclass(frozen=True, eq=False)
class ForwardPairs:
    """Pairs on other nodes in the order in which their forwarder serves them: by row, then rank."""

    lead: Tensor
    rank: Tensor
    forwarder: Tensor
    row: Tensor  # among the rows that this rank sends to this forwarder
    position: Tensor  # among the pairs that this rank leaves to this forwarder
    per_forwarder: Tensor  # int64 [num_ranks]


@dataclass(frozen=True, eq=False)
class Hops:
    """Every copy that starts at this rank."""

    direct: DirectPairs
    rows: NetworkRows
    forward: ForwardPairs


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
    row_forwarder = static_forwarders(ctx, row_node)
    sending = stable_order(row_forwarder)
    rows_per_forwarder = count(row_forwarder, topology.num_ranks)

    pair_row = inverse(sending)[row_of_pair]
    serving = stable_order(pair_row)
    pair_row, far = pair_row[serving], far[serving]
    forwarder = row_forwarder[sending][pair_row]
    pairs_per_forwarder = count(forwarder, topology.num_ranks)
    return Hops(
        direct,
        NetworkRows(row_source[sending], rows_per_forwarder),
        ForwardPairs(
            lead[far],
            rank[far],
            forwarder,
            pair_row - exclusive_cumsum(rows_per_forwarder)[forwarder],
            iota(far) - exclusive_cumsum(pairs_per_forwarder)[forwarder],
            pairs_per_forwarder,
        ),
    )


def static_forwarders(ctx: PlanContext, node: Tensor) -> Tensor:
    """The rank of every destination node that has this rank's local rank.

    Communication groups without balancing: each holds one rank of every node (FUSCO,
    arXiv 2512.22036).
    """
    return node * ctx.topology.ranks_per_node + ctx.topology.local_rank(ctx.rank)
