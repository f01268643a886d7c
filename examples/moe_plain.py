"""Dispatch and combine of a mixture of experts in plain torch: two permutations around an
``all_to_all_single``. What ``moe_layer.py`` compares fuscoc with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class AllToAll(torch.autograd.Function):
    """``all_to_all_single`` along dim 0, whose gradient goes back the same way."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, receive: list[int], send: list[int]) -> Tensor:
        ctx.sizes = send, receive
        result = rows.new_empty(sum(receive), *rows.shape[1:])
        dist.all_to_all_single(result, rows.contiguous(), receive, send)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return AllToAll.apply(gradient, *ctx.sizes), None, None


@dataclass(frozen=True, eq=False)
class PlainHandle:
    """``order``: points of this rank by expert. ``by_expert``: received rows by expert."""

    order: Tensor
    by_expert: Tensor
    send: list[int]
    receive: list[int]
    weights: Tensor
    key_offsets: Tensor


class PlainShuffle:
    """The face of fuscoc's shuffle for ``num_experts`` in blocks on all ranks.

    Args:
        rounded: round weighted rows to their dtype before they are summed, not only the sum.
    """

    def __init__(self, num_experts: int, rounded: bool = False) -> None:
        self.num_experts, self.rounded = num_experts, rounded

    def dispatch(
        self, x: Tensor, topk_idx: Tensor, topk_weights: Tensor
    ) -> tuple[Tensor, PlainHandle]:
        """Rows [num_slots, hidden] of this rank's experts, ascending; every point travels."""
        num_ranks = dist.get_world_size()
        keys = topk_idx.flatten()
        order = torch.argsort(keys, stable=True)
        counts = torch.bincount(keys, minlength=self.num_experts).view(num_ranks, -1)
        arriving = torch.empty_like(counts)  # [rank, local expert]
        dist.all_to_all_single(arriving, counts)
        send, receive = counts.sum(1).tolist(), arriving.sum(1).tolist()
        arrived = AllToAll.apply(x[order // topk_idx.shape[1]], receive, send)
        local = torch.arange(arriving.shape[1], device=x.device).repeat(num_ranks)
        by_expert = torch.argsort(local.repeat_interleave(arriving.flatten()), stable=True)
        ends = arriving.sum(0).cumsum(0)
        offsets = torch.cat([ends.new_zeros(1), ends])
        handle = PlainHandle(order, by_expert, send, receive, topk_weights, offsets)
        return arrived[by_expert], handle

    def combine(self, rows: Tensor, handle: PlainHandle) -> Tensor:
        """The weighted sum, in f32, over the points of every token, in the dtype of ``rows``."""
        back = rows.new_empty(rows.shape).index_copy(0, handle.by_expert, rows)
        home = AllToAll.apply(back, handle.send, handle.receive)
        points = home.new_empty(home.shape).index_copy(0, handle.order, home)
        points = points.view(*handle.weights.shape, -1).float() * handle.weights.unsqueeze(-1)
        if self.rounded:
            points = points.to(rows.dtype).float()
        return points.sum(1).to(rows.dtype)
