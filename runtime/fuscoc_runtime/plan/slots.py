"""Which slot every live point gets, and how the slots of a rank are divided among its keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fuscoc_runtime.arrays import Array
from fuscoc_runtime.errors import CapacityError
from fuscoc_runtime.manifest.program import PackedSlots
from fuscoc_runtime.padding import Padded, blocks
from fuscoc_runtime.plan import native
from fuscoc_runtime.plan.arrays import before, differs, empty, iota, stable_order, upload
from fuscoc_runtime.plan.census import Census, has_table
from fuscoc_runtime.plan.flows import Int64Array
from fuscoc_runtime.plan.placement import KeyOrder
from fuscoc_runtime.plan.points import LivePoints
from fuscoc_runtime.plan.types import PlanContext

MAX_SLOTS = 1 << 47
"""A slot takes a byte at least, and no process addresses more of them."""


@dataclass(frozen=True, eq=False)
class SlotLayout:
    """How slots are divided among ranks and keys; int64 on the host.

    ``slots`` [R]: of the target of every rank; ``rows`` [R]: its rows in memory, which are fewer
    where it is compact. ``first`` [num_keys]: the slot of this rank's first point of every key; no
    keys for a dense target. ``keys``, ``key_counts`` and ``key_offsets`` as in ``RankPlan``.
    """

    slots: Int64Array
    rows: Int64Array
    first: Int64Array
    keys: Int64Array
    key_counts: Int64Array
    key_offsets: Int64Array


@dataclass(frozen=True, eq=False)
class Slots:
    """``point_slot`` [num_live_points], in the order of ``SortedPoints``; ``keys``, ``key_counts``
    and ``key_offsets`` as in ``RankPlan``. All on the compute device.
    """

    point_slot: Array
    keys: Array
    key_counts: Array
    key_offsets: Array


def lay_out_slots(ctx: PlanContext, census: Census) -> SlotLayout:
    """Divide the slots of a packed target by counting; those of a dense one are as computed.

    Raises:
        CapacityError: a rank needs more than the spec allows.
    """
    target = ctx.program.target
    if target.kind == "dense":
        none = np.zeros(0, np.int64)
        return SlotLayout(census.length, census.length, none, none, none, np.zeros(1, np.int64))
    order = KeyOrder.of(census.owners, ctx.topology) if has_table(ctx) else ctx.key_order
    in_c = native.is_there() and target.padding in native.PADDINGS
    divide = native.slots if in_c else divide_slots
    taken, *of_keys = divide(census.keys, order.by_rank, order.bounds, target, ctx.rank)
    _check_capacity(target, taken.tolist())
    num_slots = taken * target.align
    rows = census.pairs.sum(axis=0) if ctx.program.is_compact else num_slots
    first, counts, offsets = of_keys
    owned = order.by_rank[order.bounds[ctx.rank] : order.bounds[ctx.rank + 1]]
    return SlotLayout(num_slots, rows, first, owned, counts, offsets)


def divide_slots(
    keys: Int64Array, by_rank: Int64Array, bounds: Int64Array, target: Padded, rank: int
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """What ``native.slots`` does, for any padding, and where there is no compiler."""
    total, align = keys.sum(axis=0), target.align
    ends = _running(blocks(target, total)[by_rank])
    bound = ends[bounds]
    begin = (ends[:-1] - np.repeat(bound[:-1], np.diff(bounds))) * align
    first = np.empty_like(total)
    first[by_rank] = begin
    mine = slice(int(bounds[rank]), int(bounds[rank + 1]))
    end = (bound[rank + 1] - bound[rank]) * align
    offsets = np.append(begin[mine], end)
    return np.diff(bound), first + keys[:rank].sum(axis=0), total[by_rank[mine]], offsets


def assign_slots(ctx: PlanContext, live: LivePoints, layout: SlotLayout, census: Census) -> Slots:
    """The slots of this rank's points: of a dense target as the spec computed them.

    Within a key, slots follow (source rank, domain order), whatever the topology.
    """
    host = layout.keys, layout.key_counts, layout.key_offsets
    # A key's points get consecutive slots: the point's place among all ordered by key, shifted.
    shift, *keys = upload([layout.first - before(census.keys[ctx.rank]), *host], ctx.device)
    if ctx.program.target.kind == "dense":
        return Slots(live.target, *keys)
    order = stable_order(live.target, ctx.program.target.num_keys)
    slot = empty(len(order), order)
    slot[order] = iota(order) + shift[live.target[order]]
    return Slots(slot, *keys)


def assign_rows(ctx: PlanContext, live: LivePoints, slots: Slots, census: Census) -> Array:
    """int64 [num_live_points]: the row that every point's segment is put into at its rank.

    Its slot; in a compact target, its number among the segments of the rank, by (source rank,
    source), whatever the topology.
    """
    if not ctx.program.is_compact:
        return slots.point_slot
    first = census.pairs[: ctx.rank].sum(axis=0)
    [shift] = upload([first - before(census.pairs[ctx.rank])], ctx.device)
    order = stable_order(live.rank, ctx.topology.num_ranks)
    row = empty(len(order), order)
    row[order] = differs(live.pair)[order].cumsum(0) - 1 + shift[live.rank[order]]
    return row


def _running(counts: Int64Array) -> Int64Array:
    """Sums before every element, and of all: [2, 3, 4] -> [0, 2, 5, 9]."""
    sums = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=sums[1:])
    return sums


def _check_capacity(target: PackedSlots, num_blocks: Sequence[int]) -> None:
    """In Python's integers, which do not overflow, whatever ``align`` is."""
    capacity = target.capacity if target.capacity is not None else MAX_SLOTS
    for rank, count_of_rank in enumerate(num_blocks):
        num_slots = count_of_rank * target.align
        if num_slots > min(capacity, MAX_SLOTS):
            raise CapacityError(rank, num_slots, min(capacity, MAX_SLOTS))
