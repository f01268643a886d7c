"""What `benchmarks/network.py` compares.

Those on NCCL get their layout for free when they are timed as a whole; ``plan`` is what finding it
takes. fuscoc's times include everything.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.network_cases import Batch, Model
from fuscoc_runtime import Shuffle
from fuscoc_runtime.engine.handle import Handle

SLICE_BYTES = 8 << 20
"""The slices of the raw wire."""


class Clock:
    """Adds up milliseconds by part, if it runs; then parts do not overlap."""

    def __init__(self) -> None:
        self.parts: dict[str, float] | None = None

    def start(self) -> None:
        self.parts = defaultdict(float)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        if self.parts is None:
            yield
            return
        torch.cuda.synchronize()
        started = time.perf_counter()
        yield
        torch.cuda.synchronize()
        self.parts[name] += (time.perf_counter() - started) * 1e3


class Contender:
    """Two calls to time, and what they made: ``rows`` and ``result``."""

    name = ""

    def __init__(self, batch: Batch) -> None:
        self.batch, self.clock = batch, Clock()
        self.rows = self.result = batch.moe.x
        self.worked: Tensor | None = None

    def plan(self) -> None:
        """Find the layout."""

    def dispatch(self) -> None:
        raise NotImplementedError

    def combine(self) -> None:
        raise NotImplementedError

    def verify(self) -> list[str]:
        """What is wrong with a dispatch and a combine; collective."""
        self.plan()
        if self.rows is not self.batch.moe.x:
            self.rows.view(torch.uint8).fill_(0xFF)
        torch.cuda.synchronize()
        dist.barrier()
        self.dispatch()
        wrong = self.batch.wrong_rows(self.rows)
        self.worked = self.batch.work(self.rows)
        self.combine()
        return wrong + self.batch.wrong_result(self.result)

    def breakdown(self, iterations: int) -> dict[str, float]:
        """Milliseconds of preprocessing, rearrangement and communication, one after the other."""
        self.clock.start()
        for _ in range(iterations):
            dist.barrier()
            with self.clock.part("preprocessing"):
                self.plan()
            self.dispatch()
            self.combine()
        parts, self.clock.parts = self.clock.parts or {}, None
        return {name: total / iterations for name, total in parts.items()}


class RawWire(Contender):
    """The bound: as many bytes as have to cross, in slices of 8 MB, between ranks of equal local
    index, both ways at once. Nothing else."""

    name = "raw wire (bound)"

    def __init__(self, batch: Batch, model: Model) -> None:
        super().__init__(batch)
        topology, rank = batch.topology, batch.rank
        num_bytes = batch.ideal_rows() * model.row_bytes
        self.sent = torch.zeros(num_bytes, dtype=torch.uint8, device=batch.moe.x.device)
        self.received = torch.zeros_like(self.sent)
        m = topology.ranks_per_node
        self.to = (rank + m) % topology.num_ranks
        self.source = (rank - m) % topology.num_ranks

    def dispatch(self) -> None:
        works = []
        for begin in range(0, len(self.sent), SLICE_BYTES):
            part = slice(begin, begin + SLICE_BYTES)
            works += dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, self.sent[part], self.to),
                    dist.P2POp(dist.irecv, self.received[part], self.source),
                ]
            )
        for work in works:
            work.wait()

    combine = dispatch

    def verify(self) -> list[str]:
        return []


class Naive(Contender):
    """Permute, all-to-all of every (token, expert) pair, permute; and back."""

    name = "NCCL all-to-all, naive"

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


class Fuscoc(Contender):
    """A compiled artifact, as a user runs it."""

    handle: Handle | None = None

    def __init__(self, name: str, batch: Batch, shuffle: Shuffle) -> None:
        super().__init__(batch)
        self.name, self.shuffle = name, shuffle
        self.dispatch()

    def dispatch(self) -> None:
        moe = self.batch.moe
        self.rows, self.handle = self.shuffle.dispatch(moe.x, topk_idx=moe.topk_idx)

    def combine(self) -> None:
        rows = self.rows if self.worked is None else self.worked
        weights = self.batch.moe.topk_weights
        self.result = self.shuffle.combine(rows, self.handle, topk_weights=weights)

    def breakdown(self, iterations: int) -> dict[str, float]:
        """What precedes the first row is preprocessing; the rest rearranges as it communicates."""
        parts = {"preprocessing": 0.0, "communication": 0.0}
        for _ in range(iterations):
            dist.barrier()
            torch.cuda.synchronize()
            started = time.perf_counter()
            self.dispatch()
            self.combine()
            assert isinstance(self.handle, Handle)
            planning = self.handle.planning_ms
            parts["preprocessing"] += planning / iterations
            total = (time.perf_counter() - started) * 1e3
            parts["communication"] += (total - planning) / iterations
        return parts


class KnownRouting(Fuscoc):
    """The same with the handle of an earlier dispatch: its plan is for free, as the others' is."""

    def dispatch(self) -> None:
        if self.handle is None:
            super().dispatch()
        else:
            self.rows, self.handle = self.shuffle.dispatch(self.batch.moe.x, handle=self.handle)


class SeparatePermutes(Contender):
    """fuscoc's own hierarchical plan, carried out by index_select, NCCL and index_select."""

    name = "fused copies off: NCCL + permutes on the same plan"

    def __init__(self, batch: Batch, fuscoc: Fuscoc, node: dist.ProcessGroup) -> None:
        super().__init__(batch)
        self.fuscoc, self.node = fuscoc, node
        self.plan()

    def plan(self) -> None:
        """The plan is fuscoc's; what a permuting implementation needs besides is derived here."""
        self.fuscoc.dispatch()
        assert isinstance(self.fuscoc.handle, Handle)
        plan = self.fuscoc.handle.plan
        lists, m = plan.lists, self.batch.topology.ranks_per_node
        direct, forward = lists["direct"], lists["forward"]
        self.net_token = lists["net_send"]["src_offset"]
        self.sent, self.landed = list(plan.net_send_counts), list(plan.net_recv_counts)
        peer = torch.cat([direct["dst_peer"], forward["dst_peer"]])
        self.order = peer.sort(stable=True).indices
        self.direct_token, self.forward_row = direct["src_offset"], forward["src_row"]
        self.near_sent = torch.bincount(peer, minlength=m)
        received = torch.empty_like(self.near_sent)
        dist.all_to_all_single(received, self.near_sent, group=self.node)
        self.near_sent, self.near_received = self.near_sent.tolist(), received.tolist()
        slots = torch.cat([direct["dst_slot"], forward["dst_slot"]])[self.order]
        self.slot = slots.new_empty(sum(self.near_received))
        splits = self.near_received, self.near_sent
        dist.all_to_all_single(self.slot, slots, *splits, group=self.node)
        self.num_slots, self.copies = plan.rows.target, lists["local"]
        # The weight of every slot, and the received row that its sum goes back with.
        weights = self.batch.moe.topk_weights.reshape(-1)[plan.point_order]
        found = weights.new_empty(sum(plan.point_recv_counts))
        dist.all_to_all_single(
            found, weights, list(plan.point_recv_counts), list(plan.point_send_counts)
        )
        groups = lists["reduce_direct"]
        self.weights = weights.new_zeros(self.num_slots)
        self.weights[groups["term_slot"]] = found
        row = torch.full((self.num_slots,), -1, device=peer.device)
        row[self.slot] = torch.arange(len(self.slot), device=peer.device)
        row[self.copies["dst_slot"]] = row[self.copies["src_slot"]]
        self.used = (row >= 0).nonzero().flatten()
        self.row = row[self.used]

    def dispatch(self) -> None:
        x, hidden = self.batch.moe.x, self.batch.moe.x.shape[1]
        with self.clock.part("rearrangement"):
            packed = x[self.net_token]
        with self.clock.part("communication"):
            landing = x.new_empty(sum(self.landed), hidden)
            dist.all_to_all_single(landing, packed, self.landed, self.sent)
        with self.clock.part("rearrangement"):
            near = torch.cat([x[self.direct_token], landing[self.forward_row]])[self.order]
        with self.clock.part("communication"):
            received = x.new_empty(len(self.slot), hidden)
            splits = self.near_received, self.near_sent
            dist.all_to_all_single(received, near, *splits, group=self.node)
        with self.clock.part("rearrangement"):
            self.rows = x.new_empty(self.num_slots, hidden)
            self.rows[self.slot] = received
            self.rows[self.copies["dst_slot"]] = self.rows[self.copies["src_slot"]]

    def combine(self) -> None:
        x, hidden = self.batch.moe.x, self.batch.moe.x.shape[1]
        rows = self.rows if self.worked is None else self.worked
        with self.clock.part("rearrangement"):
            sums = torch.zeros(len(self.slot), hidden, device=x.device)
            terms = rows[self.used].float() * self.weights[self.used, None]
            sent = sums.index_add_(0, self.row, terms).to(x.dtype)
        with self.clock.part("communication"):
            near = x.new_empty(len(self.order), hidden)
            splits = self.near_sent, self.near_received
            dist.all_to_all_single(near, sent, *splits, group=self.node)
        with self.clock.part("rearrangement"):
            back = torch.empty_like(near)
            back[self.order] = near
            direct, forwarded = back.split([len(self.direct_token), len(self.forward_row)])
            landing = torch.zeros(sum(self.landed), hidden, device=x.device)
            packed = landing.index_add_(0, self.forward_row, forwarded.float()).to(x.dtype)
        with self.clock.part("communication"):
            returned = x.new_empty(sum(self.sent), hidden)
            dist.all_to_all_single(returned, packed, self.sent, self.landed)
        with self.clock.part("rearrangement"):
            total = torch.zeros(x.shape, device=x.device)
            total.index_add_(0, self.direct_token, direct.float())
            total.index_add_(0, self.net_token, returned.float())
            self.result = total.to(x.dtype)
