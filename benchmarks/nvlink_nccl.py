"""NCCL contenders of `nvlink.py`: all-to-all, naive and honest, and all-gather / reduce-scatter.

Their layouts are computed when they are made, outside every timed call; ``plan`` does what a real
implementation would have to do in each dispatch, to be timed on its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.distributed as dist
import triton
import triton.language as tl

from benchmarks.moe_cases import Model, check_combine, expert_outputs, gather_ragged
from benchmarks.nvlink_contenders import Batch, Contender


class Baseline(ABC):
    """What contenders share whose layout is made beforehand: expert rows, ``slots`` in use."""

    rows: torch.Tensor
    result: torch.Tensor

    def __init__(self, model: Model, batch: Batch) -> None:
        self.model, self.batch = model, batch
        slots = batch.expected.slots
        self.num_slots = int(slots.max()) + 1 if slots.numel() else 0

    @abstractmethod
    def dispatch(self) -> None: ...

    @abstractmethod
    def combine(self) -> None: ...

    @abstractmethod
    def plan(self) -> object: ...

    def verify(self) -> list[str]:
        self.rows.fill_(float("nan"))
        self.dispatch()
        batch, expected = self.batch, self.batch.expected
        wrong = []
        for r, theirs in enumerate(gather_ragged(batch.x, None)):
            mine = expected.ranks == r
            got = self.rows[expected.slots[mine]]
            if not torch.equal(got, theirs[expected.tokens[mine]]):
                wrong.append(f"rows from rank {r} differ")
        kept = self.rows.clone()
        self.rows.copy_(expert_outputs(kept, expected, self.model.experts))
        self.combine()
        self.rows.copy_(kept)
        return wrong + check_combine(
            self.result, batch.x, batch.topk_idx, batch.weights, self.model.experts
        )

    def contender(self, name: str) -> Contender:
        return Contender(name, self.dispatch, self.combine, self.verify, self.plan)


class AllToAll(Baseline):
    """``all_to_all_single`` between a permutation on each side; with ``dedup`` each (token, rank)
    pair travels once and is expanded by the receiver."""

    def __init__(self, model: Model, batch: Batch, owner: torch.Tensor, dedup: bool) -> None:
        super().__init__(model, batch)
        self.owner, self.dedup = owner, dedup
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
        which = batch.which_choice()
        for r in range(num_ranks):
            mine = expected.ranks == r
            tokens, at = expected.tokens[mine], pairs_of[r][1]
            found = at[rank][tokens] if dedup else at[tokens * topk + which[mine]]
            row[mine] = found + before[r]
        self.row_of_slot = torch.zeros(self.num_slots, dtype=torch.int64, device=device)
        self.row_of_slot[expected.slots] = row
        self.rows = batch.x.new_zeros(self.num_slots, model.hidden)
        self.slot_of_row = torch.zeros(sum(self.recv), dtype=torch.int64, device=device)
        self.slot_of_row[row] = expected.slots
        # The terms of every received pair and of every own token, padded with a weight of zero.
        weight = batch.row_weights()
        self.fan_in = terms(row, expected.slots, weight, sum(self.recv)) if dedup else None
        sent = torch.arange(self.send_token.numel(), device=device)
        factor = torch.ones(sent.numel(), device=device)
        if not dedup:
            factor = batch.weights.flatten()[pairs[:, 1]]
        self.own_terms = terms(self.send_token, sent, factor, batch.x.shape[0])

    def plan(self) -> object:
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
        return order, counts.tolist(), arriving.tolist(), key_starts(self.batch, self.model)

    def dispatch(self) -> None:
        packed = gather(self.batch.x, self.send_token)
        arrived = packed.new_empty(sum(self.recv), packed.shape[1])
        dist.all_to_all_single(arrived, packed, self.recv, self.send)
        self.rows = gather(arrived, self.row_of_slot)

    def combine(self) -> None:
        if self.fan_in is not None:
            back = weighted_sum(self.rows, *self.fan_in)
        else:
            back = gather(self.rows, self.slot_of_row)
        home = back.new_empty(sum(self.send), back.shape[1])
        dist.all_to_all_single(home, back, self.send, self.recv)
        self.result = weighted_sum(home, *self.own_terms)


class AllGather(Baseline):
    """Every rank gets all tokens and keeps those of its experts; partial sums of all tokens are
    reduced and scattered."""

    def __init__(self, model: Model, batch: Batch) -> None:
        super().__init__(model, batch)
        num_ranks, expected = dist.get_world_size(), batch.expected
        self.most = max(idx.shape[0] for idx in batch.all_idx)
        self.padded = batch.x.new_zeros(self.most, model.hidden)
        token = expected.ranks * self.most + expected.tokens
        self.token_of_slot = torch.zeros(self.num_slots, dtype=torch.int64, device=batch.x.device)
        self.token_of_slot[expected.slots] = token
        self.terms = terms(token, expected.slots, batch.row_weights(), num_ranks * self.most)
        self.rows = batch.x.new_zeros(self.num_slots, model.hidden)

    def plan(self) -> object:
        """Everybody's choices, in the order of the experts, and the starts of the keys."""
        idx = self.batch.topk_idx.new_full((self.most, self.model.topk), -1)
        idx[: self.batch.topk_idx.shape[0]] = self.batch.topk_idx
        everyone = idx.new_empty(dist.get_world_size() * self.most, self.model.topk)
        dist.all_gather_into_tensor(everyone, idx)
        order = torch.sort(everyone.flatten(), stable=True).indices
        return order, key_starts(self.batch, self.model)

    def dispatch(self) -> None:
        x = self.batch.x
        if x.shape[0] < self.most:
            self.padded[: x.shape[0]] = x
            x = self.padded
        everyone = x.new_empty(dist.get_world_size() * self.most, x.shape[1])
        dist.all_gather_into_tensor(everyone, x)
        self.rows = gather(everyone, self.token_of_slot)

    def combine(self) -> None:
        partial = weighted_sum(self.rows, *self.terms)
        home = partial.new_empty(self.most, partial.shape[1])
        dist.reduce_scatter_tensor(home, partial)
        self.result = home[: self.batch.x.shape[0]]


def key_starts(batch: Batch, model: Model) -> torch.Tensor:
    """Where every expert's rows begin, from the counts of all ranks."""
    counts = torch.bincount(batch.topk_idx.flatten() + 1, minlength=model.experts + 1)[1:]
    dist.all_reduce(counts)
    return counts.cumsum(0)


def terms(
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


def gather(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
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


def weighted_sum(rows: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """``result[i] = sum_j weights[i, j] * rows[indices[i, j]]`` in f32, in one pass."""
    size, hidden = indices.shape[0], rows.shape[1]
    result = rows.new_empty(size, hidden)
    block = 1024
    grid = (size, -(-hidden // block))
    _sum_kernel[grid](rows, indices, weights, result, hidden, indices.shape[1], block, num_warps=4)
    return result
