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
    by_ranks,
    every_number,
    in_order,
    make_case,
    outputs,
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
    y = outputs(case, shape.topk)
    for is_fp8, expands in product((False, True), (False, True)):
        sent = [every_number(*to_fp8(x)) if is_fp8 else x for x in case.x]
        Call(checks, buffer, case, sent, y, most, expands).run()
    if nodes[0] == 1:
        fixed(checks, buffer, case, y, most)
    checks.equal("barrier", buffer.barrier(), None)
    buffer.destroy()
    return checks.wrong


class Call:
    """One dispatch, what follows it, and what should come of it."""

    def __init__(
        self,
        checks: Checks,
        buffer: Any,
        case: Case,
        sent: list[Any],
        y: list[Tensor],
        most: int,
        expands: bool,
    ) -> None:
        self.checks, self.buffer, self.case, self.sent, self.y = checks, buffer, case, sent, y
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

        y = self.y
        one = (case.x[rank],)
        for biases in (one,) if is_fp8 else ((), (*one, case.x[rank].flip(0))):
            rows = self.worked(y, where, len(as_tuple(recv)[0]))
            if is_fp8:
                order["previous_event"] = self.buffer.capture()  # rows have been made since
            bias = biases[0] if len(biases) == 1 else biases or None
            back, sums, event = self.buffer.combine(
                rows, handle, topk_weights=weights, bias=bias, **order
            )
            if is_fp8:
                event.current_stream_wait()
            owners = torch.where(case.idx[rank] >= 0, case.idx[rank] // case.local, -1)
            wanted = by_ranks(y[rank], owners, biases)
            if biases:
                self.checks.equal(f"combined with {len(biases)} biases", back, wanted)
            else:  # engines have an order of their own
                size = in_order(y[rank].abs(), owners >= 0).float()
                self.checks.near("combined", back, wanted.float(), 2**-7, size)
            there = torch.where(case.idx[rank] >= 0, case.weights[rank], 0)
            self.checks.equal("sums", sums, there)

    def worked(self, y: list[Tensor], where: Tensor, num_rows: int) -> Tensor:
        """What experts make of the rows. What is in padding does not count."""
        mine, is_here = self.case.received(y, self.rank), self.idx >= 0
        if not self.expands:
            return in_order(mine, is_here)
        rows = mine.new_full((num_rows, mine.shape[2]), torch.nan)
        rows[where[is_here]] = mine[is_here]
        return rows

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


def fixed(checks: Checks, buffer: Any, case: Case, y: list[Tensor], most: int) -> None:
    """``do_cpu_sync=False``: room for all that may come, and no list on the host."""
    rank, topk = case.rank, case.shape.topk
    owners = torch.where(case.idx[rank] >= 0, case.idx[rank] // case.local, -1)
    for expands in (False, True):
        recv, idx, weights, handle, _ = buffer.dispatch(
            case.x[rank], case.idx[rank], case.weights[rank], num_experts=case.shape.experts,
            do_cpu_sync=False, do_expand=expands, expert_alignment=ALIGNMENT,
        )  # fmt: skip
        wanted = case.received(case.x, rank)
        num = int(handle.psum_num_recv_tokens_per_scaleup_rank[-1])
        room = most * case.num_ranks
        where = handle.recv_src_metadata[:num, 2:].long()
        mine = case.received(y, rank)
        if expands:
            room = room * min(topk, case.local) + (ALIGNMENT - 1) * case.local
            room = -(-room // ALIGNMENT) * ALIGNMENT
            token = torch.arange(num, device=where.device)[:, None].expand_as(where)[where >= 0]
            checks.equal("rows that have come", recv[where[where >= 0]], wanted[token])
            rows = mine.new_full((len(recv), mine.shape[2]), torch.nan)
            rows[where[where >= 0]] = mine[where >= 0]
        else:
            checks.equal("rows that have come", recv[:num], wanted)
            checks.equal("rows that have not", bool((idx[num:] == -1).all()), True)
            rows = mine.new_full((len(recv), mine.shape[2]), torch.nan)
            rows[:num] = in_order(mine, idx[:num] >= 0)
        checks.equal("rows of a fixed size", len(recv), room)
        checks.equal("list", handle.num_recv_tokens_per_expert_list, [])
        for biases in ([], [case.x[rank]]):
            bias = biases[0] if biases else None
            back, sums, _ = buffer.combine(rows, handle, topk_weights=weights, bias=bias)
            wanted = by_ranks(y[rank], owners, biases)
            if biases:
                checks.equal("combined with a bias", back, wanted)
            else:
                checks.near("combined", back, wanted.float(), 2**-6)
            there = torch.where(case.idx[rank] >= 0, case.weights[rank], 0)
            checks.equal("sums of a fixed size", sums, there)
