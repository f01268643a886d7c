"""What vLLM and SGLang do with DeepEP's ``Buffer``: the calls, with the arguments, that their own
dispatchers make, without the rest of them.

Of vLLM 0.33.0 (commit 4ba787ec9) ``prepare_finalize/deepep_ht.py`` and ``deepep_ll.py`` of its
fused_moe, of SGLang 0.5.23 ``token_dispatcher/deepep.py``. ``engine_sources`` has the originals.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.deep_ep import Buffer
from tests.deep_ep.cases import BLOCK, Case, to_fp8

NO_OP, DELEGATE = object(), object()
"""What vLLM's experts say of weights: that they have applied them, or that combine has to."""


class HighThroughput:
    """vLLM's ``DeepEPHTPrepareAndFinalize``."""

    def __init__(
        self, buffer: Buffer, num_dispatchers: int, dp_size: int, rank_expert_offset: int
    ) -> None:
        self.buffer, self.num_ranks, self.first = buffer, num_dispatchers, rank_expert_offset
        self.handle: Any = None

    def prepare(
        self, a1: Tensor, topk_weights: Tensor, topk_ids: Tensor, num_experts: int,
        expert_map: None, apply_router_weight_on_input: bool, quant_config: Any,
        defer_input_quant: bool,
    ) -> tuple[Any, ...]:  # fmt: skip
        x: Any = to_fp8(a1) if quant_config.is_block_quantized else a1
        per_rank, per_node, per_expert, goes, _ = self.buffer.get_dispatch_layout(
            topk_idx=topk_ids, num_experts=num_experts, previous_event=None, async_finish=False,
            allocate_on_comm_stream=False,
        )  # fmt: skip
        x, ids, weights, counts, self.handle, event = self.buffer.dispatch(
            x=x, handle=None, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=goes, num_tokens_per_expert=per_expert, topk_idx=topk_ids,
            topk_weights=topk_weights, expert_alignment=1,
            config=Buffer.get_dispatch_config(self.num_ranks), previous_event=None,
            async_finish=True, allocate_on_comm_stream=False,
        )  # fmt: skip
        event.current_stream_wait()
        assert ids is not None
        nobody = num_experts - 1 if self.first == 0 else 0
        ids = torch.where(ids == -1, nobody, ids + self.first)
        values, scales = x if isinstance(x, tuple) else (x, None)
        assert counts is not None
        numbers = torch.tensor(counts, dtype=torch.int32, device=values.device)
        metadata = SimpleNamespace(expert_num_tokens=numbers)
        return values, scales, metadata, ids, weights

    def finalize(
        self, output: Tensor, fused_expert_output: Tensor, topk_weights: Tensor,
        topk_ids: Tensor, apply_router_weight_on_input: bool, weight_and_reduce_impl: Any,
    ) -> None:  # fmt: skip
        combined, _, _ = self.buffer.combine(
            x=fused_expert_output, handle=self.handle, topk_weights=None,
            config=Buffer.get_combine_config(self.num_ranks), previous_event=None,
            async_finish=False, allocate_on_comm_stream=False,
        )  # fmt: skip
        output.copy_(combined)


class LowLatency:
    """vLLM's ``DeepEPLLPrepareAndFinalize``."""

    def __init__(
        self, buffer: Buffer, max_tokens_per_rank: int, num_dispatchers: int,
        use_fp8_dispatch: bool, global_to_physical: Tensor | None,
    ) -> None:  # fmt: skip
        self.buffer, self.most, self.is_fp8 = buffer, max_tokens_per_rank, use_fp8_dispatch
        self.physical, self.handle = global_to_physical, None

    def places(self, topk_ids: Tensor) -> Tensor:
        return topk_ids if self.physical is None else self.physical[topk_ids]

    def prepare(
        self, a1: Tensor, topk_weights: Tensor, topk_ids: Tensor, num_experts: int,
        expert_map: None, apply_router_weight_on_input: bool, quant_config: Any,
        defer_input_quant: bool,
    ) -> tuple[Any, ...]:  # fmt: skip
        x, counts, self.handle, _, hook = self.buffer.low_latency_dispatch(
            a1, self.places(topk_ids), self.most, num_experts, use_fp8=self.is_fp8,
            round_scale=False, use_ue8m0=False, async_finish=False, return_recv_hook=True,
        )  # fmt: skip
        assert hook is not None
        hook()
        values, scales = x if self.is_fp8 else (x, None)
        return values, scales, SimpleNamespace(expert_num_tokens=counts), None, None

    def finalize(
        self, output: Tensor, fused_expert_output: Tensor, topk_weights: Tensor,
        topk_ids: Tensor, apply_router_weight_on_input: bool, weight_and_reduce_impl: Any,
    ) -> None:  # fmt: skip
        assert self.handle is not None
        self.buffer.low_latency_combine(
            fused_expert_output, self.places(topk_ids), topk_weights, self.handle,
            async_finish=False, zero_copy=False, return_recv_hook=False, out=output,
        )  # fmt: skip


class Dispatcher:
    """SGLang's ``DeepEPDispatcher`` in one mode, by halves."""

    def __init__(
        self, buffer: Buffer, is_low_latency: bool, is_fp8: bool, num_experts: int, most: int
    ) -> None:
        self.buffer, self.is_low_latency, self.is_fp8 = buffer, is_low_latency, is_fp8
        self.num_experts, self.most = num_experts, most
        self.handle: Any = None
        self.held: Any = None

    def dispatch_a(self, hidden_states: Tensor, topk_output: Any) -> None:
        ids = topk_output.topk_ids.to(torch.int64)
        if self.is_low_latency:
            rows, counts, self.handle, _, hook = self.buffer.low_latency_dispatch(
                hidden_states, ids, self.most, self.num_experts, use_fp8=self.is_fp8,
                async_finish=False, return_recv_hook=True,
            )  # fmt: skip
            self.held = rows, ids, topk_output.topk_weights, counts, hook
            return
        x: Any = to_fp8(hidden_states) if self.is_fp8 else hidden_states
        self.held = x, ids, topk_output.topk_weights, Buffer.capture()

    def dispatch_b(self) -> Any:
        if self.is_low_latency:
            rows, ids, weights, counts, hook = self.held
            hook()
            values, scales = rows if self.is_fp8 else (rows, None)
            return SimpleNamespace(
                hidden_states=values, hidden_states_scale=scales, topk_ids=ids,
                topk_weights=weights, masked_m=counts,
            )  # fmt: skip
        x, ids, weights, before = self.held
        per_rank, per_node, per_expert, goes, before = self.buffer.get_dispatch_layout(
            ids, self.num_experts, previous_event=before, async_finish=True,
            allocate_on_comm_stream=True,
        )  # fmt: skip
        x, ids, weights, counts, self.handle, event = self.buffer.dispatch(
            x, topk_idx=ids, topk_weights=weights, num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node, is_token_in_rank=goes,
            num_tokens_per_expert=per_expert, previous_event=before, async_finish=True,
            allocate_on_comm_stream=True, expert_alignment=BLOCK, config=None,
        )  # fmt: skip
        event.current_stream_wait()
        values, scales = x if isinstance(x, tuple) else (x, None)
        return SimpleNamespace(
            hidden_states=values, hidden_states_scale=scales, topk_ids=ids, topk_weights=weights,
            num_recv_tokens_per_expert=counts,
        )  # fmt: skip

    def combine_a(self, combine_input: tuple[Tensor, Tensor, Tensor]) -> None:
        rows, ids, weights = combine_input
        if self.is_low_latency:
            self.held = self.buffer.low_latency_combine(
                x=rows, topk_idx=ids, topk_weights=weights, handle=self.handle,
                async_finish=False, return_recv_hook=True,
            )  # fmt: skip
        else:
            self.held = rows, Buffer.capture()

    def combine_b(self) -> Tensor:
        if self.is_low_latency:
            rows, _, hook = self.held
            hook()
            return rows
        rows, before = self.held
        rows, _, event = self.buffer.combine(
            rows, self.handle, async_finish=True, previous_event=before,
            allocate_on_comm_stream=True, config=None,
        )  # fmt: skip
        event.current_stream_wait()
        return rows


def dispatchers(
    num: int, group: Any, is_low_latency: bool, is_fp8: bool, case: Case, most: int
) -> tuple[list[Dispatcher], Buffer]:
    """So many on the one buffer of a process."""
    buffer = Buffer(group, 0, 0, low_latency_mode=True, num_qps_per_rank=20, allow_mnnvl=False)
    rest = buffer, is_low_latency, is_fp8, case.shape.experts, most
    return [Dispatcher(*rest) for _ in range(num)], buffer
