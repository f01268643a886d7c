"""What forwarders and targets do, from the descriptions that sources sent them.

forward         (landing row, rank of my node): src_row, dst_peer, dst_slot; ordered by landing
                row (source rank, sending order), then rank
reduce_node     every landing row: term_begin, term_end (its rows of ``forward``), dst_row
local           further point of a pair: src_slot (the pair's lead), dst_slot; ordered by the round
                that brings the lead, those of my node first
reduce_direct   pair written by a source of my node: dst_peer, dst_row (its row in the source's
                ``direct``), term_begin, term_end
reduce_forward  pair written by a forwarder: the same, of the forwarder's ``forward``; ordered by
                the round that brings it
The rows of a compact target are pairs, so that ``dst_slot`` is a row there and ``local`` is empty.
Both reductions share term columns: term_slot, and term_point, the index of the term's weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fuscoc_runtime.errors import FuscoRuntimeError, SlotOutOfRangeError, SlotOverlapError
from fuscoc_runtime.plan.arrays import columns, count, inverse, iota, stable_order, upload
from fuscoc_runtime.plan.flows import Int64Array
from fuscoc_runtime.plan.send import ROUND_SHIFT
from fuscoc_runtime.plan.types import DescriptorList, PlanContext, Wire


@dataclass(frozen=True, eq=False)
class Received:
    """What a rank does with what others send it. ``forward_order``, ``entries``: as in ``Wire``;
    ``row_index``: as in ``RankPlan``."""

    lists: dict[str, DescriptorList]
    forward_order: Tensor | None
    entries: Tensor
    row_index: Tensor


def receive(
    ctx: PlanContext,
    words: Tensor,
    forwards: Tensor,
    pair_counts: Int64Array,
    num_slots: int,
    wire: Wire,
) -> Received:
    """Lists of this rank as forwarder and as destination.

    ``words`` [num_points, 2 or 3], ``forwards`` [num_pairs, 2]: what ``describe_points`` and
    ``describe_forwards`` of every source sent, by source rank; ``forwards`` in the order of the
    landing rows. ``pair_counts`` [num_ranks]: pairs of this rank from each. ``wire``: of a draft.
    """
    lists = forwarder_lists(ctx, forwards, wire.receive.num_rows)
    forward_row, forward_order = lists["forward"]["src_row"], None
    if wire.landing_order is not None:
        forward_order = stable_order(inverse(wire.landing_order)[forward_row])
    [landing_round] = upload([wire.receive.rounds()], ctx.device)
    by_round = count(landing_round[forward_row], wire.num_rounds)
    targets, entries, row_index = target_lists(ctx, words, pair_counts, wire.num_rounds, num_slots)
    return Received({**lists, **targets}, forward_order, torch.cat([by_round, entries]), row_index)


def forwarder_lists(
    ctx: PlanContext, words: Tensor, num_landing_rows: int
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
    ctx: PlanContext, words: Tensor, pair_counts: Int64Array, num_rounds: int, num_slots: int
) -> tuple[dict[str, DescriptorList], Tensor, Tensor]:
    """Lists of this rank as destination.

    ``words`` [num_points, 2 or 3]: what ``describe_points`` of every source sent, by source rank;
    ``pair_counts`` [num_ranks], on the host: pairs from each. Also returns int64
    [2 * num_rounds + 1]: entries of ``reduce_forward`` for every round, and of ``local`` for leads
    of this node and of every round; and ``RankPlan.row_index``.
    """
    m, ranks = ctx.topology.ranks_per_node, ctx.topology.node_ranks(ctx.topology.node(ctx.rank))
    num_pairs = int(pair_counts.sum())
    num_near = int(pair_counts[ranks.start : ranks.stop].sum())
    slot, word = columns(words[:, :2])
    is_lead, place = word >= 0, iota(slot)
    lead = place + word.clamp(max=0)
    end = place + count(lead, len(slot))
    # Leads first, then further points; of each, those of this node and then round by round.
    kind = torch.where(is_lead, 0, num_rounds + 1) + (word[lead] >> ROUND_SHIFT)
    order = stable_order(kind)
    writer = word & (1 << ROUND_SHIFT) - 1
    peer, row = writer % m, writer // m

    def groups(begin: Tensor) -> DescriptorList:
        return {
            "dst_peer": peer[begin],
            "dst_row": row[begin],
            "term_begin": begin,
            "term_end": end[begin],
            "term_slot": slot,
            "term_point": place,
        }

    further, row_index, counted = order[num_pairs:], slot[:0], None
    if ctx.program.is_compact:
        # Pairs come in the order of their rows.
        row_index = torch.full((num_slots,), -1, device=slot.device)
        row_index[slot] = is_lead.cumsum(0) - 1
        further, counted = further[:0], is_lead
    lists = {
        "local": {"src_slot": slot[lead[further]], "dst_slot": slot[further]},
        "reduce_direct": groups(order[:num_near]),
        "reduce_forward": groups(order[num_near:num_pairs]),
    }
    return lists, count(kind, 2 * num_rounds + 2, counted)[1:], row_index


def any_wrong_slot(words: Tensor, length: int) -> Tensor:
    """int64 [1]: 1 if ``check_slots`` finds something. Nothing waits for it here."""
    slot = words[:, 0]
    outside = (slot < 0) | (slot >= length)
    times = count(torch.where(outside, length, slot), length + 1)[:length]
    return (outside.any() | (times > 1).any()).long().view(1)


def check_slots(
    ctx: PlanContext, words: Tensor, point_counts: Int64Array, length: int
) -> FuscoRuntimeError | None:
    """The first slot that lies outside the target, or else the lowest that is written twice."""
    slot = words[:, 0]

    def source(position: int) -> tuple[int, int]:
        rank = int(np.searchsorted(point_counts.cumsum(), position, side="right"))
        return rank, int(words[position, 2])

    outside = torch.nonzero((slot < 0) | (slot >= length)).flatten()
    if len(outside):
        position = int(outside[0])
        return SlotOutOfRangeError(ctx.rank, int(slot[position]), length, source(position))
    shared = torch.nonzero(count(slot, length) > 1).flatten()
    if len(shared):
        first, second = torch.nonzero(slot == shared[0]).flatten()[:2].tolist()
        return SlotOverlapError(ctx.rank, int(shared[0]), source(first), source(second))
    return None
