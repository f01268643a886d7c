"""Which slot every live point gets, and how the slots of a rank are divided among its keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fuscoc_runtime.errors import CapacityError
from fuscoc_runtime.plan.arrays import count, exclusive_cumsum, indices, iota, stable_order
from fuscoc_runtime.plan.census import Census
from fuscoc_runtime.plan.points import LivePoints
from fuscoc_runtime.plan.types import PlanContext, Points
from fuscoc_runtime.schema import PackedTarget

MAX_SLOTS = 1 << 47
"""A slot takes a byte at least, and no process addresses more of them."""


@dataclass(frozen=True, eq=False)
class Slots:
    """``point_slot`` [num_live_points] on the compute device, in the order of ``LivePoints``.

    ``num_slots`` [R], ``keys``, ``key_counts`` and ``key_offsets`` as in ``RankPlan``, on the host.
    """

    point_slot: Tensor
    num_slots: Tensor
    keys: Tensor
    key_counts: Tensor
    key_offsets: Tensor


def assign_slots(ctx: PlanContext, points: Points, live: LivePoints, census: Census) -> Slots:
    """Slots of a packed target by counting, of a dense one as the spec computed them.

    Within a key, slots follow (source rank, domain order), whatever the topology.
    """
    target = ctx.shuffle.target
    if target.kind == "packed" and points.key_to_rank is not None:
        return _pack(ctx, target, points.key_to_rank.cpu(), live, census)
    none = torch.zeros(0, dtype=torch.int64)
    return Slots(live.target, census.length, none, none, torch.zeros(1, dtype=torch.int64))


def _pack(
    ctx: PlanContext, target: PackedTarget, key_to_rank: Tensor, live: LivePoints, census: Census
) -> Slots:
    num_ranks = ctx.topology.num_ranks
    total = census.keys.sum(0)
    blocks = total // target.align + (total % target.align > 0)
    num_blocks = torch.zeros(num_ranks, dtype=torch.int64).index_add_(0, key_to_rank, blocks)
    _check_capacity(target, num_blocks.tolist())
    padded, num_slots = blocks * target.align, num_blocks * target.align

    by_rank = stable_order(key_to_rank)
    first = torch.empty_like(padded)
    first[by_rank] = exclusive_cumsum(padded[by_rank])
    first -= exclusive_cumsum(num_slots)[key_to_rank]

    mine = first + census.keys[: ctx.rank].sum(0)
    owned = indices(key_to_rank == ctx.rank)
    return Slots(
        _number(live.target, mine.to(ctx.device)),
        num_slots,
        owned,
        total[owned],
        torch.cat([first[owned], num_slots[ctx.rank : ctx.rank + 1]]),
    )


def _number(key: Tensor, first: Tensor) -> Tensor:
    """Slots first[key], first[key] + 1, ... to the points of each key, in their order."""
    order = stable_order(key)
    sorted_key = key[order]
    before = exclusive_cumsum(count(key, len(first)))
    slot = torch.empty_like(key)
    slot[order] = iota(key) + (first - before)[sorted_key]
    return slot


def _check_capacity(target: PackedTarget, num_blocks: Sequence[int]) -> None:
    """In Python's integers, which do not overflow, whatever ``align`` is."""
    capacity = target.capacity if target.capacity is not None else MAX_SLOTS
    for rank, count_of_rank in enumerate(num_blocks):
        num_slots = count_of_rank * target.align
        if num_slots > min(capacity, MAX_SLOTS):
            raise CapacityError(rank, num_slots, min(capacity, MAX_SLOTS))
