"""What a dispatch of an ``ElasticBuffer`` returns beside its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fuscoc_runtime.deep_ep.elastic_rows import Found
from fuscoc_runtime.deep_ep.rows import Kind
from fuscoc_runtime.deep_ep.specs import Shuffles
from fuscoc_runtime.face.shuffle import Shuffle


@dataclass(eq=False)
class EPHandle:
    """The routing of a dispatch, with DeepEP's names for what it says.

    Attributes:
        topk_idx: what dispatch was given, copied with ``do_handle_copy``.
        num_recv_tokens: rows that are one for a token; of ``do_expand`` their tokens.
        num_expanded_tokens: rows of ``do_expand``, padding included; else 0.
        num_recv_tokens_per_expert_list: rows of local experts, rounded up; [] without
            ``do_cpu_sync``.
        psum_num_recv_tokens_per_scaleup_rank: int32 [num_ranks], tokens of the ranks 0 to i.
        psum_num_recv_tokens_per_expert: int32 [num_local_experts], where the rows of the experts 0
            to i end, rounded up; of ``do_expand`` without what rounding adds for the last one.
        num_unaligned_recv_tokens_per_expert: int32 [num_local_experts].
        recv_src_metadata: int32 [num_recv_tokens, 2 + topk]: the rank's number times
            ``num_max_tokens_per_rank`` plus the token's, by which they are sorted; -1; and of
            ``do_expand`` the row of every choice, -1 for those of other ranks.
        dst_buffer_slot_idx: what the shuffle was given as its route.
        token_metadata_at_forward, channel_linked_list: None; nothing here needs them.
        kind, limits, shuffles, shuffle, routing, found: how it is done.
    """

    do_expand: bool
    num_experts: int
    expert_alignment: int
    num_max_tokens_per_rank: int
    num_sms: int
    topk_idx: Tensor
    num_recv_tokens: int
    num_expanded_tokens: int
    num_recv_tokens_per_expert_list: list[int]
    psum_num_recv_tokens_per_scaleup_rank: Tensor
    psum_num_recv_tokens_per_expert: Tensor
    num_unaligned_recv_tokens_per_expert: Tensor
    recv_src_metadata: Tensor
    dst_buffer_slot_idx: Tensor
    kind: Kind
    limits: dict[str, int]
    shuffles: Shuffles
    shuffle: Shuffle
    routing: Any
    found: Found
    token_metadata_at_forward: None = None
    channel_linked_list: None = None
