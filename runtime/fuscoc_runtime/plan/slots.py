"""Which slot every live point gets, and how the slots of a rank are divided among its keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fuscoc_runtime.errors import CapacityError
from fuscoc_runtime.plan.arrays import before, differs, iota, stable_order, upload
from fuscoc_runtime.plan.census import Census, has_table
from fuscoc_runtime.plan.flows import Int64Array
from fuscoc_runtime.plan.placement import KeyOrder
from fuscoc_runtime.plan.points import LivePoints
from fuscoc_runtime.plan.types import PlanContext
from fuscoc_runtime.schema import PackedTarget

MAX_SLOTS = 1 << 47
"""A slot takes a byte at least, and no process addresses more of them."""


@dataclass(frozen=True, eq=False)
class SlotCounts:
    """int64 [R] on the host: slots of the target of every rank, and its rows in memory, which are
    fewer where it is compact."""

    slots: Int64Array
    rows: Int64Array


@dataclass(frozen=True, eq=False)
class SlotLayout:
    """How slots are divided among keys, on the host.

    ``first``: int64 [num_keys], the slot of this rank's first point of every key; no keys for a
    dense target. ``keys``, ``key_counts`` and ``key_offsets`` as in ``RankPlan``.
    """

    first: Int64Array
    keys: Int64Array
    key_counts: Int64Array
    key_offsets: Int64Array


@dataclass(frozen=True, eq=False)
class Slots:
    """``point_slot`` [num_live_points], in the order of ``SortedPoints``; ``keys``, ``key_counts``
    and ``key_offsets`` as in ``RankPlan``. All on the compute device.
    """

    point_slot: Tensor
    keys: Tensor
    key_counts: Tensor
    key_offsets: Tensor


def count_slots(ctx: PlanContext, census: Census) -> SlotCounts:
    """Slots and rows of every rank.

    Raises:
        CapacityError: a rank needs more than the spec allows.
    """
    target = ctx.shuffle.target
    if target.kind == "dense":
        return SlotCounts(census.length, census.length)
    order = _key_order(ctx, census)
    blocks = _blocks(target, census.keys.sum(axis=0))
    num_blocks = np.diff(_running(blocks[order.by_rank])[order.bounds])
    _check_capacity(target, num_blocks.tolist())
    num_slots = num_blocks * target.align
    rows = census.pairs.sum(axis=0) if ctx.shuffle.is_compact else num_slots
    return SlotCounts(num_slots, rows)


def lay_out_slots(ctx: PlanContext, census: Census) -> SlotLayout:
    """Divide the slots of a packed target by counting."""
    target = ctx.shuffle.target
    if target.kind == "dense":
        none = np.zeros(0, np.int64)
        return SlotLayout(none, none, none, np.zeros(1, np.int64))
    order = _key_order(ctx, census)
    total = census.keys.sum(axis=0)
    ends = _running(_blocks(target, total)[order.by_rank] * target.align)
    starts = ends[order.bounds]
    first = np.empty_like(total)
    first[order.by_rank] = ends[:-1] - np.repeat(starts[:-1], np.diff(order.bounds))

    mine = slice(*order.bounds[ctx.rank : ctx.rank + 2].tolist())
    owned = order.by_rank[mine]
    offsets = ends[mine.start : mine.stop + 1] - ends[mine.start]
    earlier = census.keys[: ctx.rank].sum(axis=0)
    return SlotLayout(first + earlier, owned, total[owned], offsets)


def assign_slots(ctx: PlanContext, live: LivePoints, layout: SlotLayout, census: Census) -> Slots:
    """The slots of this rank's points: of a dense target as the spec computed them.

    Within a key, slots follow (source rank, domain order), whatever the topology.
    """
    host = layout.keys, layout.key_counts, layout.key_offsets
    # A key's points get consecutive slots: the point's place among all ordered by key, shifted.
    shift, *keys = upload([layout.first - before(census.keys[ctx.rank]), *host], ctx.device)
    if ctx.shuffle.target.kind == "dense":
        return Slots(live.target, *keys)
    order = stable_order(live.target)
    slot = torch.empty_like(order)
    slot[order] = iota(order) + shift[live.target[order]]
    return Slots(slot, *keys)


def rank_rows(ctx: PlanContext, census: Census) -> Int64Array:
    """int64 [R]: the first row of a compact target that this rank's segments get at every rank."""
    return np.asarray(census.pairs[: ctx.rank].sum(axis=0))


def assign_rows(ctx: PlanContext, live: LivePoints, slots: Slots, census: Census) -> Tensor:
    """int64 [num_live_points]: the row that every point's segment is put into at its rank.

    Its slot; in a compact target, its number among the segments of the rank, by (source rank,
    source), whatever the topology.
    """
    if not ctx.shuffle.is_compact:
        return slots.point_slot
    [shift] = upload([rank_rows(ctx, census) - before(census.pairs[ctx.rank])], ctx.device)
    order = stable_order(live.rank)
    row = torch.empty_like(order)
    row[order] = differs(live.pair)[order].cumsum(0) - 1 + shift[live.rank[order]]
    return row


def _key_order(ctx: PlanContext, census: Census) -> KeyOrder:
    return KeyOrder.of(census.owners, ctx.topology) if has_table(ctx) else ctx.key_order


def _blocks(target: PackedTarget, counts: Int64Array) -> Int64Array:
    """Blocks of ``align`` slots that so many points take."""
    return counts if target.align == 1 else -(-counts // target.align)


def _running(counts: Int64Array) -> Int64Array:
    """Sums before every element, and of all: [2, 3, 4] -> [0, 2, 5, 9]."""
    sums = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=sums[1:])
    return sums


def _check_capacity(target: PackedTarget, num_blocks: Sequence[int]) -> None:
    """In Python's integers, which do not overflow, whatever ``align`` is."""
    capacity = target.capacity if target.capacity is not None else MAX_SLOTS
    for rank, count_of_rank in enumerate(num_blocks):
        num_slots = count_of_rank * target.align
        if num_slots > min(capacity, MAX_SLOTS):
            raise CapacityError(rank, num_slots, min(capacity, MAX_SLOTS))
