"""Contenders of `network.py` on NCCL alone: all-to-all, and that with each row sent once to a rank.

They have a layout, which ``plan`` finds before dispatch; it is timed by itself.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from benchmarks.network_cases import Batch
from benchmarks.network_contenders import Contender


class Naive(Contender):
    """Permute, all-to-all of every (token, expert) pair, permute; and back."""

    finds_layout = True

    def __init__(self, name: str, batch: Batch) -> None:
        super().__init__(name, batch)
        self.plan()

    def plan(self) -> None:
        batch, moe = self.batch, self.batch.moe
        num_ranks = batch.topology.num_ranks
        per_rank = moe.num_experts // num_ranks
        flat = moe.topk_idx.flatten()
        self.order = flat.sort(stable=True).indices
        self.send_counts = torch.bincount(flat // per_rank, minlength=num_ranks)
        counts = torch.bincount(flat, minlength=moe.num_experts)
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts)  # [source rank, own expert]
        table = received.view(num_ranks, per_rank)
        self.recv_counts = table.sum(1).tolist()
        self.send_counts = self.send_counts.tolist()
        expert = torch.arange(per_rank, device=flat.device).repeat(num_ranks)
        expert = expert.repeat_interleave(table.flatten())
        total = table.sum(0)
        padded = (total + moe.align - 1) // moe.align * moe.align
        order = expert.sort(stable=True).indices
        first = (padded.cumsum(0) - padded)[expert[order]]
        within = (
            torch.arange(len(order), device=flat.device) - (total.cumsum(0) - total)[expert[order]]
        )
        self.slot = torch.empty_like(order)
        self.slot[order] = first + within
        self.num_slots = int(padded.sum())

    def dispatch(self) -> None:
        x, topk = self.batch.moe.x, self.batch.moe.topk_idx.shape[1]
        with self.clock.part("rearrangement"):
            sent = x[self.order // topk]
        with self.clock.part("communication"):
            received = x.new_empty(len(self.slot), x.shape[1])
            dist.all_to_all_single(received, sent, self.recv_counts, self.send_counts)
        with self.clock.part("rearrangement"):
            self.rows = x.new_empty(self.num_slots, x.shape[1])
            self.rows[self.slot] = received

    def combine(self) -> None:
        moe = self.batch.moe
        rows = self.rows if self.worked is None else self.worked
        with self.clock.part("rearrangement"):
            sent = rows[self.slot]
        with self.clock.part("communication"):
            received = rows.new_empty(len(self.order), rows.shape[1])
            dist.all_to_all_single(received, sent, self.send_counts, self.recv_counts)
        with self.clock.part("rearrangement"):
            back = torch.empty_like(received)
            back[self.order] = received
            by_token = back.view(*moe.topk_idx.shape, -1)
            self.result = torch.einsum("tkh,tk->th", by_token.float(), moe.topk_weights)
            self.result = self.result.to(rows.dtype)


class RankDeduplicated(Contender):
    """Every token once to every rank that wants it; expanded there, and reduced there."""

    finds_layout = True

    def __init__(self, name: str, batch: Batch) -> None:
        super().__init__(name, batch)
        self.naive = Naive(name, batch)
        self.plan()

    def plan(self) -> None:
        self.naive.plan()
        batch, moe = self.batch, self.batch.moe
        num_ranks, topk = batch.topology.num_ranks, moe.topk_idx.shape[1]
        per_rank = moe.num_experts // num_ranks
        rank = moe.topk_idx // per_rank
        wanted = torch.zeros(len(rank), num_ranks, dtype=torch.bool, device=rank.device)
        wanted.scatter_(1, rank, True)
        self.token = wanted.t().nonzero()[:, 1]  # by rank, then token
        self.send_counts = wanted.sum(0).tolist()
        # For every (token, choice) in the order in which naive sends it, the row that brings it.
        place = wanted.t().flatten().cumsum(0) - 1
        row = (
            place.view(num_ranks, -1)
            - torch.tensor(
                [sum(self.send_counts[:r]) for r in range(num_ranks)], device=rank.device
            )[:, None]
        ).t()
        order = self.naive.order
        mine = row[order // topk, rank.flatten()[order]]
        weights = moe.topk_weights.flatten()[order]
        counts = torch.tensor(self.send_counts, device=rank.device)
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts)
        self.recv_counts = received.tolist()
        brought = torch.empty(len(self.naive.slot), dtype=torch.int64, device=rank.device)
        splits = self.naive.recv_counts, self.naive.send_counts
        dist.all_to_all_single(brought, mine, *splits)
        self.weights = weights.new_empty(len(brought))
        dist.all_to_all_single(self.weights, weights, *splits)
        base = torch.tensor(
            [sum(self.recv_counts[:r]) for r in range(num_ranks)], device=rank.device
        )
        sources = torch.tensor(self.naive.recv_counts, device=rank.device)
        self.brought = brought + base.repeat_interleave(sources)

    def dispatch(self) -> None:
        x = self.batch.moe.x
        with self.clock.part("rearrangement"):
            sent = x[self.token]
        with self.clock.part("communication"):
            received = x.new_empty(sum(self.recv_counts), x.shape[1])
            dist.all_to_all_single(received, sent, self.recv_counts, self.send_counts)
        with self.clock.part("rearrangement"):
            self.rows = x.new_empty(self.naive.num_slots, x.shape[1])
            self.rows[self.naive.slot] = received[self.brought]

    def combine(self) -> None:
        x = self.batch.moe.x
        rows = self.rows if self.worked is None else self.worked
        with self.clock.part("rearrangement"):
            sums = torch.zeros(sum(self.recv_counts), x.shape[1], device=x.device)
            terms = rows[self.naive.slot].float() * self.weights[:, None]
            sent = sums.index_add_(0, self.brought, terms).to(x.dtype)
        with self.clock.part("communication"):
            received = x.new_empty(len(self.token), x.shape[1])
            dist.all_to_all_single(received, sent, self.send_counts, self.recv_counts)
        with self.clock.part("rearrangement"):
            total = torch.zeros(x.shape, device=x.device)
            self.result = total.index_add_(0, self.token, received.float()).to(x.dtype)
