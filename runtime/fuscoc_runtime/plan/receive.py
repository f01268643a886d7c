"""What forwarders and targets do, from the descriptions that sources sent them.

forward         (landing row, rank of my node): src_row, dst_peer, dst_slot; ordered by landing
                row (source rank, sending order), then rank
reduce_node     every landing row: term_begin, term_end (its rows of ``forward``), dst_row
local           further point of a pair: src_slot (the pair's lead), dst_slot
reduce_direct   pair written by a source of my node: dst_peer, dst_row (its row in the source's
                ``direct``), term_begin, term_end
reduce_forward  pair written by a forwarder: the same, of the forwarder's ``forward``
Both reductions share term columns: term_slot, and term_point, the index of the term's weight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fuscoc_runtime.errors import FuscoRuntimeError, SlotOutOfRangeError, SlotOverlapError
from fuscoc_runtime.plan.arrays import columns, count, exclusive_cumsum, indices, iota
from fuscoc_runtime.plan.types import DescriptorList, PlanContext


def forwarder_lists(
    ctx: PlanContext, words: Tensor, pair_counts: Tensor, row_counts: Tensor
) -> dict[str, DescriptorList]:
    """Lists of this rank as forwarder.

    ``words`` [num_pairs, 2]: what ``describe_forwards`` of every source sent, by source rank;
    ``pair_counts``, ``row_counts`` [num_ranks]: pairs and landing rows from each.
    """
    m = ctx.topology.ranks_per_node
    slot, word = columns(words)
    base = torch.repeat_interleave(
        exclusive_cumsum(row_counts).to(ctx.device), pair_counts.to(ctx.device)
    )
    row = base + word // m
    terms = count(row, int(row_counts.sum()))
    end = terms.cumsum(0)
    return {
        "forward": {"src_row": row, "dst_peer": word % m, "dst_slot": slot},
        "reduce_node": {"term_begin": end - terms, "term_end": end, "dst_row": iota(terms)},
    }


def target_lists(
    ctx: PlanContext, words: Tensor, point_counts: Tensor
) -> dict[str, DescriptorList]:
    """Lists of this rank as destination.

    ``words`` [num_points, 3]: what ``describe_points`` of every source sent, by source rank;
    ``point_counts`` [num_ranks]: points from each.
    """
    m = ctx.topology.ranks_per_node
    slot, _, writer = columns(words)
    is_lead = writer >= 0
    begin = indices(is_lead)
    end = torch.cat([begin[1:], begin.new_tensor([len(slot)])])[: len(begin)]
    lead_slot = slot[begin][is_lead.cumsum(0) - 1]
    writer = writer[begin]

    ranks = ctx.topology.node_ranks(ctx.topology.node(ctx.rank))
    near_begin = int(point_counts[: ranks.start].sum())
    near_end = int(point_counts[: ranks.stop].sum())
    is_near = (begin >= near_begin) & (begin < near_end)

    def groups(chosen: Tensor) -> DescriptorList:
        return {
            "dst_peer": writer[chosen] % m,
            "dst_row": writer[chosen] // m,
            "term_begin": begin[chosen],
            "term_end": end[chosen],
            "term_slot": slot,
            "term_point": iota(slot),
        }

    further = indices(~is_lead)
    return {
        "local": {"src_slot": lead_slot[further], "dst_slot": slot[further]},
        "reduce_direct": groups(indices(is_near)),
        "reduce_forward": groups(indices(~is_near)),
    }


def check_slots(
    ctx: PlanContext, words: Tensor, point_counts: Tensor, length: int
) -> FuscoRuntimeError | None:
    """The first slot that lies outside the target, or else the lowest that is written twice."""
    slot = words[:, 0]

    def source(position: int) -> tuple[int, int]:
        rank = int(torch.searchsorted(point_counts.cumsum(0), position, right=True))
        return rank, int(words[position, 1])

    outside = indices((slot < 0) | (slot >= length))
    if len(outside):
        position = int(outside[0])
        return SlotOutOfRangeError(ctx.rank, int(slot[position]), length, source(position))
    shared = indices(count(slot, length) > 1)
    if len(shared):
        first, second = indices(slot == shared[0])[:2].tolist()
        return SlotOverlapError(ctx.rank, int(shared[0]), source(first), source(second))
    return None
