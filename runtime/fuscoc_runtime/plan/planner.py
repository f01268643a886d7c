"""One rank's plan: relation outputs -> descriptor lists.

The stages, in order: live points, hops, census (AllGather), forwarders, slots, descriptions
(AllToAll) and the lists of source, forwarder and target. Everything is vectorised and runs on the
compute device; only counts come to the host. The hierarchy is FUSCO's (arXiv 2512.22036): one copy
of a segment per node over the network, one per rank over NVLink, the rest from the receiver's own
memory.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.comm.requests import AllToAll, Request
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.plan.agree import agree, attempt
from fuscoc_runtime.plan.census import Census, fail_census, take_census
from fuscoc_runtime.plan.forwarders import (
    Forwarding,
    assign_forwarders,
    check_policy,
    node_pairs,
)
from fuscoc_runtime.plan.hops import Hops, plan_hops
from fuscoc_runtime.plan.points import LivePoints, check_points, live_points
from fuscoc_runtime.plan.receive import check_slots, forwarder_lists, target_lists
from fuscoc_runtime.plan.send import describe_forwards, describe_points, source_lists
from fuscoc_runtime.plan.slots import assign_slots
from fuscoc_runtime.plan.types import BufferRows, PlanContext, Points, RankPlan


def plan_rank(
    ctx: PlanContext, points: Points | FuscoRuntimeError
) -> Generator[Request, Any, RankPlan]:
    """Plan one rank; collective over all ranks.

    One AllGather and one AllToAll, and one more of the first for a dense target and where flows are
    cut, of the second for several nodes. A rank that has already failed passes its error instead of
    points. Whatever any rank finds wrong, all ranks raise.

    Raises:
        IndexOutOfRangeError, SlotOutOfRangeError, SlotOverlapError, CapacityError,
        PlacementMismatchError, NativeBuildError: see their classes.
    """
    if isinstance(points, FuscoRuntimeError):
        return (yield from fail_census(ctx, points))
    prepared = attempt(ctx.rank, lambda: _prepare(ctx, points))
    if isinstance(prepared, FuscoRuntimeError):
        return (yield from fail_census(ctx, prepared))
    live, hops = prepared
    census = yield from take_census(ctx, points, live, hops)
    forwarding = yield from assign_forwarders(ctx, hops, census)
    slots = assign_slots(ctx, points, live, census)

    order, words = describe_points(ctx, live, hops, slots, forwarding)
    received = yield _exchange(ctx, words, census.points)
    if ctx.shuffle.target.kind == "dense":
        length = int(census.length[ctx.rank])
        yield from agree(check_slots(ctx, received, census.points[:, ctx.rank], length), ctx.device)
    forwarded = describe_forwards(ctx, hops, slots, forwarding)
    if ctx.topology.num_nodes > 1:
        forwarded = yield _exchange(ctx, forwarded, forwarding.pairs)

    lists = {
        **source_lists(ctx, points, hops, slots),
        **forwarder_lists(
            ctx, forwarded, forwarding.pairs[:, ctx.rank], forwarding.rows[:, ctx.rank]
        ),
        **target_lists(ctx, received, census.points[:, ctx.rank]),
    }
    rows = buffer_rows(ctx, census, forwarding, slots.num_slots)
    return RankPlan(
        rank=ctx.rank,
        num_sources=len(points.columns["rank"]) // ctx.shuffle.fanout,
        lists=lists,
        rows=BufferRows(*rows[:, ctx.rank].tolist()),
        max_rows=BufferRows(*rows.amax(1).tolist()),
        net_send_counts=tuple(forwarding.rows[ctx.rank].tolist()),
        net_recv_counts=tuple(forwarding.rows[:, ctx.rank].tolist()),
        point_order=live.point[order],
        point_send_counts=tuple(census.points[ctx.rank].tolist()),
        point_recv_counts=tuple(census.points[:, ctx.rank].tolist()),
        keys=slots.keys.to(ctx.device),
        key_counts=slots.key_counts.to(ctx.device),
        key_offsets=slots.key_offsets.to(ctx.device),
    )


def _prepare(ctx: PlanContext, points: Points) -> tuple[LivePoints, Hops]:
    """What a rank plans before it meets the others."""
    error = check_points(ctx, points) or check_policy(ctx)
    if error is not None:
        raise error
    live = live_points(ctx, points)
    return live, plan_hops(ctx, live)


def _exchange(ctx: PlanContext, words: Tensor, counts: Tensor) -> AllToAll:
    """Rows of ``words`` to every rank; ``counts`` [source rank, destination rank]."""
    send, recv = counts[ctx.rank], counts[:, ctx.rank]
    return AllToAll(words, tuple(send.tolist()), tuple(recv.tolist()))


def buffer_rows(
    ctx: PlanContext, census: Census, forwarding: Forwarding, num_slots: Tensor
) -> Tensor:
    """Fields of ``BufferRows``, in their order, of every rank: [num_fields, num_ranks]."""
    node = torch.arange(ctx.topology.num_ranks) // ctx.topology.ranks_per_node
    near = node_pairs(ctx.topology, census).gather(1, node[:, None])[:, 0]
    sent, landing = forwarding.rows.sum(1), forwarding.rows.sum(0)
    forwarded = forwarding.pairs.sum(0)
    return torch.stack([num_slots, near + sent, forwarded, sent, landing])
