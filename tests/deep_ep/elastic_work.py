"""The calls of DeepEP's ``ElasticBuffer`` beside torch's, for the processes of a ``Pool``."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor

import fuscoc_runtime.deep_ep as deep_ep
from fuscoc_runtime.deep_ep.rows import Tokens
from tests.deep_ep.cases import (
    Case,
    Checks,
    Shape,
    as_tuple,
    every_number,
    from_fp8,
    make_case,
    repeated,
    to_fp8,
)

ALIGNMENT = 4
FREE = 2
"""Tokens that a rank might have, and has not."""


def elastic(
    group: Any, device: str, shape: Shape, sizes: list[int], options: dict[str, Any]
) -> list[str]:
    """Dispatch to ranks and to experts, again with the handle, and combine."""
    case, checks = make_case(group, device, shape, sizes, seed=5), Checks()
    most = max(sizes[: case.num_ranks]) + FREE
    buffer = deep_ep.ElasticBuffer(
        group,
        num_max_tokens_per_rank=most,
        prefer_overlap_with_compute=True,
        explicitly_destroy=True,
        **options,
    )
    nodes = buffer.get_logical_domain_size()
    checks.equal("ranks", nodes[0] * nodes[1], case.num_ranks)
    for is_fp8, expands in product((False, True), (False, True)):
        sent = [every_number(*to_fp8(x)) if is_fp8 else x for x in case.x]
        Call(checks, buffer, case, sent, most, expands).run()
    if nodes[0] == 1:
        fixed(checks, buffer, case, most)
    checks.equal("barrier", buffer.barrier(), None)
    buffer.destroy()
    return checks.wrong


class Call:
    """One dispatch, what follows it, and what should come of it."""

    def __init__(
        self, checks: Checks, buffer: Any, case: Case, sent: list[Any], most: int, expands: bool
    ) -> None:
        self.checks, self.buffer, self.case, self.sent = checks, buffer, case, sent
        self.most, self.expands, self.rank = most, expands, case.rank
        first = case.rank * case.local
        owned = [
            torch.where(each // case.local == case.rank, each - first, -1) for each in case.idx
        ]
        self.idx = case.received(owned, self.rank)
        self.numbers = case.received(
            [r * most + torch.arange(len(x), device=case.device) for r, x in enumerate(case.x)],
            self.rank,
        )
        every = torch.cat(case.idx).flatten()
        self.counts = [int((every == first + each).sum()) for each in range(case.local)]

    def run(self) -> None:
        case, rank, is_fp8 = self.case, self.rank, isinstance(self.sent[0], tuple)
        stats = torch.ones(case.local, dtype=torch.int32, device=case.device)
        names = "do_expand", "do_zero_padding", "use_tma_aligned_col_major_sf"
        shape = dict.fromkeys(names, self.expands)
        order: dict[str, Any] = {}
        if is_fp8:
            order = {"async_with_compute_stream": True, "previous_event": self.buffer.capture()}
        x: Tokens = self.sent[rank]
        recv, idx, weights, handle, event = self.buffer.dispatch(
            x,
            case.idx[rank],
            case.weights[rank],
            stats,
            num_experts=case.shape.experts,
            expert_alignment=ALIGNMENT,
            **shape,
            **order,
        )
        if is_fp8:
            event.current_stream_wait()
        self.check_handle(handle, stats - 1)
        where = self.check_rows(recv, idx, weights, handle)
        again, idx_again, weights, same, event = self.buffer.dispatch(
            x, topk_weights=case.weights[rank], handle=handle, **shape, **order
        )
        if is_fp8:
            event.current_stream_wait()
        self.checks.equal("handle", same is handle, True)
        self.check_rows(again, idx_again, weights, handle)

        rows = from_fp8(*recv) if is_fp8 else recv
        if self.expands:  # what is in padding does not count
            unused = torch.ones(len(rows), dtype=torch.bool, device=case.device)
            unused[where[where >= 0]] = False
            rows = torch.where(unused[:, None], torch.nan, rows)
        if is_fp8:
            order["previous_event"] = self.buffer.capture()  # rows have been made since the last
        back, sums, event = self.buffer.combine(
            rows, handle, topk_weights=weights, bias=case.x[rank], **order
        )
        if is_fp8:
            event.current_stream_wait()
        there = case.idx[rank] >= 0
        peers = [case.goes(rank, peer) for peer in range(case.num_ranks)]
        times = there.sum(1) if self.expands else torch.stack(peers, 1).sum(1)
        mine = from_fp8(*self.sent[rank]) if is_fp8 else case.x[rank]
        wanted = repeated(mine, times) + case.x[rank].float()
        self.checks.near("combined", back, wanted, 2**-6)
        self.checks.equal("sums", sums, torch.where(there, case.weights[rank], 0))

    def check_handle(self, handle: Any, stats: Tensor) -> None:
        aligned = [-(-each // ALIGNMENT) * ALIGNMENT for each in self.counts]
        ends = [sum(aligned[: i + 1]) for i in range(len(aligned))]
        if self.expands:
            ends = [
                end - pad + num for end, pad, num in zip(ends, aligned, self.counts, strict=True)
            ]
        said = {
            "num_recv_tokens_per_expert_list": aligned,
            "psum_num_recv_tokens_per_expert": ends,
            "num_unaligned_recv_tokens_per_expert": self.counts,
            "num_recv_tokens": len(self.numbers),
            "num_expanded_tokens": sum(aligned) if self.expands else 0,
        }
        sources = [self.case.goes(r, self.rank).sum() for r in range(self.case.num_ranks)]
        said["psum_num_recv_tokens_per_scaleup_rank"] = torch.stack(sources).cumsum(0).tolist()
        for name, wanted in said.items():
            found = getattr(handle, name)
            self.checks.equal(name, found.tolist() if isinstance(found, Tensor) else found, wanted)
        self.checks.equal("stats", stats.tolist(), self.counts)
        self.checks.equal("metadata", handle.recv_src_metadata[:, 0], self.numbers.int())

    def check_rows(self, recv: Any, idx: Any, weights: Tensor, handle: Any) -> Tensor:
        """Where the row of every choice is, [n, topk], if there is one."""
        case, checks = self.case, self.checks
        parts = zip(*self.sent, strict=True) if isinstance(recv, tuple) else [case.x]
        wanted = [case.received(list(each), self.rank) for each in parts]
        gates = torch.where(self.idx >= 0, case.received(case.weights, self.rank), 0)
        where = handle.recv_src_metadata[:, 2:].long()
        if not self.expands:
            checks.equal("recv_topk_idx", idx, self.idx)
            checks.equal("recv_topk_weights", weights, gates)
            for found, right in zip(as_tuple(recv), wanted, strict=True):
                checks.equal("rows", found, right)
            return where
        checks.equal("recv_topk_idx", idx, None)
        checks.equal("which choices are here", where >= 0, self.idx >= 0)
        used = where[where >= 0]
        ends = handle.psum_num_recv_tokens_per_expert.tolist()
        rows = [torch.arange(end - num, end) for end, num in zip(ends, self.counts, strict=True)]
        by_expert = torch.cat([where[self.idx == each] for each in range(case.local)])
        checks.equal("rows of experts, in order", by_expert.cpu(), torch.cat(rows))
        checks.equal("weights", weights[used], gates[where >= 0])
        token = torch.arange(len(where), device=where.device)[:, None].expand_as(where)[where >= 0]
        padding = torch.ones(len(weights), dtype=torch.bool, device=case.device)
        padding[used] = False
        for found, right in zip(as_tuple(recv), wanted, strict=True):
            checks.equal("rows", found[used], right[token])
            checks.equal("padding", bool((found[padding].float() == 0).all()), True)
        if isinstance(recv, tuple) and len(recv[1]) > 1:
            checks.equal("scales by column", recv[1].stride()[0], 1)
            checks.equal("TMA", recv[1].stride()[1] * 4 % 16, 0)
        return where


def fixed(checks: Checks, buffer: Any, case: Case, most: int) -> None:
    """``do_cpu_sync=False``: room for all that may come, and no list on the host."""
    rank = case.rank
    recv, idx, weights, handle, _ = buffer.dispatch(
        case.x[rank], case.idx[rank], case.weights[rank], num_experts=case.shape.experts,
        do_cpu_sync=False,
    )  # fmt: skip
    wanted = case.received(case.x, rank)
    num = int(handle.psum_num_recv_tokens_per_scaleup_rank[-1])
    checks.equal("rows of a fixed size", len(recv), most * case.num_ranks)
    checks.equal("rows that have come", recv[:num], wanted)
    checks.equal("rows that have not", bool((idx[num:] == -1).all()), True)
    checks.equal("list", handle.num_recv_tokens_per_expert_list, [])
    back, _, _ = buffer.combine(recv, handle, topk_weights=weights)
    peers = [case.goes(rank, peer) for peer in range(case.num_ranks)]
    times = torch.stack(peers, 1).sum(1, keepdim=True)
    checks.near("combined", back, case.x[rank].float() * times, 2**-7)
