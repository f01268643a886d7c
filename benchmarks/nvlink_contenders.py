"""What `benchmarks/nvlink.py` compares: fuscoc through its public face, and NCCL all-to-all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import triton
import triton.language as tl

from benchmarks.moe_cases import (
    Expected,
    Model,
    check_combine,
    check_rows,
    expert_outputs,
    gather_ragged,
)
from fuscoc_runtime import Shuffle


@dataclass(frozen=True, eq=False)
class Batch:
    """One rank's inputs, and what must come out."""

    x: torch.Tensor
    topk_idx: torch.Tensor
    weights: torch.Tensor
    all_idx: list[torch.Tensor]
    expected: Expected


@dataclass(frozen=True, eq=False)
class Contender:
    """Two calls to time: ``dispatch()`` and ``combine()``; ``verify()`` says what is wrong.

    ``plan()`` is what a call needs but ``dispatch`` was given for free, if anything.
    """

    name: str
    dispatch: Callable[[], object]
    combine: Callable[[], object]
    verify: Callable[[], list[str]]
    plan: Callable[[], object] | None = None


class Fuscoc:
    """A compiled artifact, as a user runs it: planning, counts and weights included."""

    def __init__(self, shuffle: Shuffle, model: Model, batch: Batch) -> None:
        self.shuffle, self.model, self.batch = shuffle, model, batch
        self.dispatch()
        self.outputs = self.rows

    def dispatch(self) -> None:
        batch = self.batch
        self.rows, self.handle = self.shuffle.dispatch(
            batch.x, topk_idx=batch.topk_idx, topk_weights=batch.weights
        )

    def combine(self) -> None:
        self.result = self.shuffle.combine(self.outputs, self.handle)

    def verify(self) -> list[str]:
        self.rows.view(torch.uint8).fill_(0xFF)
        torch.cuda.synchronize()
        dist.barrier()
        self.dispatch()
        batch = self.batch
        wrong = check_rows(self.handle, [self.rows], [batch.x], batch.expected, None)
        self.outputs = expert_outputs(self.rows, batch.expected, self.model.experts)
        self.combine()
        wrong += check_combine(
            self.result, batch.x, batch.topk_idx, batch.weights, self.model.experts
        )
        self.outputs = self.rows
        self.shuffle.check()
        return wrong

    def contender(self, name: str) -> Contender:
        return Contender(name, self.dispatch, self.combine, self.verify)


class NcclAllToAll:
    """``all_to_all_single`` between a permutation on each side; with ``dedup`` each (token, rank)
    pair travels once and is expanded by the receiver.

    Its layout is computed when it is made, outside every timed call; ``plan`` does what a real
    implementation would have to do in each dispatch, to be timed on its own.
    """

    def __init__(self, model: Model, batch: Batch, owner: torch.Tensor, dedup: bool) -> None:
        self.model, self.batch, self.owner = model, batch, owner
        rank, num_ranks = dist.get_rank(), dist.get_world_size()
        device = batch.x.device
        sends, pairs_of = [], []
        for idx in batch.all_idx:
            destination = torch.where(idx >= 0, owner[idx.clamp(min=0)], -1)
            if dedup:
                hit = torch.stack([(destination == r).any(1) for r in range(num_ranks)])
                pairs = hit.nonzero()  # (rank, token), by rank
                position = torch.full(hit.shape, -1, device=device, dtype=torch.int64)
                position[hit] = torch.arange(pairs.shape[0], device=device)
            else:
                flat = destination.flatten()
                order = torch.sort(flat, stable=True).indices[(flat < 0).sum() :]
                pairs = torch.stack([flat[order], order], 1)
                position = torch.full((flat.numel(),), -1, device=device, dtype=torch.int64)
                position[order] = torch.arange(order.numel(), device=device)
            sends.append(torch.bincount(pairs[:, 0], minlength=num_ranks).tolist())
            pairs_of.append((pairs, position))
        self.send, self.recv = sends[rank], [counts[rank] for counts in sends]
        pairs, position = pairs_of[rank]
        topk = model.topk
        self.send_token = pairs[:, 1] if dedup else pairs[:, 1] // topk
        expected = batch.expected
        before = [sum(self.recv[:r]) - sum(sends[r][:rank]) for r in range(num_ranks)]
        row = torch.empty_like(expected.slots)  # where each expert row lies in what I receive
        weight = torch.empty(expected.slots.numel(), device=device)
        all_weights = gather_ragged(batch.weights, None)
        for r in range(num_ranks):
            mine = expected.ranks == r
            tokens, keys = expected.tokens[mine], expected.keys[mine]
            k = (batch.all_idx[r][tokens] == keys.unsqueeze(1)).float().argmax(1)
            at = pairs_of[r][1]
            row[mine] = (at[rank][tokens] if dedup else at[tokens * topk + k]) + before[r]
            weight[mine] = all_weights[r][tokens, k]
        num_slots = int(expected.slots.max()) + 1 if expected.slots.numel() else 0
        self.slots, self.dedup = expected.slots, dedup
        self.row_of_slot = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self.row_of_slot[expected.slots] = row
        self.rows = batch.x.new_zeros(num_slots, model.hidden)
        self.slot_of_row = torch.zeros(sum(self.recv), dtype=torch.int64, device=device)
        self.slot_of_row[row] = expected.slots
        # The terms of every received pair and of every own token, padded with a weight of zero.
        self.fan_in = _terms(row, expected.slots, weight, sum(self.recv)) if dedup else None
        sent = torch.arange(self.send_token.numel(), device=device)
        factor = torch.ones(sent.numel(), device=device)
        if not dedup:
            factor = batch.weights.flatten()[pairs[:, 1]]
        self.own_terms = _terms(self.send_token, sent, factor, batch.x.shape[0])

    def plan(self) -> tuple[torch.Tensor, list[int], list[int], torch.Tensor]:
        """Order of the rows, sizes that the collective needs on the host, starts of the keys."""
        num_ranks, idx = dist.get_world_size(), self.batch.topk_idx
        destination = torch.where(idx >= 0, self.owner[idx.clamp(min=0)], -1)
        if self.dedup:
            hit = torch.stack([(destination == r).any(1) for r in range(num_ranks)])
            order, counts = hit.nonzero()[:, 1], hit.sum(1)
        else:
            order = torch.sort(destination.flatten(), stable=True).indices
            counts = torch.bincount(destination.flatten() + 1, minlength=num_ranks + 1)[1:]
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        key_counts = torch.bincount(idx.flatten() + 1, minlength=self.model.experts + 1)[1:]
        dist.all_reduce(key_counts)
        return order, counts.tolist(), arriving.tolist(), key_counts.cumsum(0)

    def dispatch(self) -> None:
        packed = _gather(self.batch.x, self.send_token)
        arrived = packed.new_empty(sum(self.recv), packed.shape[1])
        dist.all_to_all_single(arrived, packed, self.recv, self.send)
        self.rows = _gather(arrived, self.row_of_slot)

    def combine(self) -> None:
        if self.fan_in is not None:
            back = _weighted_sum(self.rows, *self.fan_in)
        else:
            back = _gather(self.rows, self.slot_of_row)
        home = back.new_empty(sum(self.send), back.shape[1])
        dist.all_to_all_single(home, back, self.send, self.recv)
        self.result = _weighted_sum(home, *self.own_terms)

    def verify(self) -> list[str]:
        self.rows.fill_(float("nan"))
        self.dispatch()
        batch = self.batch
        wrong = []
        for r, theirs in enumerate(gather_ragged(batch.x, None)):
            mine = batch.expected.ranks == r
            if not torch.equal(self.rows[self.slots[mine]], theirs[batch.expected.tokens[mine]]):
                wrong.append(f"rows from rank {r} differ")
        kept = self.rows
        self.rows = expert_outputs(kept, batch.expected, self.model.experts)
        self.combine()
        self.rows = kept
        return wrong + check_combine(
            self.result, batch.x, batch.topk_idx, batch.weights, self.model.experts
        )

    def contender(self, name: str) -> Contender:
        return Contender(name, self.dispatch, self.combine, self.verify, self.plan)


def _terms(
    target: torch.Tensor, index: torch.Tensor, weight: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each of ``size`` targets the ``index`` and ``weight`` of its terms, [size, most]; missing
    terms have index 0 and weight 0."""
    order = torch.sort(target, stable=True).indices
    counts = torch.bincount(target, minlength=size)
    first = counts.cumsum(0) - counts
    most = max(int(counts.max()), 1) if size else 1
    indices = torch.zeros(size, most, dtype=torch.int64, device=target.device)
    weights = torch.zeros(size, most, device=target.device)
    inside = torch.arange(target.numel(), device=target.device) - first[target[order]]
    indices[target[order], inside] = index[order]
    weights[target[order], inside] = weight[order]
    return indices, weights


def _gather(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """``rows[index]``, moved eight bytes at a time."""
    return rows.view(torch.int64).index_select(0, index).view(rows.dtype)


@triton.jit
def _sum_kernel(rows, indices, weights, result, hidden, most, block: tl.constexpr):
    target = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < hidden
    total = tl.zeros([block], dtype=tl.float32)
    for j in range(most):
        weight = tl.load(weights + target * most + j)
        if weight != 0.0:
            row = tl.load(indices + target * most + j)
            total += (
                tl.load(rows + row * hidden + column, mask=inside, other=0.0).to(tl.float32)
                * weight
            )
    tl.store(result + target * hidden + column, total.to(result.dtype.element_ty), mask=inside)


def _weighted_sum(rows: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """``result[i] = sum_j weights[i, j] * rows[indices[i, j]]`` in f32, in one pass."""
    size, hidden = indices.shape[0], rows.shape[1]
    result = rows.new_empty(size, hidden)
    block = 1024
    grid = (size, -(-hidden // block))
    _sum_kernel[grid](rows, indices, weights, result, hidden, indices.shape[1], block, num_warps=4)
    return result
