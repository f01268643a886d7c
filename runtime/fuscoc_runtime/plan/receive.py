"""What forwarders and targets do, from the descriptions that sources sent them.

forward         (landing row, rank of my node): src_row, dst_peer, dst_slot; ordered by landing
                row (source rank, sending order), then rank
reduce_node     every landing row: term_begin, term_end (its rows of ``forward``), dst_row
local           further point of a pair: src_slot (the pair's lead), dst_slot
reduce_direct   pair written by a source of my node: dst_peer, dst_row (its row in the source's
                ``direct``), term_begin, term_end
reduce_forward  pair written by a forwarder: the same, of the forwarder's ``forward``
The rows of a compact target are pairs, so that ``dst_slot`` is a row there and ``local`` is empty.
Both reductions share term columns: term_slot, and term_point, the index of the term's weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuscoc_runtime.arrays import Array, namespace
from fuscoc_runtime.errors import FuscoRuntimeError, SlotOutOfRangeError, SlotOverlapError
from fuscoc_runtime.plan.arrays import columns, count, empty, iota, positions, stable_order
from fuscoc_runtime.plan.flows import Int64Array
from fuscoc_runtime.plan.types import DescriptorList, PlanContext
from fuscoc_runtime.topology import Topology


@dataclass(frozen=True, eq=False)
class Arriving:
    """What arrives at a rank, int64 on the host: ``points``, ``pairs`` [num_ranks] by source rank,
    ``num_slots`` of the target, and ``num_landing`` rows of the network."""

    points: Int64Array
    pairs: Int64Array
    num_slots: int
    num_landing: int

    def near(self, topology: Topology, rank: int) -> range:
        """Those of the points that come from the node of ``rank``."""
        node = topology.node_ranks(topology.node(rank))
        ends = self.points.cumsum()
        begin = int(ends[node.start - 1]) if node.start else 0
        return range(begin, int(ends[node.stop - 1]))

    def num_near_pairs(self, topology: Topology, rank: int) -> int:
        """Pairs from there."""
        node = topology.node_ranks(topology.node(rank))
        return int(self.pairs[node.start : node.stop].sum())


def receive(
    ctx: PlanContext, words: Array, forwards: Array, arriving: Arriving
) -> tuple[dict[str, DescriptorList], Array]:
    """Lists of this rank as forwarder and as destination, and ``RankPlan.row_index``.

    ``words`` [num_points, 2], ``forwards`` [num_pairs, 2]: what ``describe_points`` and
    ``describe_forwards`` of every source sent, by source rank; ``forwards`` in the order of the
    landing rows.
    """
    lists, row_index = target_lists(ctx, words, arriving)
    return {**forwarder_lists(ctx, forwards, arriving.num_landing), **lists}, row_index


def forwarder_lists(
    ctx: PlanContext, words: Array, num_landing_rows: int
) -> dict[str, DescriptorList]:
    """Lists of this rank as forwarder.

    ``words`` [num_pairs, 2]: what ``describe_forwards`` of every source sent, by source rank.
    """
    m = ctx.topology.ranks_per_node
    slot, word = columns(words)
    row = word // m
    terms = count(row, num_landing_rows)
    end = terms.cumsum(0)
    return {
        "forward": {"src_row": row, "dst_peer": word % m, "dst_slot": slot},
        "reduce_node": {"term_begin": end - terms, "term_end": end, "dst_row": iota(terms)},
    }


def target_lists(
    ctx: PlanContext, words: Array, arriving: Arriving
) -> tuple[dict[str, DescriptorList], Array]:
    """Lists of this rank as destination, and ``RankPlan.row_index``.

    ``words`` [num_points, 2]: what ``describe_points`` of every source sent, by source rank.
    """
    m = ctx.topology.ranks_per_node
    num_pairs = int(arriving.pairs.sum())
    near = arriving.near(ctx.topology, ctx.rank)
    num_near = arriving.num_near_pairs(ctx.topology, ctx.rank)
    slot, word = columns(words)
    is_lead, place = word >= 0, iota(slot)
    end = place + count(place + word.clip(max=0), len(slot))
    # Leads first, of which those of this node come before the others; then further points.
    xp = namespace(word)
    kind = xp.ones_like(word)
    kind[near.start : near.stop] = 0
    order = stable_order(xp.where(is_lead, kind, 2), 3)
    peer, row = word % m, word // m

    def groups(begin: Array) -> DescriptorList:
        return {
            "dst_peer": peer[begin],
            "dst_row": row[begin],
            "term_begin": begin,
            "term_end": end[begin],
            "term_slot": slot,
            "term_point": place,
        }

    further, row_index = order[num_pairs:], slot[:0]
    if ctx.program.is_compact:
        # Pairs come in the order of their rows.
        row_index = empty(arriving.num_slots, slot)
        row_index[:] = -1
        row_index[slot] = is_lead.cumsum(0) - 1
        further = further[:0]
    return {
        "local": {"src_slot": slot[further + word[further]], "dst_slot": slot[further]},
        "reduce_direct": groups(order[:num_near]),
        "reduce_forward": groups(order[num_near:num_pairs]),
    }, row_index


def any_wrong_slot(words: Array, length: int) -> Array:
    """int64 [1]: 1 if ``check_slots`` finds something. Nothing waits for it here."""
    slot = words[:, 0]
    outside = (slot < 0) | (slot >= length)
    where = namespace(slot).where
    times = count(where(outside, length, slot), length + 1)[:length]
    found: Array = where(outside.any() | (times > 1).any(), 1, 0)
    return found.reshape(1)


def check_slots(
    ctx: PlanContext, words: Array, sources: Array, point_counts: Int64Array, length: int
) -> FuscoRuntimeError | None:
    """The first slot that lies outside the target, or else the lowest that is written twice.

    ``sources`` [num_points]: the segments that the points are of, at the ranks that sent them.
    """
    slot = words[:, 0]

    def source(position: int) -> tuple[int, int]:
        rank = int(np.searchsorted(point_counts.cumsum(), position, side="right"))
        return rank, int(sources[position])

    outside = positions((slot < 0) | (slot >= length))
    if len(outside):
        position = int(outside[0])
        return SlotOutOfRangeError(ctx.rank, int(slot[position]), length, source(position))
    shared = positions(count(slot, length) > 1)
    if len(shared):
        first, second = positions(slot == shared[0])[:2].tolist()
        return SlotOverlapError(ctx.rank, int(shared[0]), source(first), source(second))
    return None
