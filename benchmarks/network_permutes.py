"""A contender of `network.py` that is fuscoc without its fused copies."""

from __future__ import annotations

from functools import cache

import torch
import torch.distributed as dist

from benchmarks.network_cases import Batch
from benchmarks.network_contenders import Contender, Fuscoc
from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.topology import Topology


@cache
def _group_of_node(topology: Topology) -> dist.ProcessGroup:
    """Collective."""
    nodes = [list(topology.node_ranks(number)) for number in range(topology.num_nodes)]
    mine, _ = dist.new_subgroups_by_enumeration(nodes)  # type: ignore[no-untyped-call]
    assert isinstance(mine, dist.ProcessGroup)
    return mine


class SeparatePermutes(Contender):
    """The plan that fuscoc's hosts make, for free, carried out by index_select, NCCL and
    index_select."""

    def __init__(self, name: str, batch: Batch, fuscoc: Fuscoc) -> None:
        super().__init__(name, batch)
        self.fuscoc, self.node = fuscoc, _group_of_node(batch.topology)
        self.plan()

    def close(self) -> None:
        self.fuscoc.close()

    def plan(self) -> None:
        """What a permuting implementation needs besides fuscoc's plan is derived here."""
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
