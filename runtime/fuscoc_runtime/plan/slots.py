"""Which slot every live point gets, and how the slots of a rank are divided among its keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fuscoc_runtime.errors import CapacityError
from fuscoc_runtime.plan.arrays import differs, exclusive_cumsum, iota, stable_order, upload
from fuscoc_runtime.plan.census import Census
from fuscoc_runtime.plan.placement import key_to_rank
from fuscoc_runtime.plan.points import SortedPoints
from fuscoc_runtime.plan.types import PlanContext, Points
from fuscoc_runtime.schema import PackedTarget

MAX_SLOTS = 1 << 47
"""A slot takes a byte at least, and no process addresses more of them."""


@dataclass(frozen=True, eq=False)
class SlotLayout:
    """How the slots of every rank are divided, on the host.

    ``num_slots``, ``num_rows``: int64 [R], slots of the target and its rows in memory, which are
    fewer where it is compact. ``shift``: int64 [num_keys], what to add to a point's place among
    this rank's points ordered by key; no keys for a dense target. ``keys``, ``key_counts`` and
    ``key_offsets`` as in ``RankPlan``.
    """

    num_slots: Tensor
    num_rows: Tensor
    shift: Tensor
    keys: Tensor
    key_counts: Tensor
    key_offsets: Tensor


@dataclass(frozen=True, eq=False)
class Slots:
    """``point_slot`` [num_live_points], in the order of ``SortedPoints``; ``keys``, ``key_counts``
    and ``key_offsets`` as in ``RankPlan``. All on the compute device.
    """

    point_slot: Tensor
    keys: Tensor
    key_counts: Tensor
    key_offsets: Tensor


def lay_out_slots(ctx: PlanContext, points: Points, census: Census) -> SlotLayout:
    """Divide the slots of a packed target by counting.

    Raises:
        CapacityError: a rank needs more than the spec allows.
    """
    target = ctx.shuffle.target
    if target.kind == "dense" or points.key_to_rank is None:
        none, zero = torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
        return SlotLayout(census.length, census.length, none, none, none, zero)
    owners = _owners(ctx, target, points.key_to_rank)
    total = census.keys.sum(0)
    blocks = total // target.align + (total % target.align > 0)
    num_blocks = torch.zeros(ctx.topology.num_ranks, dtype=torch.int64)
    num_blocks.index_add_(0, owners, blocks)
    _check_capacity(target, num_blocks.tolist())
    padded, num_slots = blocks * target.align, num_blocks * target.align

    by_rank = stable_order(owners)
    first = torch.empty_like(padded)
    first[by_rank] = exclusive_cumsum(padded[by_rank])
    first -= exclusive_cumsum(num_slots)[owners]

    mine = first + census.keys[: ctx.rank].sum(0)
    owned = torch.nonzero(owners == ctx.rank).flatten()
    offsets = torch.cat([first[owned], num_slots[ctx.rank : ctx.rank + 1]])
    shift = mine - exclusive_cumsum(census.keys[ctx.rank])
    num_rows = census.pairs.sum(0) if ctx.shuffle.is_compact else num_slots
    return SlotLayout(num_slots, num_rows, shift, owned, total[owned], offsets)


def assign_slots(ctx: PlanContext, live: SortedPoints, layout: SlotLayout) -> Slots:
    """The slots of this rank's points: of a dense target as the spec computed them.

    Within a key, slots follow (source rank, domain order), whatever the topology.
    """
    shift, *keys = upload(
        [layout.shift, layout.keys, layout.key_counts, layout.key_offsets], ctx.device
    )
    if ctx.shuffle.target.kind == "dense":
        return Slots(live.target, *keys)
    # A key's points get consecutive slots: the point's place among all ordered by key, shifted.
    order = stable_order(live.target)
    slot = torch.empty_like(order)
    slot[order] = iota(order) + shift[live.target[order]]
    return Slots(slot, *keys)


def assign_rows(ctx: PlanContext, live: SortedPoints, slots: Slots, census: Census) -> Tensor:
    """int64 [num_live_points]: the row that every point's segment is put into at its rank.

    Its slot; in a compact target, its number among the segments of the rank, by (source rank,
    source), whatever the topology.
    """
    if not ctx.shuffle.is_compact:
        return slots.point_slot
    mine = census.pairs[ctx.rank]
    before = census.pairs[: ctx.rank].sum(0) - exclusive_cumsum(mine)
    [shift] = upload([before], ctx.device)
    order = stable_order(live.rank)
    row = torch.empty_like(order)
    row[order] = differs(live.pair)[order].cumsum(0) - 1 + shift[live.rank[order]]
    return row


def _owners(ctx: PlanContext, target: PackedTarget, owners: Tensor) -> Tensor:
    """The owner of every key on the host: only a table has to be fetched from the device."""
    if target.placement.kind == "table":
        return owners.cpu()
    return key_to_rank(target, ctx.topology, ctx.rank, {})


def _check_capacity(target: PackedTarget, num_blocks: Sequence[int]) -> None:
    """In Python's integers, which do not overflow, whatever ``align`` is."""
    capacity = target.capacity if target.capacity is not None else MAX_SLOTS
    for rank, count_of_rank in enumerate(num_blocks):
        num_slots = count_of_rank * target.align
        if num_slots > min(capacity, MAX_SLOTS):
            raise CapacityError(rank, num_slots, min(capacity, MAX_SLOTS))
