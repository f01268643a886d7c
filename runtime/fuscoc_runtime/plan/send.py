"""What a source does: its descriptor lists, and the descriptions it sends to the other ranks.

net_send       (source, remote node): src_offset, src_stride*, dst_row
direct         (source, rank of my node): src_offset, src_stride*, dst_peer, dst_slot
reduce_source  every source: dst_offset, dst_stride*, term_begin, term_end, term_row: its rows in
               staging, which holds the direct rows in list order and then the network rows
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fuscoc_runtime.plan.arrays import count, iota, stable_order, upload
from fuscoc_runtime.plan.census import Census
from fuscoc_runtime.plan.flows import Int64Array
from fuscoc_runtime.plan.forwarders import Forwarding
from fuscoc_runtime.plan.hops import Copies, Hops, Leads, list_hops, order_copies
from fuscoc_runtime.plan.points import LivePoints, SortedPoints
from fuscoc_runtime.plan.slots import SlotLayout, Slots, assign_rows, assign_slots
from fuscoc_runtime.plan.types import DescriptorList, PlanContext, Points


def net_send(addresses: Mapping[str, Tensor], row_source: Tensor) -> DescriptorList:
    """The rows that this rank sends over the network; ``addresses``: of the sources."""
    columns = {name: column[row_source] for name, column in addresses.items()}
    return {**columns, "dst_row": iota(row_source)}


@dataclass(frozen=True, eq=False)
class Arranged:
    """What a rank knows without the counts of others: its copies, where every source is, by
    column, and int64 [num_points], the order of its points by rank, and of a packed target by key;
    those that do not move last."""

    copies: Copies
    addresses: dict[str, Tensor]
    by_rank: Tensor
    by_key: Tensor | None


@dataclass(frozen=True, eq=False)
class Listed:
    """What it knows with them: the list ``net_send``, the points that move, their orders, and their
    copies; ``addresses`` as in ``Arranged``."""

    net_send: DescriptorList
    addresses: dict[str, Tensor]
    live: LivePoints
    by_rank: Tensor
    by_key: Tensor | None
    hops: Hops


@dataclass(frozen=True, eq=False)
class Described:
    """What the other ranks have to know, and what this rank does as a source.

    ``point_order``, ``keys``, ``key_counts``, ``key_offsets``: as in ``RankPlan``. ``words``: of
    ``describe_points``; ``forwards``: of ``describe_forwards``; ``lists``: of ``source_lists``.
    """

    point_order: Tensor
    words: Tensor
    forwards: Tensor
    lists: dict[str, DescriptorList]
    keys: Tensor
    key_counts: Tensor
    key_offsets: Tensor


def arrange(ctx: PlanContext, points: Points, ordered: SortedPoints, leads: Leads) -> Arranged:
    """All that needs no counts, while they travel: a host takes most of a plan to launch it."""
    target, every = ctx.program.target, ordered.points
    by_key = None
    if target.kind == "packed":
        by_key = stable_order(
            torch.where(ordered.live, every.target, target.num_keys), target.num_keys + 1
        )
    num_ranks = ctx.topology.num_ranks
    return Arranged(
        order_copies(ctx, every, leads),
        source_addresses(ctx, points.columns),
        stable_order(torch.where(ordered.live, every.rank, num_ranks), num_ranks + 1),
        by_key,
    )


def list_copies(
    ctx: PlanContext, ordered: SortedPoints, arranged: Arranged, census: Census
) -> Listed:
    """Cut the sorted points and their copies to what the census says."""
    num_live = int(census.points[ctx.rank].sum())
    hops = list_hops(arranged.copies, census.num_copies(ctx.topology, ctx.rank))
    return Listed(
        net_send(arranged.addresses, hops.row_source),
        arranged.addresses,
        ordered.first(num_live),
        arranged.by_rank[:num_live],
        arranged.by_key[:num_live] if arranged.by_key is not None else None,
        hops,
    )


def describe(
    ctx: PlanContext,
    listed: Listed,
    layout: SlotLayout,
    census: Census,
    forwarding: Forwarding,
    rows: Int64Array,
) -> Described:
    """Slots, and what the other ranks have to know. ``rows`` [R]: this rank's network rows by
    forwarder."""
    live, hops = listed.live, listed.hops
    slots = assign_slots(ctx, live, listed.by_key, layout, census)
    point_row = assign_rows(ctx, live, listed.by_rank, slots, census)
    served = serve(ctx, hops, rows, forwarding)
    words = describe_points(ctx, live, hops, slots, served)
    return Described(
        live.point[listed.by_rank],
        words[listed.by_rank],
        describe_forwards(ctx, hops, point_row, served),
        source_lists(ctx, listed.addresses, hops, point_row),
        slots.keys,
        slots.key_counts,
        slots.key_offsets,
    )


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
    fanout = ctx.program.num_points_each(ctx.topology.num_ranks)
    return {name: columns[name][::fanout].contiguous() for name in ctx.program.relation.addresses}


def source_terms(hops: Hops, num_sources: int) -> DescriptorList:
    """The staging rows of every source: direct rows first, then network rows, both ascending."""
    row_source = torch.cat([hops.direct.source, hops.row_source])
    counts = count(row_source, num_sources)
    end = counts.cumsum(0)
    return {
        "term_begin": end - counts,
        "term_end": end,
        "term_row": stable_order(row_source, num_sources),
    }


@dataclass(frozen=True, eq=False)
class Served:
    """Who serves the remote pairs: int64 [num_remote_pairs] each, in the order of ``RemotePairs``.

    The forwarder, the pair's landing row there, and the pair's place among all that it serves.
    """

    forwarder: Tensor
    row: Tensor
    position: Tensor


def serve(ctx: PlanContext, hops: Hops, rows: Int64Array, forwarding: Forwarding) -> Served:
    """``rows`` [R]: this rank's network rows by forwarder."""
    of_row = np.repeat(np.arange(len(rows)), rows)
    there, landing, position = upload([of_row, forwarding.landing, forwarding.position], ctx.device)
    forwarder = there[hops.remote.row]
    return Served(
        forwarder,
        hops.remote.row + landing[forwarder],
        iota(forwarder) + position[forwarder],
    )


def describe_points(
    ctx: PlanContext, live: LivePoints, hops: Hops, slots: Slots, served: Served
) -> Tensor:
    """What the rank that it goes to has to know of every point: int64 [num_live_points,
    ``word_width``].

    The words are the slot, the writer and, for a dense target, the source. The writer of a pair's
    lead is ``position * m + local rank`` of the row that brings it, in the list of the rank that
    writes it (``direct`` of the source, ``forward`` of the forwarder); of a further point it is
    minus the distance to the lead.
    """
    m = ctx.topology.ranks_per_node
    lead = torch.cat([hops.direct.lead, hops.remote.lead])
    writer = torch.zeros_like(live.point)
    writer[lead] = lead
    writer = writer.cummax(0).values - iota(live.point)
    writer[hops.direct.lead] = iota(hops.direct.lead) * m + ctx.topology.local_rank(ctx.rank)
    writer[hops.remote.lead] = served.position * m + served.forwarder % m
    return torch.stack([slots.point_slot, writer, live.source][: word_width(ctx)], dim=1)


def word_width(ctx: PlanContext) -> int:
    """Words that describe a point: only errors of a dense target tell of sources."""
    return 2 if ctx.program.target.kind == "packed" else 3


def describe_forwards(ctx: PlanContext, hops: Hops, point_row: Tensor, served: Served) -> Tensor:
    """For every forwarder, pair by pair: the row of the lead, and ``landing row * m + local rank``.

    ``point_row``: of ``assign_rows``.
    """
    m = ctx.topology.ranks_per_node
    remote = hops.remote
    return torch.stack([point_row[remote.lead], served.row * m + remote.rank % m], dim=1)
