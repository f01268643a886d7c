"""Dispatch and combine over NCCL with gradients, as a layer without fuscoc would do them.

Both have the face of fuscoc's shuffle. Unlike `nvlink_nccl.py`, which is given its layout, each
call here works everything out: the order of the rows, and the sizes that the host must know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch import Tensor

from examples.moe_plain import AllToAll

BLOCK = 1024


@triton.jit
def _sum_kernel(
    rows, table, weights, result, hidden, most, weighted: tl.constexpr, block: tl.constexpr
):
    target = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < hidden
    total = tl.zeros([block], dtype=tl.float32)
    for j in range(most):
        row = tl.load(table + target * most + j)
        if row >= 0:
            term = tl.load(rows + row * hidden + column, mask=inside, other=0.0).to(tl.float32)
            if weighted:
                term *= tl.load(weights + target * most + j)
            total += term
    tl.store(result + target * hidden + column, total.to(result.dtype.element_ty), mask=inside)


@triton.jit
def _spread_kernel(
    gradient, rows, table, weights, row_gradient, weight_gradient, hidden, most, block: tl.constexpr
):
    target = tl.program_id(0).to(tl.int64)
    for j in range(most):
        row = tl.load(table + target * most + j)
        if row >= 0:
            weight = tl.load(weights + target * most + j)
            dot = tl.zeros([block], dtype=tl.float32)
            for first in range(0, hidden, block):
                column = first + tl.arange(0, block)
                inside = column < hidden
                incoming = tl.load(gradient + target * hidden + column, mask=inside, other=0.0)
                incoming = incoming.to(tl.float32)
                value = tl.load(rows + row * hidden + column, mask=inside, other=0.0)
                dot += incoming * value.to(tl.float32)
                outgoing = (incoming * weight).to(row_gradient.dtype.element_ty)
                tl.store(row_gradient + row * hidden + column, outgoing, mask=inside)
            tl.store(weight_gradient + target * most + j, tl.sum(dot))


def sum_rows(rows: Tensor, table: Tensor, weights: Tensor | None) -> Tensor:
    """``result[i] = sum_j weights[i, j] * rows[table[i, j]]`` in f32; -1 is no row."""
    size, most = table.shape
    result = rows.new_empty(size, rows.shape[1])
    if size:
        grid = (size, triton.cdiv(rows.shape[1], BLOCK))
        _sum_kernel[grid](
            rows, table, table if weights is None else weights, result, rows.shape[1], most,
            weights is not None, BLOCK,
        )  # fmt: skip
    return result


def take(rows: Tensor, index: Tensor) -> Tensor:
    """``rows[index]``, moved eight bytes at a time where that comes out even."""
    if rows.shape[1] * rows.element_size() % 8:
        return rows.index_select(0, index)
    return rows.view(torch.int64).index_select(0, index).view(rows.dtype)


class Gather(torch.autograd.Function):
    """``rows[index]``. ``table`` [num_rows, m] says where every row went; -1 is nowhere."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(table)
        return take(rows, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (table,) = ctx.saved_tensors
        gradient = gradient.contiguous()
        if table.shape[1] == 1:
            return take(gradient, table[:, 0]), None, None
        return sum_rows(gradient, table, None), None, None


class Sum(torch.autograd.Function):
    """``sum_rows``, every row being in the table once; ``index`` [num_rows] says in whose sum."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, table: Tensor, index: Tensor, weights: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(table, index, *(() if weights is None else (rows, weights)))
        return sum_rows(rows, table, weights)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, Tensor | None]:
        table, index, *weighted = ctx.saved_tensors
        gradient = gradient.contiguous()
        if not weighted:
            return take(gradient, index), None, None, None
        rows, weights = weighted
        row_gradient, weight_gradient = torch.empty_like(rows), torch.zeros_like(weights)
        if table.shape[0]:
            _spread_kernel[(table.shape[0],)](
                gradient, rows, table, weights, row_gradient, weight_gradient, rows.shape[1],
                table.shape[1], BLOCK,
            )  # fmt: skip
        return row_gradient, None, None, weight_gradient


def inverse(index: Tensor, size: int) -> Tensor:
    """``result[index[i]] = i``; -1 elsewhere."""
    result = torch.full((size,), -1, dtype=torch.int64, device=index.device)
    return result.scatter_(0, index, torch.arange(index.numel(), device=index.device))


@dataclass(frozen=True, eq=False)
class NcclHandle:
    """``out``: rows sent, to the table of every token. ``into``: slots, to the table of what was
    received; each as (index, table). ``weights``: of every entry of the table that has some."""

    out: tuple[Tensor, Tensor]
    into: tuple[Tensor, Tensor]
    send: list[int]
    receive: list[int]
    weights: Tensor
    key_offsets: Tensor


class NcclNaive:
    """Every (token, expert) pair travels; weights are applied at home. Experts lie in blocks."""

    def __init__(self, num_experts: int) -> None:
        self.num_experts = num_experts

    def dispatch(
        self, x: Tensor, topk_idx: Tensor, topk_weights: Tensor
    ) -> tuple[Tensor, NcclHandle]:
        num_ranks, (num_tokens, topk) = dist.get_world_size(), topk_idx.shape
        keys = topk_idx.flatten()
        order = torch.argsort(keys, stable=True)
        counts = _counts(keys, self.num_experts)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        arriving = arriving.view(num_ranks, -1)
        sizes = torch.stack([counts.view(num_ranks, -1).sum(1), arriving.sum(1)])
        send, receive = sizes.tolist()  # the host waits here
        local = torch.arange(arriving.shape[1], device=x.device).repeat(num_ranks)
        local = local.repeat_interleave(arriving.flatten(), output_size=sum(receive))
        slots = torch.argsort(local, stable=True)
        out = order // topk, inverse(order, keys.numel()).view(num_tokens, topk)
        into = slots, inverse(slots, slots.numel()).unsqueeze(1)
        handle = NcclHandle(out, into, send, receive, topk_weights, _offsets(arriving.sum(0)))
        sent = Gather.apply(x, *out)
        return Gather.apply(AllToAll.apply(sent, receive, send), *into), handle

    def combine(self, rows: Tensor, handle: NcclHandle) -> Tensor:
        index, table = handle.into
        back = Gather.apply(rows, table[:, 0], index.unsqueeze(1))
        home = AllToAll.apply(back, handle.send, handle.receive)
        index, table = handle.out
        return Sum.apply(home, table, index, handle.weights)


class NcclDeduplicated:
    """Every (token, rank) pair travels once, with its indices and weights; the receiver makes the
    experts' rows of it and sums them again. Experts lie in blocks."""

    def __init__(self, num_experts: int) -> None:
        self.num_experts = num_experts

    def dispatch(
        self, x: Tensor, topk_idx: Tensor, topk_weights: Tensor
    ) -> tuple[Tensor, NcclHandle]:
        num_ranks, (num_tokens, topk) = dist.get_world_size(), topk_idx.shape
        num_local, device = self.num_experts // num_ranks, x.device
        owner = topk_idx // num_local
        every = torch.arange(num_ranks, device=device).view(-1, 1, 1)
        points = (owner == every).sum(2)  # [rank, token]
        hit = points > 0
        counts = torch.stack([hit.sum(1), points.sum(1)], 1)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        sizes = torch.stack([counts[:, 0], arriving[:, 0], arriving[:, 1]])
        send, receive, slots = sizes.tolist()  # the host waits here
        num_sent, num_slots = sum(send), sum(slots)

        position = torch.where(hit, hit.flatten().cumsum(0).view(hit.shape) - 1, -1)
        token = torch.arange(num_tokens, device=device).repeat(num_ranks)
        place = torch.where(hit, position, num_sent).flatten()
        sent_token = token.new_zeros(num_sent + 1).scatter_(0, place, token)[:num_sent]
        out = sent_token, position.t().contiguous()

        indices = AllToAll.apply(topk_idx[sent_token], receive, send)
        weights = AllToAll.apply(Gather.apply(topk_weights, *out), receive, send)
        local = indices - dist.get_rank() * num_local
        keys = torch.where((local >= 0) & (local < num_local), local, num_local).flatten()
        order = torch.argsort(keys, stable=True)[:num_slots]
        into = order // topk, inverse(order, keys.numel()).view(-1, topk)
        offsets = _offsets(_counts(keys, num_local + 1)[:-1])
        handle = NcclHandle(out, into, send, receive, weights, offsets)
        sent = Gather.apply(x, *out)
        return Gather.apply(AllToAll.apply(sent, receive, send), *into), handle

    def combine(self, rows: Tensor, handle: NcclHandle) -> Tensor:
        index, table = handle.into
        back = Sum.apply(rows, table, index, handle.weights)
        home = AllToAll.apply(back, handle.send, handle.receive)
        index, table = handle.out
        return Sum.apply(home, table, index, None)


def _counts(keys: Tensor, num_keys: int) -> Tensor:
    """``bincount`` that does not make the host wait."""
    counts = torch.zeros(num_keys, dtype=torch.int64, device=keys.device)
    return counts.scatter_add_(0, keys, torch.ones_like(keys))


def _offsets(counts: Tensor) -> Tensor:
    ends = counts.cumsum(0)
    return torch.cat([ends.new_zeros(1), ends])
