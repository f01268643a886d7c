"""One rank's plan: relation outputs -> descriptor lists.

The stages, in order: sorted points, copies, census (AllGather), hops, forwarders, rounds, slots:
then a rank can send. Descriptions (AllToAll) and the lists of forwarder and target follow.
Everything is vectorised and runs on the compute device; only counts come to the host. The hierarchy
is FUSCO's (arXiv 2512.22036): one copy of a segment per node over the network, one per rank over
NVLink, the rest from the receiver's own memory.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.comm.requests import AllToAll, Request
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.plan.agree import agree, attempt
from fuscoc_runtime.plan.arrays import count, inverse, stable_order, upload
from fuscoc_runtime.plan.census import Census, fail_census, take_census
from fuscoc_runtime.plan.forwarders import (
    Shares,
    assign_forwarders,
    check_policy,
    node_pairs,
    share_out,
)
from fuscoc_runtime.plan.hops import Copies, Hops, list_hops, order_copies
from fuscoc_runtime.plan.links import cost_model, network_row_bytes
from fuscoc_runtime.plan.points import SortedPoints, sort_points
from fuscoc_runtime.plan.receive import check_slots, forwarder_lists, target_lists
from fuscoc_runtime.plan.rounds import NO_TRANSFERS, Side, arrange_stages, cut, slice_rows
from fuscoc_runtime.plan.send import (
    describe_forwards,
    describe_points,
    net_send,
    source_addresses,
    source_lists,
)
from fuscoc_runtime.plan.slots import SlotLayout, assign_rows, assign_slots, lay_out_slots
from fuscoc_runtime.plan.types import (
    BufferRows,
    DescriptorList,
    PlanContext,
    Points,
    RankPlan,
    Wire,
)

NO_ENTRIES = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Draft:
    """The part of a plan that needs no word from the other ranks but their counts.

    A rank can send as soon as it has this: ``wire`` lacks what is about forwarding, ``lists`` has
    ``net_send`` alone. ``num_rows``, ``most_rows``: of the target, here and on any rank.
    """

    points: Points
    live: SortedPoints
    census: Census
    hops: Hops
    shares: Shares
    layout: SlotLayout
    wire: Wire
    addresses: dict[str, Tensor]
    lists: dict[str, DescriptorList]

    @property
    def num_rows(self) -> int:
        return int(self.layout.num_rows[self.wire.rank])

    @property
    def most_rows(self) -> int:
        return int(self.layout.num_rows.max())


def plan_rank(
    ctx: PlanContext, points: Points | FuscoRuntimeError
) -> Generator[Request, Any, RankPlan]:
    """Plan one rank; collective over all ranks. See ``draft_plan`` and ``finish_plan``."""
    draft = yield from draft_plan(ctx, points)
    return (yield from finish_plan(ctx, draft))


def draft_plan(
    ctx: PlanContext, points: Points | FuscoRuntimeError
) -> Generator[Request, Any, Draft]:
    """What a rank needs to start sending; collective over all ranks.

    One AllGather. A rank that has already failed passes its error instead of points. Whatever any
    rank finds wrong, all ranks raise.

    Raises:
        IndexOutOfRangeError, CapacityError, PlacementMismatchError, NativeBuildError: see their
            classes.
    """
    if isinstance(points, FuscoRuntimeError):
        return (yield from fail_census(ctx, points))
    prepared = attempt(ctx.rank, lambda: _prepare(ctx, points))
    if isinstance(prepared, FuscoRuntimeError):
        return (yield from fail_census(ctx, prepared))
    ordered, copies = prepared
    census = yield from take_census(ctx, points, ordered, copies)
    layout = lay_out_slots(ctx, points, census)
    shares = share_out(ctx, census)
    live = ordered.first(int(census.points[ctx.rank].sum()))
    hops = list_hops(live, copies, census.num_copies(ctx.topology, ctx.rank))
    addresses = source_addresses(ctx, points.columns)
    return Draft(
        points,
        live,
        census,
        hops,
        shares,
        layout,
        _rounds(ctx, shares),
        addresses,
        {"net_send": net_send(addresses, hops.row_source)},
    )


def finish_plan(ctx: PlanContext, draft: Draft) -> Generator[Request, Any, RankPlan]:
    """The rest of a plan: collective over all ranks.

    An AllToAll, and one more for several nodes; an AllGather for a dense target, and one where
    flows are cut.

    Raises:
        SlotOutOfRangeError, SlotOverlapError: on all ranks, if any rank's target has them.
    """
    census, hops, rows = draft.census, draft.hops, torch.from_numpy(draft.shares.rows)
    forwarding = yield from assign_forwarders(ctx, hops, census, draft.shares)
    slots = assign_slots(ctx, draft.live, draft.layout)
    point_row = assign_rows(ctx, draft.live, slots, census)
    order, words = describe_points(ctx, draft.live, hops, slots, forwarding, draft.wire.send)
    received = yield _exchange(ctx, words, census.points)
    if ctx.shuffle.target.kind == "dense":
        length = int(census.length[ctx.rank])
        yield from agree(check_slots(ctx, received, census.points[:, ctx.rank], length), ctx.device)
    forwarded = describe_forwards(ctx, hops, point_row, forwarding)
    if ctx.topology.num_nodes > 1:
        forwarded = yield _exchange(ctx, forwarded, forwarding.pairs)

    recv_counts = rows[:, ctx.rank].tolist()
    forwards = forwarder_lists(ctx, forwarded, sum(recv_counts))
    num_rounds = draft.wire.num_rounds
    targets, entries, row_index = target_lists(
        ctx,
        received,
        census.pairs[:, ctx.rank],
        num_rounds,
        int(draft.layout.num_slots[ctx.rank]),
    )
    sizes = buffer_rows(ctx, census, rows, forwarding.pairs, draft.layout.num_rows)
    return RankPlan(
        rank=ctx.rank,
        num_sources=len(draft.points.columns["rank"]) // ctx.shuffle.fanout,
        lists={
            **draft.lists,
            **source_lists(ctx, draft.addresses, hops, point_row),
            **forwards,
            **targets,
        },
        rows=BufferRows(*sizes[:, ctx.rank].tolist()),
        max_rows=BufferRows(*sizes.amax(1).tolist()),
        net_send_counts=tuple(rows[ctx.rank].tolist()),
        net_recv_counts=tuple(recv_counts),
        wire=_complete(draft.wire, forwards["forward"]["src_row"], entries),
        point_order=draft.live.point[order],
        point_send_counts=tuple(census.points[ctx.rank].tolist()),
        point_recv_counts=tuple(census.points[:, ctx.rank].tolist()),
        keys=slots.keys,
        key_counts=slots.key_counts,
        key_offsets=slots.key_offsets,
        row_index=row_index,
    )


def _prepare(ctx: PlanContext, points: Points) -> tuple[SortedPoints, Copies]:
    """What a rank plans before it meets the others."""
    error = check_policy(ctx)
    if error is not None:
        raise error
    ordered = sort_points(ctx, points)
    return ordered, order_copies(ctx, ordered)


def _rounds(ctx: PlanContext, shares: Shares) -> Wire:
    """Cut the stages of the network hop into rounds. Equal counts give all ranks equal rounds."""
    rows, policy = shares.rows, ctx.shuffle.policy
    send_counts, recv_counts = tuple(rows[ctx.rank].tolist()), tuple(rows[:, ctx.rank].tolist())
    busiest = max(int(rows.sum(axis=0).max()), int(rows.sum(axis=1).max()))
    if busiest == 0:
        sides = Side(NO_TRANSFERS, send_counts), Side(NO_TRANSFERS, recv_counts)
        return Wire(ctx.rank, 0, *sides, None, None, None, NO_ENTRIES)
    model = ctx.model if ctx.model is not None else cost_model(ctx.shuffle)
    stages = arrange_stages(shares.demand, shares.assignment, policy.schedule, model)
    row_bytes = network_row_bytes(ctx.shuffle)
    rounds = cut(stages, slice_rows(busiest, row_bytes, model.slice_bytes, model))
    send = Side(rounds.sends(ctx.rank), send_counts)
    receive = Side(rounds.receives(ctx.rank), recv_counts)

    def order(side: Side) -> Tensor | None:
        if side.is_ordered:
            return None
        return upload([torch.from_numpy(side.order())], ctx.device)[0]

    orders = order(send), order(receive), None
    return Wire(ctx.rank, rounds.num_stages, send, receive, *orders, NO_ENTRIES)


def _complete(wire: Wire, forward_row: Tensor, entries: Tensor) -> Wire:
    """A draft's wire with what forwarding and targets know: ``forward_row``, the landing row of
    every entry of ``forward``, and the entries of the target's lists by round."""
    forward_order = None
    if wire.landing_order is not None:
        forward_order = stable_order(inverse(wire.landing_order)[forward_row])
    [landing_round] = upload([torch.from_numpy(wire.receive.rounds())], forward_row.device)
    by_round = count(landing_round[forward_row], wire.num_rounds)
    return replace(wire, forward_order=forward_order, entries=torch.cat([by_round, entries]))


def _exchange(ctx: PlanContext, words: Tensor, counts: Tensor) -> AllToAll:
    """Rows of ``words`` to every rank; ``counts`` [source rank, destination rank]."""
    send, recv = counts[ctx.rank], counts[:, ctx.rank]
    return AllToAll(words, tuple(send.tolist()), tuple(recv.tolist()))


def buffer_rows(
    ctx: PlanContext, census: Census, network: Tensor, pairs: Tensor, num_rows: Tensor
) -> Tensor:
    """Fields of ``BufferRows``, in their order, of every rank: [num_fields, num_ranks].

    ``network``, ``pairs``: int64 [R, R], rows and pairs by source rank and forwarder.
    """
    node = torch.arange(ctx.topology.num_ranks) // ctx.topology.ranks_per_node
    near = node_pairs(ctx.topology, census).gather(1, node[:, None])[:, 0]
    sent, landing, forwarded = network.sum(1), network.sum(0), pairs.sum(0)
    return torch.stack([num_rows, near + sent, forwarded, sent, landing])
