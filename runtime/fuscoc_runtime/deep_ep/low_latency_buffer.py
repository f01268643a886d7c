"""The low-latency calls of a ``Buffer``, with DeepEP's signatures."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import Tensor

from fuscoc_runtime.deep_ep.base import BufferBase
from fuscoc_runtime.deep_ep.events import EventOverlap
from fuscoc_runtime.deep_ep.low_latency import LowLatency, LowLatencyHandle
from fuscoc_runtime.deep_ep.quantised import Quantised
from fuscoc_runtime.deep_ep.refusals import refusal, refuse


class LowLatencyBuffer(BufferBase):
    """Dispatch into a block of slots for every local expert, and the weighted sum back."""

    @cached_property
    def _low_latency(self) -> LowLatency:
        return LowLatency(self._shuffles)

    def clean_low_latency_buffer(
        self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int
    ) -> None:
        """Nothing: no call needs memory that is 0."""

    def low_latency_dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: Tensor | None = None,
        dispatch_wait_recv_cost_stats: Tensor | None = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
    ) -> tuple[Any, Tensor, LowLatencyHandle, EventOverlap, Callable[[], None] | None]:
        """``recv_x, recv_count, handle, event, hook``. What is received, [num_local_experts,
        num_ranks * num_max_dispatch_tokens_per_rank, hidden] and with ``use_fp8`` its scales, is a
        view of memory that the next dispatch but one writes into."""
        refuse(
            dispatch_wait_recv_cost_stats=(dispatch_wait_recv_cost_stats, None, "nobody measures"),
        )
        self._check_low_latency(async_finish, return_recv_hook)
        kind = Quantised(use_fp8, round_scale, use_ue8m0)
        num_max, stats = num_max_dispatch_tokens_per_rank, cumulative_local_expert_recv_stats

        def work() -> tuple[Any, Tensor, LowLatencyHandle]:
            sizes = num_max, num_experts, kind, self.num_sms
            found = self._low_latency.dispatch(x, topk_idx, *sizes)
            if stats is not None:
                stats.add_(found[1])
            return found

        def made(found: tuple[Any, Tensor, LowLatencyHandle]) -> list[Tensor]:
            rows, count, handle = found
            scales = rows[1:] if isinstance(rows, tuple) else ()  # rows are in windows
            return [*scales, count, handle.src_info, handle.layout_range]

        (rows, count, handle), event = self._beside.run(
            work,
            None,
            async_finish or return_recv_hook,
            [x, topk_idx, stats],
            made,
        )
        return rows, count, handle, *_hooked(event, return_recv_hook)

    def low_latency_combine(
        self,
        x: Tensor,
        topk_idx: Tensor,
        topk_weights: Tensor,
        handle: LowLatencyHandle,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Tensor | None = None,
        combine_wait_recv_cost_stats: Tensor | None = None,
    ) -> tuple[Tensor, EventOverlap, Callable[[], None] | None]:
        """``combined_x, event, hook``: the weighted sums in f32, rounded once."""
        refuse(
            use_logfmt=(use_logfmt, False, "rows come back in bf16"),
            combine_wait_recv_cost_stats=(combine_wait_recv_cost_stats, None, "nobody measures"),
        )
        self._check_low_latency(async_finish, return_recv_hook)
        if zero_copy and not handle.buffer:
            raise refusal("zero_copy=True takes what get_next_low_latency_combine_buffer returned")
        rows = handle.buffer[0] if zero_copy else x

        def work() -> Tensor:
            result = self._low_latency.combine(rows, topk_idx, topk_weights, handle)
            return result if out is None else out.copy_(result)

        result, event = self._beside.run(
            work,
            None,
            async_finish or return_recv_hook,
            [rows, topk_idx, topk_weights, out],
            lambda made: [made],
        )
        return result, *_hooked(event, return_recv_hook)

    def get_next_low_latency_combine_buffer(self, handle: LowLatencyHandle) -> Tensor:
        """bf16 [num_local_experts, slots of an expert, hidden], to fill for a combine of this
        handle with ``zero_copy``. It is memory like any other: combine copies no rows anyway."""
        if not handle.buffer:
            shape = (*handle.src_info.shape, handle.hidden)
            handle.buffer.append(
                torch.empty(shape, dtype=torch.bfloat16, device=handle.src_info.device)
            )
        return handle.buffer[0]

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> NoReturn:
        """Refused, as ``enable_shrink``."""
        raise refusal("low_latency_update_mask_buffer is not supported: ranks cannot be masked")

    def low_latency_query_mask_buffer(self, mask_status: Tensor) -> NoReturn:
        """Refused, as ``enable_shrink``."""
        raise refusal("low_latency_query_mask_buffer is not supported: ranks cannot be masked")

    def low_latency_clean_mask_buffer(self) -> NoReturn:
        """Refused, as ``enable_shrink``."""
        raise refusal("low_latency_clean_mask_buffer is not supported: ranks cannot be masked")

    def _check_low_latency(self, is_async: bool, hooked: bool) -> None:
        if not self.low_latency_mode:
            raise refusal("low-latency calls take a Buffer with low_latency_mode=True")
        if is_async and hooked:
            raise refusal("async_finish=True and return_recv_hook=True exclude each other")


def _hooked(event: EventOverlap, hooked: bool) -> tuple[EventOverlap, Callable[[], None] | None]:
    """An event and no hook, or a hook that waits for the event and no event."""
    return (EventOverlap(), event.current_stream_wait) if hooked else (event, None)
