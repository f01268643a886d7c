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

from fuscoc_runtime.plan.arrays import count, iota, stable_order, upload
from fuscoc_runtime.plan.forwarders import Forwarding
from fuscoc_runtime.plan.hops import Hops
from fuscoc_runtime.plan.points import SortedPoints
from fuscoc_runtime.plan.rounds import Side
from fuscoc_runtime.plan.slots import Slots
from fuscoc_runtime.plan.types import DescriptorList, PlanContext

ROUND_SHIFT = 44
"""Where the number of a round begins in a word; no list is as long as that."""


def net_send(addresses: Mapping[str, Tensor], row_source: Tensor) -> DescriptorList:
    """The rows that this rank sends over the network; ``addresses``: of the sources."""
    columns = {name: column[row_source] for name, column in addresses.items()}
    return {**columns, "dst_row": iota(row_source)}


def source_lists(
    ctx: PlanContext, addresses: Mapping[str, Tensor], hops: Hops, point_row: Tensor
) -> dict[str, DescriptorList]:
    """The other lists that this rank executes as a source; ``point_row``: of ``assign_rows``."""
    direct = hops.direct
    return {
        "direct": {
            **{name: column[direct.source] for name, column in addresses.items()},
            "dst_peer": direct.rank % ctx.topology.ranks_per_node,
            "dst_slot": point_row[direct.lead],
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
    row_source = torch.cat([hops.direct.source, hops.row_source])
    counts = count(row_source, num_sources)
    end = counts.cumsum(0)
    return {
        "term_begin": end - counts,
        "term_end": end,
        "term_row": stable_order(row_source),
    }


def describe_points(
    ctx: PlanContext,
    live: SortedPoints,
    hops: Hops,
    slots: Slots,
    forwarding: Forwarding,
    sent: Side,
) -> tuple[Tensor, Tensor]:
    """For every destination rank, in (source, domain) order, what it needs to know of each point.

    ``sent``: the rounds of this rank's network rows. Returns (order [num_live_points], words
    [num_live_points, 3]); the words are the slot, the source, and for the lead point of a pair
    ``position * m + local rank`` of the row that brings it, in the list of the rank that writes it
    (``direct`` of the source, ``forward`` of the forwarder), to which a row of the network adds
    ``round + 1 << ROUND_SHIFT``; -1 for the pair's further points.
    """
    m = ctx.topology.ranks_per_node
    writer = torch.full_like(live.point, -1)
    writer[hops.direct.lead] = iota(hops.direct.lead) * m + ctx.topology.local_rank(ctx.rank)
    [round_word] = upload([torch.from_numpy(sent.rounds() + 1 << ROUND_SHIFT)], ctx.device)
    position = forwarding.position * m + forwarding.forwarder % m
    writer[hops.remote.lead] = position + round_word[hops.remote.row]
    order = stable_order(live.rank)
    words = torch.stack([slots.point_slot, live.source, writer], dim=1)
    return order, words[order]


def describe_forwards(
    ctx: PlanContext, hops: Hops, point_row: Tensor, forwarding: Forwarding
) -> Tensor:
    """For every forwarder, pair by pair: the row of the lead, and ``landing row * m + local rank``.

    ``point_row``: of ``assign_rows``.
    """
    m = ctx.topology.ranks_per_node
    remote = hops.remote
    return torch.stack([point_row[remote.lead], forwarding.row * m + remote.rank % m], dim=1)
