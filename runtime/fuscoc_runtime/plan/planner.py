"""One rank's plan: relation outputs -> descriptor lists.

The stages, in order: sorted points, copies, census (AllGather), slots of every rank, forwarders and
stages of the network hop, slots of every point, descriptions (AllToAlls), and the lists of
forwarder and target. Everything is operations on the compute device, or on arrays of numpy; only
counts come to the host. The hierarchy is FUSCO's (arXiv 2512.22036): one copy of a segment per node
over the network, one per rank over NVLink, the rest from the receiver's own memory.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NoReturn

import numpy as np

from fuscoc_runtime.arrays import Array, namespace, split
from fuscoc_runtime.comm.requests import AllGather, AllToAll, AllToAlls, Request, StartGather
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.plan.agree import agree, attempt, raise_together
from fuscoc_runtime.plan.arrays import upload
from fuscoc_runtime.plan.carry import hand_over, landing_order
from fuscoc_runtime.plan.census import Census, count_points, failed_row, read_census, with_extents
from fuscoc_runtime.plan.flows import Int64Array, Shares
from fuscoc_runtime.plan.forwarders import (
    Forwarding,
    assign_forwarders,
    check_policy,
    node_pairs,
)
from fuscoc_runtime.plan.hops import Copies, order_copies
from fuscoc_runtime.plan.network import plan_network_hop
from fuscoc_runtime.plan.points import SortedPoints, sort_points
from fuscoc_runtime.plan.receive import Arriving, any_wrong_slot, check_slots, receive
from fuscoc_runtime.plan.send import Described, Listed, describe, list_copies
from fuscoc_runtime.plan.slots import lay_out_slots
from fuscoc_runtime.plan.types import (
    BufferRows,
    DescriptorList,
    PlanContext,
    Points,
    RankPlan,
)


def num_sources(ctx: PlanContext, points: Points) -> int:
    """Source segments of a rank."""
    return len(points.columns["rank"]) // ctx.program.num_points_each(ctx.topology.num_ranks)


def plan_rank(
    ctx: PlanContext, points: Points | FuscoRuntimeError
) -> Generator[Request, Any, RankPlan]:
    """Plan one rank; collective over all ranks. See ``plan_with_weights``."""
    plan, _ = yield from plan_with_weights(ctx, points, None)
    return plan


def plan_with_weights(
    ctx: PlanContext, points: Points | FuscoRuntimeError, weights: Array | None
) -> Generator[Request, Any, tuple[RankPlan, Array | None]]:
    """Plan one rank; collective over all ranks.

    A gather of counts, and one exchange of what the others have to know; an AllGather for a dense
    target, and one where flows are cut. A rank that has already failed passes its error instead of
    points. Whatever any rank finds wrong, all ranks raise.

    ``weights``: [num_points], of this rank's points in domain order, to travel with it; also
    returned: those that arrive, as ``point_recv_counts`` says.

    Raises:
        IndexOutOfRangeError, CapacityError, PlacementMismatchError, ExtentMismatchError,
        NativeBuildError, SlotOutOfRangeError, SlotOverlapError: see their classes.
    """
    if isinstance(points, FuscoRuntimeError):
        return (yield from _fail(ctx, points))
    prepared = attempt(ctx.rank, lambda: _prepare(ctx, points))
    if isinstance(prepared, FuscoRuntimeError):
        return (yield from _fail(ctx, prepared))
    ordered, copies, row = prepared
    gathered = yield StartGather(with_extents(ctx, points, row), _call(ctx))
    census = yield from read_census(ctx, points, gathered())
    slots = lay_out_slots(ctx, census)
    shares, wire = plan_network_hop(ctx, census)
    listed = list_copies(ctx, points, ordered, copies, census)
    lists = _sending(ctx, listed, shares, census)
    forwarding = yield from assign_forwarders(ctx, listed.hops.remote.row, census, shares)
    described = describe(ctx, listed, slots, census, forwarding, shares.rows[ctx.rank])
    words, forwards, arrived = yield from _tell(ctx, described, census, forwarding, weights)
    if ctx.program.target.kind == "dense":
        sources = points.columns["source"]
        yield from _agree_on_slots(ctx, census, words, sources, described.point_order)
    if wire.hands_over:
        blocks = split(forwards, forwarding.pairs[:, ctx.rank].tolist())
        order = landing_order(ctx.topology, ctx.topology.local_rank(ctx.rank))
        forwards = namespace(forwards).concatenate([blocks[source] for source in order])
    arriving = Arriving(
        census.points[:, ctx.rank],
        census.pairs[:, ctx.rank],
        int(slots.slots[ctx.rank]),
        wire.receive.num_rows,
    )
    received, row_index = receive(ctx, words, forwards, arriving)
    sizes = buffer_rows(ctx, census, shares, forwarding.pairs, slots.rows)
    plan = RankPlan(
        rank=ctx.rank,
        num_sources=num_sources(ctx, points),
        lists={**described.lists, **lists, **received},
        rows=BufferRows(*sizes[:, ctx.rank].tolist()),
        max_rows=BufferRows(*sizes.max(axis=1).tolist()),
        net_send_counts=wire.send.counts,
        net_recv_counts=wire.receive.counts,
        flow_counts=tuple(shares.rows[ctx.rank].tolist()),
        wire=wire,
        point_order=described.point_order,
        point_send_counts=tuple(census.points[ctx.rank].tolist()),
        point_recv_counts=tuple(census.points[:, ctx.rank].tolist()),
        keys=described.keys,
        key_counts=described.key_counts,
        key_offsets=described.key_offsets,
        row_index=row_index,
    )
    return plan, arrived


def _call(ctx: PlanContext) -> str:
    return f"a dispatch of `{ctx.shuffle.name}`"


def _fail(ctx: PlanContext, error: FuscoRuntimeError) -> Generator[Request, Any, NoReturn]:
    """Take part with nothing but an error; every rank raises."""
    gathered = yield StartGather(failed_row(ctx, error), _call(ctx))
    yield from raise_together(error, gathered()[:, 0].tolist())
    raise error


def _prepare(ctx: PlanContext, points: Points) -> tuple[SortedPoints, Copies, Array]:
    """What a rank plans before it meets the others, and its row of the census."""
    error = check_policy(ctx)
    if error is not None:
        raise error
    ordered = sort_points(ctx, points)
    copies = order_copies(ctx, ordered)
    return ordered, copies, count_points(ctx, points, ordered, copies)


def _sending(
    ctx: PlanContext, listed: Listed, shares: Shares, census: Census
) -> dict[str, DescriptorList]:
    """The lists of what goes over the network, also by other ranks of the node."""
    net_send = listed.net_send
    if not shares.hands_over:
        return {"net_send": net_send}
    sources = {name: column for name, column in net_send.items() if name != "dst_row"}
    return hand_over(ctx, shares, _num_direct(ctx, census), sources)


def _tell(
    ctx: PlanContext,
    described: Described,
    census: Census,
    forwarding: Forwarding,
    weights: Array | None,
) -> Generator[Request, Any, tuple[Array, Array, Array | None]]:
    """What the others have to know, in one exchange: this rank is told words of points, forwards of
    pairs, both by source rank, and weights."""
    parts = [_part(ctx, described.words, census.points)]
    if ctx.topology.num_nodes > 1:
        parts.append(_part(ctx, described.forwards, forwarding.pairs))
    if weights is not None:
        parts.append(_part(ctx, weights[described.point_order], census.points))
    words, *others = yield AllToAlls(tuple(parts))
    arrived = others.pop() if weights is not None else None
    return words, others.pop() if others else described.forwards, arrived


def _agree_on_slots(
    ctx: PlanContext, census: Census, words: Array, sources: Array, order: Array
) -> Generator[Request, Any, None]:
    """Raise on all ranks what is wrong with the given slots of any. Devices tell whether there is
    anything, so no host waits for its own.

    ``sources`` [num_points] and the ``order`` in which points are sent: for messages.
    """
    length, counts = int(census.length[ctx.rank]), census.points[:, ctx.rank]
    # Of a target that is too large, the table to find overlaps with does not fit either.
    found = attempt(ctx.rank, lambda: any_wrong_slot(words, length))
    problem: FuscoRuntimeError | None = None
    if isinstance(found, FuscoRuntimeError):
        problem, [found] = found, upload([np.ones(1, np.int64)], ctx.device)
    if (yield AllGather(found)).any():
        told = yield _part(ctx, sources[order], census.points)
        if problem is None:
            problem = attempt(ctx.rank, lambda: check_slots(ctx, words, told, counts, length))
        yield from agree(problem)


def _part(ctx: PlanContext, words: Array, counts: Int64Array) -> AllToAll:
    """Rows of ``words`` to every rank; ``counts`` [source rank, destination rank]."""
    send, recv = counts[ctx.rank], counts[:, ctx.rank]
    return AllToAll(words, tuple(send.tolist()), tuple(recv.tolist()))


def buffer_rows(
    ctx: PlanContext, census: Census, shares: Shares, pairs: Int64Array, num_rows: Int64Array
) -> Int64Array:
    """Fields of ``BufferRows``, in their order, of every rank: [num_fields, num_ranks].

    ``pairs``: int64 [R, R], pairs by source rank and forwarder.
    """
    sent, forwarded = shares.sent, pairs.sum(axis=0)
    staging = _num_direct(ctx, census) + census.flows.sum(axis=1)
    carried = shares.assignment.handed.sum(axis=0)
    return np.stack([num_rows, staging, forwarded, sent.sum(axis=1), sent.sum(axis=0), carried])


def _num_direct(ctx: PlanContext, census: Census) -> Int64Array:
    """int64 [num_ranks]: pairs of every rank inside its own node."""
    rank = np.arange(ctx.topology.num_ranks)
    pairs = node_pairs(ctx.topology, census)[rank, rank // ctx.topology.ranks_per_node]
    return np.asarray(pairs)
