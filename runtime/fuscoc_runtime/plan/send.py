"""What a source does: its descriptor lists, and the descriptions it sends to the other ranks.

net_send       (source, remote node): src_offset, src_stride*, dst_row
direct         (source, rank of my node): src_offset, src_stride*, dst_peer, dst_slot
reduce_source  every source: dst_offset, dst_stride*, term_begin, term_end, term_row: its rows in
               staging, which holds the direct rows in list order and then the network rows
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fuscoc_runtime.plan.arrays import count, iota, stable_order
from fuscoc_runtime.plan.forwarders import Forwarding
from fuscoc_runtime.plan.hops import Hops
from fuscoc_runtime.plan.points import LivePoints
from fuscoc_runtime.plan.slots import Slots
from fuscoc_runtime.plan.types import DescriptorList, PlanContext, Points


def source_lists(
    ctx: PlanContext, points: Points, hops: Hops, slots: Slots
) -> dict[str, DescriptorList]:
    """The lists that this rank executes as a source."""
    addresses = source_addresses(ctx, points.columns)
    direct, rows = hops.direct, hops.rows
    return {
        "net_send": {
            **{name: column[rows.source] for name, column in addresses.items()},
            "dst_row": iota(rows.source),
        },
        "direct": {
            **{name: column[direct.source] for name, column in addresses.items()},
            "dst_peer": direct.rank % ctx.topology.ranks_per_node,
            "dst_slot": slots.point_slot[direct.lead],
        },
        "reduce_source": {
            **{name.replace("src", "dst"): column for name, column in addresses.items()},
            **source_terms(hops, len(addresses["src_offset"])),
        },
    }


def source_addresses(ctx: PlanContext, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Columns that say where a source is read, [num_sources] each: one of its points knows."""
    names = ["src_offset", *(f"src_stride{i}" for i in range(ctx.shuffle.src_strides))]
    return {name: columns[name][:: ctx.shuffle.fanout].contiguous() for name in names}


def source_terms(hops: Hops, num_sources: int) -> DescriptorList:
    """The staging rows of every source: direct rows first, then network rows, both ascending."""
    row_source = torch.cat([hops.direct.source, hops.rows.source])
    counts = count(row_source, num_sources)
    end = counts.cumsum(0)
    return {
        "term_begin": end - counts,
        "term_end": end,
        "term_row": stable_order(row_source),
    }


def describe_points(
    ctx: PlanContext, live: LivePoints, hops: Hops, slots: Slots, forwarding: Forwarding
) -> tuple[Tensor, Tensor]:
    """For every destination rank, in (source, domain) order, what it needs to know of each point.

    Returns (order [num_live_points], words [num_live_points, 3]); the words are the slot, the
    source, and for the lead point of a pair ``position * m + local rank`` of the row that brings
    it, in the list of the rank that writes it (``direct`` of the source, ``forward`` of the
    forwarder); -1 for the pair's further points.
    """
    m = ctx.topology.ranks_per_node
    writer = torch.full_like(live.point, -1)
    writer[hops.direct.lead] = iota(hops.direct.lead) * m + ctx.topology.local_rank(ctx.rank)
    before = forwarding.pairs[: ctx.rank].sum(0).to(ctx.device)
    forwarder = forwarding.forwarder
    writer[hops.remote.lead] = (before[forwarder] + forwarding.position) * m + forwarder % m
    order = stable_order(live.rank)
    words = torch.stack([slots.point_slot, live.source, writer], dim=1)
    return order, words[order]


def describe_forwards(ctx: PlanContext, hops: Hops, slots: Slots, forwarding: Forwarding) -> Tensor:
    """For every forwarder, pair by pair: lead slot, and ``row * m + local rank`` of the pair."""
    m = ctx.topology.ranks_per_node
    remote = hops.remote
    return torch.stack([slots.point_slot[remote.lead], forwarding.row * m + remote.rank % m], dim=1)
