"""What `benchmarks/network.py` compares: the face of a contender, and fuscoc's own.

fuscoc's times include everything. ``SeparatePermutes`` is fuscoc without its fused copies.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.network_cases import Batch
from fuscoc_runtime import Shuffle
from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.engine.node.exact_handle import ExactHandle


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


class Contender(ABC):
    """Two calls to time, and what they made: ``rows`` and ``result``."""

    name = ""
    finds_layout = False
    """Whether ``plan`` is a part of its work that its calls leave out."""

    def __init__(self, batch: Batch) -> None:
        self.batch, self.clock = batch, Clock()
        self.rows = self.result = batch.moe.x
        self.worked: Tensor | None = None

    @abstractmethod
    def plan(self) -> None:
        """Find the layout, unless `dispatch` does."""

    @abstractmethod
    def dispatch(self) -> None: ...

    @abstractmethod
    def combine(self) -> None: ...

    def step(self) -> None:
        """Both, one behind the other."""
        self.dispatch()
        self.combine()

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


class Fuscoc(Contender):
    """A compiled artifact, as a user runs it. Calls return when their work is enqueued, as those of
    the others do."""

    handle: Handle | ExactHandle | None = None

    def __init__(self, name: str, batch: Batch, shuffle: Shuffle) -> None:
        super().__init__(batch)
        self.name, self.shuffle = name, shuffle
        self.dispatch()

    def plan(self) -> None:
        pass

    def dispatch(self) -> None:
        moe = self.batch.moe
        self.rows, self.handle, done = self.shuffle.dispatch(
            moe.x, topk_idx=moe.topk_idx, topk_weights=moe.topk_weights, async_op=True
        )
        done.wait()

    def combine(self) -> None:
        rows = self.rows if self.worked is None else self.worked
        self.result, done = self.shuffle.combine(rows, self.handle, async_op=True)
        done.wait()

    def breakdown(self, iterations: int) -> dict[str, float]:
        """What precedes the first row is preprocessing; the rest rearranges as it communicates."""
        parts = {"preprocessing": 0.0, "communication": 0.0}
        for _ in range(iterations):
            dist.barrier()
            torch.cuda.synchronize()
            started = time.perf_counter()
            self.dispatch()
            self.combine()
            torch.cuda.synchronize()
            total = (time.perf_counter() - started) * 1e3
            stats = self.shuffle.stats()
            assert stats is not None
            planning = stats.planning_ms
            parts["preprocessing"] += planning / iterations
            parts["communication"] += (total - planning) / iterations
        return parts


class KnownRouting(Fuscoc):
    """The same with the handle of an earlier dispatch: its plan is for free, as the others' is."""

    def dispatch(self) -> None:
        if self.handle is None:
            super().dispatch()
        else:
            self.rows, self.handle, done = self.shuffle.dispatch(
                self.batch.moe.x, handle=self.handle, async_op=True
            )
            done.wait()


class SeparatePermutes(Contender):
    """fuscoc's own hierarchical plan, carried out by index_select, NCCL and index_select; among
    several nodes, where hosts plan."""

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
