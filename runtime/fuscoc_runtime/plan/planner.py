"""One rank's plan: relation outputs -> descriptor lists.

The stages, in order: sorted points, copies, census (AllGather), slots of every rank, forwarders,
rounds: then a rank can send. Slots of every point, descriptions (AllToAlls) and the lists of
forwarder and target follow. Everything is vectorised and runs on the compute device, as kernels
where ``device`` has them and else as tensor operations; only counts come to the host. The hierarchy
is FUSCO's (arXiv 2512.22036): one copy of a segment per node over the network, one per rank over
NVLink, the rest from the receiver's own memory.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from fuscoc_runtime.comm.requests import AllGather, AllToAll, AllToAlls, Request, StartGather
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.plan.agree import agree, attempt, raise_together
from fuscoc_runtime.plan.arrays import upload
from fuscoc_runtime.plan.carry import Handed, hand_over, landing_order
from fuscoc_runtime.plan.census import Census, count_points, failed_row, read_census, with_extents
from fuscoc_runtime.plan.device import has_kernels, has_receiver_kernels
from fuscoc_runtime.plan.device.source import (
    ListedByKernels,
    describe_placed,
    list_placed,
    place_points,
)
from fuscoc_runtime.plan.device.target import receive_placed
from fuscoc_runtime.plan.flows import Int64Array, Shares
from fuscoc_runtime.plan.forwarders import (
    Forwarding,
    assign_forwarders,
    check_policy,
    node_pairs,
)
from fuscoc_runtime.plan.hops import order_copies
from fuscoc_runtime.plan.network import NetworkHop, plan_network_hop
from fuscoc_runtime.plan.points import sort_points
from fuscoc_runtime.plan.receive import Received, any_wrong_slot, check_slots, receive
from fuscoc_runtime.plan.rounds import (
    Side,
    slices_of,
)
from fuscoc_runtime.plan.send import Described, Listed, ListedByTensors, describe, list_copies
from fuscoc_runtime.plan.slots import SlotLayout, lay_out_slots, surely_fit
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

    A rank can send as soon as it has this: ``wire`` lacks what is about landing, ``lists`` has
    those that fill slices alone. ``handed``: what ranks send for one another, if they do.
    ``laid_out``: the slots, if it took them to know that all ranks have room.
    ``num_rows``, ``most_rows``: of the target, here and on any rank; ``num_carried``,
    ``most_carried``: rows sent for other ranks, likewise.
    """

    ctx: PlanContext
    num_sources: int
    listed: Listed
    census: Census
    shares: Shares
    laid_out: SlotLayout | None
    wire: Wire
    lists: dict[str, DescriptorList]
    handed: Handed | None

    @cached_property
    def slots(self) -> SlotLayout:
        """Nobody needs it to send, so it is made when somebody asks first."""
        return self.laid_out or lay_out_slots(self.ctx, self.census)

    @property
    def num_carried(self) -> int:
        return int(self._carried[self.wire.rank]) if self.shares.hands_over else 0

    @property
    def most_carried(self) -> int:
        return int(self._carried.max()) if self.shares.hands_over else 0

    @cached_property
    def _carried(self) -> Int64Array:
        """int64 [R]: rows that every rank sends for others."""
        return np.asarray(self.shares.assignment.handed.sum(axis=0))

    @property
    def num_rows(self) -> int:
        return int(self.slots.rows[self.wire.rank])

    @property
    def most_rows(self) -> int:
        return int(self.slots.rows.max())


def plan_rank(
    ctx: PlanContext, points: Points | FuscoRuntimeError
) -> Generator[Request, Any, RankPlan]:
    """Plan one rank; collective over all ranks. See ``draft_plan`` and ``finish_plan``."""
    draft = yield from draft_plan(ctx, points)
    plan, _ = yield from finish_plan(ctx, draft)
    return plan


def draft_plan(
    ctx: PlanContext, points: Points | FuscoRuntimeError
) -> Generator[Request, Any, Draft]:
    """What a rank needs to start sending; collective over all ranks.

    One gather. A rank that has already failed passes its error instead of points. Whatever any
    rank finds wrong, all ranks raise.

    Raises:
        IndexOutOfRangeError, CapacityError, PlacementMismatchError, ExtentMismatchError,
        NativeBuildError: see their classes.
    """
    if isinstance(points, FuscoRuntimeError):
        return (yield from _fail(ctx, points))
    prepared = attempt(ctx.rank, lambda: _prepare(ctx, points))
    if isinstance(prepared, FuscoRuntimeError):
        return (yield from _fail(ctx, prepared))
    gathered = yield StartGather(with_extents(ctx, points, prepared.row))
    prepared.place()
    census = yield from read_census(ctx, points, gathered().numpy())
    num_sources = len(points.columns["rank"]) // ctx.program.num_points_each(ctx.topology.num_ranks)
    laid_out = None if surely_fit(ctx, census) else lay_out_slots(ctx, census)
    hop = plan_network_hop(ctx, census)
    listed = prepared.list(census)
    shares, wire = hop.shares, _wire(ctx, hop)
    lists, handed = {"net_send": listed.net_send}, None
    if hop.rounds is not None:
        sources = {name: part for name, part in lists["net_send"].items() if name != "dst_row"}
        num_direct = _num_direct(ctx, census)
        handed = hand_over(ctx, hop.rounds, wire.num_rounds, shares, num_direct, sources)
        wire, lists = replace(wire, handover=handed.entries), handed.lists
    return Draft(ctx, num_sources, listed, census, shares, laid_out, wire, lists, handed)


def _fail(ctx: PlanContext, error: FuscoRuntimeError) -> Generator[Request, Any, NoReturn]:
    """Take part in ``draft_plan`` with nothing but an error; every rank raises."""
    gathered = yield StartGather(failed_row(ctx, error))
    yield from raise_together(error, gathered()[:, 0].tolist())
    raise error


def finish_plan(
    ctx: PlanContext, draft: Draft, weights: Tensor | None = None
) -> Generator[Request, Any, tuple[RankPlan, Tensor | None]]:
    """The rest of a plan: collective over all ranks.

    ``weights``: [num_points], of this rank's points in domain order, to travel with it; also
    returned: those that arrive, as ``point_recv_counts`` says.

    One exchange of what the others have to know; an AllGather for a dense target, and one where
    flows are cut.

    Raises:
        SlotOutOfRangeError, SlotOverlapError: on all ranks, if any rank's target has them.
    """
    census, shares = draft.census, draft.shares
    wire = replace(draft.wire, landing_order=_order(ctx, draft.wire.receive))
    forwarding = yield from assign_forwarders(ctx, draft.listed.remote_row, census, shares)
    described = _describe(ctx, draft, forwarding)
    parts = [_part(ctx, described.words, census.points)]
    if ctx.topology.num_nodes > 1:
        parts.append(_part(ctx, described.forwards, forwarding.pairs))
    if weights is not None:
        parts.append(_part(ctx, weights[described.point_order], census.points))
    words, *others = yield AllToAlls(tuple(parts))
    arrived = others.pop() if weights is not None else None
    if ctx.program.target.kind == "dense":
        yield from _agree_on_slots(ctx, census, words)
    forwards = others.pop() if others else described.forwards
    if shares.hands_over:
        blocks = torch.split(forwards, forwarding.pairs[:, ctx.rank].tolist())
        order = landing_order(ctx.topology, ctx.topology.local_rank(ctx.rank))
        forwards = torch.cat([blocks[source] for source in order])
    received = _receive(ctx, draft, wire, described, words, forwards)
    back = {} if draft.handed is None else {"hand_back": draft.handed.hand_back(ctx)}
    sizes = buffer_rows(ctx, census, shares, forwarding.pairs, draft.slots.rows)
    plan = RankPlan(
        rank=ctx.rank,
        num_sources=draft.num_sources,
        lists={**described.lists, **draft.lists, **back, **received.lists},
        rows=BufferRows(*sizes[:, ctx.rank].tolist()),
        max_rows=BufferRows(*sizes.max(axis=1).tolist()),
        net_send_counts=tuple(shares.sent[ctx.rank].tolist()),
        net_recv_counts=tuple(shares.sent[:, ctx.rank].tolist()),
        flow_counts=tuple(shares.rows[ctx.rank].tolist()),
        wire=replace(wire, forward_order=received.forward_order, entries=received.entries),
        point_order=described.point_order,
        point_send_counts=tuple(census.points[ctx.rank].tolist()),
        point_recv_counts=tuple(census.points[:, ctx.rank].tolist()),
        keys=described.keys,
        key_counts=described.key_counts,
        key_offsets=described.key_offsets,
        row_index=received.row_index,
    )
    return plan, arrived


@dataclass(frozen=True, eq=False)
class _Prepared:
    """What a rank plans before it meets the others: its row of the census, what to do while that
    travels, and what will list its copies."""

    row: Tensor
    place: Callable[[], None]
    list: Callable[[Census], Listed]


def _prepare(ctx: PlanContext, points: Points) -> _Prepared:
    error = check_policy(ctx)
    if error is not None:
        raise error
    if has_kernels(ctx, len(points.columns["rank"])):
        placed = place_points(ctx, points)
        return _Prepared(placed.row, placed.place, lambda census: list_placed(ctx, placed, census))
    ordered = sort_points(ctx, points)
    copies = order_copies(ctx, ordered)
    row = count_points(ctx, points, ordered, copies)

    def listing(census: Census) -> Listed:
        return list_copies(ctx, points, ordered, copies, census)

    return _Prepared(row, lambda: None, listing)


def _describe(ctx: PlanContext, draft: Draft, forwarding: Forwarding) -> Described:
    """Slots, and what the other ranks have to know, by kernels or by tensors."""
    rows = draft.shares.rows[ctx.rank]
    rounds = None if draft.handed is None else draft.handed.row_rounds
    listed, wire, known = draft.listed, draft.wire, (draft.slots, draft.census, forwarding)
    if isinstance(listed, ListedByKernels):
        slices = wire.send.in_row_order() if rounds is None else slices_of(rows, rounds)
        return describe_placed(ctx, listed, *known, slices, wire.receive)
    assert isinstance(listed, ListedByTensors)
    return describe(ctx, listed, *known, rows, wire.send.rounds() if rounds is None else rounds)


def _receive(
    ctx: PlanContext,
    draft: Draft,
    wire: Wire,
    described: Described,
    words: Tensor,
    forwards: Tensor,
) -> Received:
    """The lists of forwarder and destination, by kernels or by tensors."""
    pairs, num_slots = draft.census.pairs[:, ctx.rank], int(draft.slots.slots[ctx.rank])
    arguments = ctx, words, forwards, pairs, num_slots, wire
    if described.arriving is not None and has_receiver_kernels(wire):
        return receive_placed(*arguments, described.arriving)
    return receive(*arguments)


def _agree_on_slots(
    ctx: PlanContext, census: Census, words: Tensor
) -> Generator[Request, Any, None]:
    """Raise on all ranks what is wrong with the given slots of any. Devices tell whether there is
    anything, so no host waits for its own."""
    length, counts = int(census.length[ctx.rank]), census.points[:, ctx.rank]
    # Of a target that is too large, the table to find overlaps with does not fit either.
    found = attempt(ctx.rank, lambda: any_wrong_slot(words, length))
    problem = found if isinstance(found, FuscoRuntimeError) else None
    flag = found if isinstance(found, Tensor) else words.new_ones(1)
    if (yield AllGather(flag)).any():
        if problem is None:
            problem = attempt(ctx.rank, lambda: check_slots(ctx, words, counts, length))
        yield from agree(problem)


def _wire(ctx: PlanContext, hop: NetworkHop) -> Wire:
    """A rank's part in the rounds."""
    order = _order(ctx, hop.send)
    return Wire(ctx.rank, hop.num_rounds, hop.send, hop.receive, order, None, None, NO_ENTRIES)


def _order(ctx: PlanContext, side: Side) -> Tensor | None:
    """``Side.order`` on the device, if it changes anything."""
    return None if side.is_ordered else upload([side.order()], ctx.device)[0]


def _part(ctx: PlanContext, words: Tensor, counts: Int64Array) -> AllToAll:
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
