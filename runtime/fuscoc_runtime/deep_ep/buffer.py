"""``Buffer``: its normal calls, with the signatures of DeepEP's legacy buffer."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import torch
from torch import Tensor

from fuscoc_runtime.deep_ep.back import Bias, biases_of
from fuscoc_runtime.deep_ep.base import Config
from fuscoc_runtime.deep_ep.events import EventOverlap
from fuscoc_runtime.deep_ep.low_latency_buffer import LowLatencyBuffer
from fuscoc_runtime.deep_ep.normal import Handle, Layout, Normal, Received
from fuscoc_runtime.deep_ep.refusals import refusal, refuse_capture
from fuscoc_runtime.deep_ep.rows import Tokens

MAX_EXPERTS = 2**24
"""Numbers of experts travel in f32."""


class Buffer(LowLatencyBuffer):
    """Moves tokens to the ranks of their experts and back; every call is collective.

    Arguments, results and their order are DeepEP's, whose documentation describes them;
    ``docs/integrations.md`` has what differs. See ``BufferBase`` for how one is made.
    """

    @cached_property
    def _normal(self) -> Normal:
        return Normal(self._shuffles)

    def get_dispatch_layout(
        self,
        topk_idx: Tensor,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor, EventOverlap]:
        """Tokens for every rank, None (of nodes nobody asks here), tokens for every expert, both
        int32, which tokens go to which rank, bool [num_tokens, num_ranks], and the event."""
        self._check_order(previous_event, async_finish, allocate_on_comm_stream)
        if num_experts % self.group_size:
            raise refusal(f"{self.group_size} ranks do not divide num_experts={num_experts}")

        def work() -> tuple[Tensor, Tensor, Tensor]:
            there, num_tokens = topk_idx >= 0, topk_idx.shape[0]
            experts = torch.where(there, topk_idx, num_experts).long()
            per_expert = torch.zeros(num_experts + 1, dtype=torch.int32, device=topk_idx.device)
            per_expert.scatter_add_(0, experts.view(-1), torch.ones_like(experts).view(-1).int())
            ranks = experts // (num_experts // self.group_size)
            goes = torch.zeros_like(per_expert[:1], dtype=torch.bool)
            goes = goes.repeat(num_tokens, self.group_size + 1)
            goes = goes.scatter_(1, ranks, True)[:, :-1].contiguous()
            return goes.sum(0, dtype=torch.int32), per_expert[:-1], goes

        (per_rank, per_expert, goes), event = self._beside.run(
            work, previous_event, async_finish, [topk_idx], lambda made: made
        )
        return per_rank, None, per_expert, goes, event

    def dispatch(
        self,
        x: Tokens,
        handle: Handle | None = None,
        num_tokens_per_rank: Tensor | None = None,
        num_tokens_per_rdma_rank: Tensor | None = None,
        is_token_in_rank: Tensor | None = None,
        num_tokens_per_expert: Tensor | None = None,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tokens, Tensor | None, Tensor | None, list[int] | None, Handle | None, EventOverlap]:
        """``recv_x, recv_topk_idx, recv_topk_weights, num_recv_tokens_per_expert_list, handle,
        event``: rows by source rank, then token. With a ``handle`` they go the same way, and only
        ``recv_x`` and ``event`` are returned."""
        self._check_order(previous_event, async_finish, allocate_on_comm_stream)
        given = [*(x if isinstance(x, tuple) else (x,)), topk_idx, topk_weights, is_token_in_rank]
        if (topk_idx is None) != (topk_weights is None):
            raise refusal("topk_idx and topk_weights are given together, or neither")
        work: Callable[[], Received]
        if handle is not None:
            if topk_idx is not None or num_worst_tokens:
                raise refusal("topk_idx and num_worst_tokens are those of the handle")
            if not handle.is_fixed:
                refuse_capture("dispatches along one without num_worst_tokens")
            work = partial(self._normal.dispatch_again, x, handle)
        else:
            if not num_worst_tokens:
                refuse_capture("dispatches without num_worst_tokens")
            layout = _layout(num_tokens_per_rank, num_tokens_per_expert, is_token_in_rank)
            if num_worst_tokens and topk_idx is None:
                raise refusal("num_worst_tokens is given with topk_idx, which says what is unused")
            if layout.num_tokens_per_expert.shape[0] > MAX_EXPERTS:
                raise refusal(f"more than {MAX_EXPERTS} experts are not supported")
            sizes = expert_alignment, num_worst_tokens, self.num_sms
            work = partial(self._normal.dispatch, x, layout, topk_idx, topk_weights, *sizes)
        found, event = self._beside.run(work, previous_event, async_finish, given, Received.tensors)
        per_expert = found.num_tokens_per_expert
        return found.x, found.topk_idx, found.topk_weights, per_expert, found.handle, event

    def combine(
        self,
        x: Tensor,
        handle: Handle,
        topk_weights: Tensor | None = None,
        bias: Bias = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, EventOverlap]:
        """``recv_x, recv_topk_weights, event``: the sums of the biases and rows of every token in
        f32, rounded once, and of what is given as their weights, which weigh nothing."""
        self._check_order(previous_event, async_finish, allocate_on_comm_stream)
        if not handle.is_fixed:
            refuse_capture("combines of a dispatch without num_worst_tokens")
        biases = biases_of(bias)
        (result, weights), event = self._beside.run(
            lambda: self._normal.combine(x, handle, topk_weights, biases),
            previous_event,
            async_finish,
            [x, topk_weights, *biases],
            lambda made: made,
        )
        return result, weights, event

    def _check_order(
        self, previous_event: EventOverlap | None, is_async: bool, allocates: bool
    ) -> None:
        if allocates and (previous_event is None or not is_async):
            raise refusal(
                "allocate_on_comm_stream=True is given with previous_event and async_finish=True"
            )


def _layout(per_rank: Tensor | None, per_expert: Tensor | None, goes: Tensor | None) -> Layout:
    if per_rank is None or per_expert is None or goes is None:
        raise refusal(
            "a dispatch without a handle takes num_tokens_per_rank, num_tokens_per_expert and "
            "is_token_in_rank, as get_dispatch_layout returns them"
        )
    return Layout(per_rank, per_expert, goes)
