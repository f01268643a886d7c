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

from fuscoc_runtime.arrays import Array, namespace
from fuscoc_runtime.plan.arrays import (
    count,
    every,
    highest_so_far,
    iota,
    stable_order,
    take_rows,
    upload,
)
from fuscoc_runtime.plan.census import Census
from fuscoc_runtime.plan.flows import Int64Array
from fuscoc_runtime.plan.forwarders import Forwarding
from fuscoc_runtime.plan.hops import Copies, Hops, list_hops
from fuscoc_runtime.plan.points import LivePoints, SortedPoints
from fuscoc_runtime.plan.slots import SlotLayout, Slots, assign_rows, assign_slots
from fuscoc_runtime.plan.types import DescriptorList, PlanContext, Points


def net_send(addresses: Mapping[str, Array], row_source: Array) -> DescriptorList:
    """The rows that this rank sends over the network; ``addresses``: of the sources."""
    columns = {name: column[row_source] for name, column in addresses.items()}
    return {**columns, "dst_row": iota(row_source)}


@dataclass(frozen=True, eq=False)
class Listed:
    """What a rank knows of its copies when it knows the counts of all ranks.

    ``net_send``: the list; ``addresses``: where every source is, by column; ``live``: the points
    that move; ``hops``: their copies.
    """

    net_send: DescriptorList
    addresses: dict[str, Array]
    live: LivePoints
    hops: Hops


@dataclass(frozen=True, eq=False)
class Described:
    """What the other ranks have to know, and what this rank does as a source.

    ``point_order``, ``keys``, ``key_counts``, ``key_offsets``: as in ``RankPlan``. ``words``: of
    ``describe_points``; ``forwards``: of ``describe_forwards``; ``lists``: of ``source_lists``.
    """

    point_order: Array
    words: Array
    forwards: Array
    lists: dict[str, DescriptorList]
    keys: Array
    key_counts: Array
    key_offsets: Array


def list_copies(
    ctx: PlanContext, points: Points, ordered: SortedPoints, copies: Copies, census: Census
) -> Listed:
    """Cut the sorted points and their copies to what the census says."""
    live = ordered.first(int(census.points[ctx.rank].sum()))
    hops = list_hops(live, copies, census.num_copies(ctx.topology, ctx.rank))
    addresses = source_addresses(ctx, points.columns)
    return Listed(net_send(addresses, hops.row_source), addresses, live, hops)


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
    slots = assign_slots(ctx, live, layout, census)
    point_row = assign_rows(ctx, live, slots, census)
    served = serve(ctx, hops, rows, forwarding)
    order, words = describe_points(ctx, live, hops, slots, served)
    return Described(
        live.point[order],
        words,
        describe_forwards(ctx, hops, point_row, served),
        source_lists(ctx, listed.addresses, hops, point_row),
        slots.keys,
        slots.key_counts,
        slots.key_offsets,
    )


def source_lists(
    ctx: PlanContext, addresses: Mapping[str, Array], hops: Hops, point_row: Array
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


def source_addresses(ctx: PlanContext, columns: Mapping[str, Array]) -> dict[str, Array]:
    """Columns that say where a source is read, [num_sources] each: one of its points knows."""
    fanout = ctx.program.num_points_each(ctx.topology.num_ranks)
    return {name: every(fanout, columns[name]) for name in ctx.program.relation.addresses}


def source_terms(hops: Hops, num_sources: int) -> DescriptorList:
    """The staging rows of every source: direct rows first, then network rows, both ascending."""
    sources = [hops.direct.source, hops.row_source]
    row_source = namespace(hops.row_source).concatenate(sources)
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

    forwarder: Array
    row: Array
    position: Array


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
) -> tuple[Array, Array]:
    """For every destination rank, in (source, domain) order, what it needs to know of each point.

    Returns (order [num_live_points], words [num_live_points, 2]); the words are the slot and the
    writer. The writer of a pair's lead is ``position * m + local rank`` of the row that brings it,
    in the list of the rank that writes it (``direct`` of the source, ``forward`` of the forwarder);
    of a further point it is minus the distance to the lead.
    """
    m = ctx.topology.ranks_per_node
    xp = namespace(live.point)
    lead = xp.concatenate([hops.direct.lead, hops.remote.lead])
    writer = xp.zeros_like(live.point)
    if len(lead) < len(writer):  # pairs have further points
        writer[lead] = lead
        writer = highest_so_far(writer) - iota(live.point)
    writer[hops.direct.lead] = iota(hops.direct.lead) * m + ctx.topology.local_rank(ctx.rank)
    writer[hops.remote.lead] = served.position * m + served.forwarder % m
    order = stable_order(live.rank, ctx.topology.num_ranks)
    words = xp.stack([slots.point_slot, writer], 1)
    return order, take_rows(words, order)


def describe_forwards(ctx: PlanContext, hops: Hops, point_row: Array, served: Served) -> Array:
    """For every forwarder, pair by pair: the row of the lead, and ``landing row * m + local rank``.

    ``point_row``: of ``assign_rows``.
    """
    m = ctx.topology.ranks_per_node
    remote = hops.remote
    words = [point_row[remote.lead], served.row * m + remote.rank % m]
    table: Array = namespace(point_row).stack(words, 1)
    return table
