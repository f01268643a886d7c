"""NCCL contenders of `network.py`: the raw wire, all-to-all, and that with each row sent once.

All-to-all has a layout, which ``plan`` finds before dispatch; it is timed by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.network_cases import Batch, Model
from benchmarks.network_contenders import Contender

SLICE_BYTES = 8 << 20
"""The slices of the raw wire."""


class RawWire(Contender):
    """The bound: as many bytes as have to cross, in slices, from every rank to those of its place
    in other nodes, all ways at once. Nothing else.

    Attributes:
        out, back: messages by peer, of a dispatch and of a combine.
    """

    name = "raw wire (bound)"

    def __init__(
        self,
        batch: Batch,
        model: Model,
        slice_bytes: int = SLICE_BYTES,
        groups: Sequence[dist.ProcessGroup | None] = (None,),
    ) -> None:
        """``groups``: whose communicators take an equal part of every message each."""
        super().__init__(batch)
        topology, crossing = batch.topology, batch.crossing()
        node, place = topology.node(batch.rank), topology.local_rank(batch.rank)
        self.out: dict[int, Tensor] = {}
        self.back: dict[int, Tensor] = {}
        for other in range(topology.num_nodes):
            peer = topology.node_ranks(other)[place]
            if other != node:
                self.out[peer] = self._bytes(crossing[node, other], model)
                self.back[peer] = self._bytes(crossing[other, node], model)
        self._forth = _exchanges(self.out, self.back, slice_bytes, groups)
        self._home = _exchanges(self.back, self.out, slice_bytes, groups)

    def _bytes(self, rows: Tensor, model: Model) -> Tensor:
        """Of a rank of a node, for a rank of another."""
        mine = -(-int(rows) // self.batch.topology.ranks_per_node)
        like = {"dtype": torch.uint8, "device": self.batch.moe.x.device}
        return torch.zeros(mine * model.row_bytes, **like)

    @property
    def num_bytes(self) -> int:
        """Memory of this rank."""
        return sum(each.nbytes for each in (*self.out.values(), *self.back.values()))

    def plan(self) -> None:
        pass

    def dispatch(self) -> None:
        _carry_out(self._forth)

    def combine(self) -> None:
        _carry_out(self._home)

    def verify(self) -> list[str]:
        return []


Exchange = list[dist.P2POp]


def _exchanges(
    sent: dict[int, Tensor],
    received: dict[int, Tensor],
    slice_bytes: int,
    groups: Sequence[dist.ProcessGroup | None],
) -> list[Exchange]:
    """Of messages by peer: the first slices of all of them, the second ones, and so on."""
    found: list[Exchange] = []
    slices = {
        group: _slices(sent, received, slice_bytes, at, len(groups))
        for at, group in enumerate(groups)
    }
    most = max((len(parts) for each in slices.values() for *_, parts in each), default=0)
    for number in range(most):
        for group, each in slices.items():
            ops = [
                dist.P2POp(op, parts[number], peer, group)
                for op, peer, parts in each
                if number < len(parts)
            ]
            found += [ops] if ops else []
    return found


def _slices(
    sent: dict[int, Tensor], received: dict[int, Tensor], slice_bytes: int, at: int, count: int
) -> list[tuple[Any, int, Sequence[Tensor]]]:
    """Part ``at`` of ``count`` of every message, cut."""
    return [
        (op, peer, message.tensor_split(count)[at].split(slice_bytes))
        for op, messages in ((dist.isend, sent), (dist.irecv, received))
        for peer, message in messages.items()
        if len(message)
    ]


def _carry_out(exchanges: Sequence[Exchange]) -> None:
    works = [work for each in exchanges for work in dist.batch_isend_irecv(each)]
    for work in works:
        work.wait()


class Naive(Contender):
    """Permute, all-to-all of every (token, expert) pair, permute; and back."""

    name = "NCCL all-to-all, naive"
    finds_layout = True

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch)
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

    name = "NCCL all-to-all, rank-deduplicated"
    finds_layout = True

    def __init__(self, batch: Batch, naive: Naive) -> None:
        super().__init__(batch)
        self.naive = naive
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
