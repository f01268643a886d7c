"""Dispatch and combine of an ``ElasticBuffer``: a row for a token, or one for a choice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.deep_ep.elastic_rows import Found, of_choices, of_tokens
from fuscoc_runtime.deep_ep.ep_handle import EPHandle
from fuscoc_runtime.deep_ep.normal import NUM_HANDLES, parts_of, with_biases
from fuscoc_runtime.deep_ep.refusals import refusal
from fuscoc_runtime.deep_ep.rows import Kind, Tokens, kind_of, pack, unpack
from fuscoc_runtime.deep_ep.specs import Shuffles, check_fixed
from fuscoc_runtime.face.shuffle import Shuffle

TMA_BYTES = 16


@dataclass(frozen=True)
class Call:
    """What a dispatch was asked for.

    Attributes:
        copies: whether the handle keeps a copy of ``topk_idx``.
        syncs: whether the host waits to know how many rows there are.
        expands: whether a row is one for a choice.
        zeroes: whether padding is made 0.
        by_column: whether scales are stored by column.
    """

    shuffles: Shuffles
    num_experts: int
    num_max_tokens: int
    alignment: int
    num_sms: int
    copies: bool
    syncs: bool
    expands: bool
    zeroes: bool
    by_column: bool

    @property
    def rank(self) -> int:
        return self.shuffles.group.rank()

    @property
    def num_ranks(self) -> int:
        return self.shuffles.group.size()

    def check(self, num_tokens: int) -> None:
        """Raises AdapterError: there is no such dispatch."""
        if self.num_experts % self.num_ranks:
            raise refusal(f"{self.num_ranks} ranks do not divide num_experts={self.num_experts}")
        if num_tokens > self.num_max_tokens:
            raise refusal(
                f"x has {num_tokens} tokens; num_max_tokens_per_rank={self.num_max_tokens}"
            )
        if self.num_ranks * self.num_max_tokens > 2**24 or self.num_experts > 2**24:
            raise refusal("numbers of tokens and of experts are exact below 2^24 here")
        if self.expands and not self.syncs:
            raise refusal("do_cpu_sync=False with do_expand=True is not supported")


def dispatch(
    call: Call,
    x: Tokens,
    topk_idx: Tensor | None,
    topk_weights: Tensor | None,
    earlier: EPHandle | None,
) -> tuple[Tokens, Tensor | None, Tensor | None, EPHandle]:
    """See ``ElasticBuffer.dispatch``."""
    if earlier is not None:
        return _dispatch_again(call, x, topk_weights, earlier)
    assert topk_idx is not None
    rows, scales = pack(x)
    call.check(len(rows))
    kind = replace(kind_of(x, topk_idx.shape[1]), is_numbered=True)
    shuffle = _open(call, kind, rows.device)
    fields = kind.rows(
        rows, *scales, *_beside(call.rank, call.num_max_tokens, topk_idx, topk_weights)
    )
    route = topk_idx.long() if call.expands else _ranks_of(topk_idx, call)
    fields["topk_idx" if call.expands else "rank_idx"] = route
    arrived, routing = shuffle.dispatch(**fields)
    received, beside = parts_of(arrived)
    found = _found(call, kind, beside, routing)
    handle = _handle(call, kind, shuffle, routing, found, topk_idx, route)
    recv = _finished(call, unpack(received, beside, x), found)
    weights = None if topk_weights is None else found.topk_weights
    return recv, _typed(found.topk_idx, topk_idx.dtype), weights, handle


def _dispatch_again(
    call: Call, x: Tokens, topk_weights: Tensor | None, handle: EPHandle
) -> tuple[Tokens, Tensor | None, Tensor | None, EPHandle]:
    rows, scales = pack(x)
    kind = replace(kind_of(x, handle.kind.num_topk), is_numbered=True)
    if kind != handle.kind:
        raise refusal(f"the handle is of {handle.kind}; x is of {kind}")
    sent = _beside(call.rank, handle.num_max_tokens_per_rank, handle.topk_idx, topk_weights)
    arrived, _ = handle.shuffle.dispatch(**kind.rows(rows, *scales, *sent), handle=handle.routing)
    received, beside = parts_of(arrived)
    recv = _finished(call, unpack(received, beside, x), handle.found)
    idx = _typed(handle.found.topk_idx, handle.topk_idx.dtype)
    if topk_weights is None:
        return recv, idx, None, handle
    as_asked = replace(
        call, num_experts=handle.num_experts, num_max_tokens=handle.num_max_tokens_per_rank
    )
    again = _found(as_asked, kind, beside, handle.routing)
    return recv, idx, again.topk_weights, handle


def combine(
    x: Tensor, handle: EPHandle, topk_weights: Tensor | None, biases: list[Tensor]
) -> tuple[Tensor, Tensor | None]:
    """See ``ElasticBuffer.combine``."""
    kind, choice = handle.kind, handle.found.choice
    wanted = torch.Size([handle.routing.num_slots, kind.hidden])
    if x.shape != wanted or x.dtype != torch.bfloat16:
        raise refusal(
            f"x is {x.dtype} of the shape {list(x.shape)}; it is torch.bfloat16 {list(wanted)}"
        )
    given = []
    if topk_weights is not None:
        shape = (len(x),) if handle.do_expand else (len(x), kind.num_topk)
        if topk_weights.shape != shape:
            raise refusal(
                f"topk_weights have the shape {list(topk_weights.shape)}, not {list(shape)}"
            )
        if choice is not None:
            row = torch.zeros(len(x), kind.num_topk, dtype=torch.float32, device=x.device)
            topk_weights = row.scatter_(1, choice, topk_weights[:, None])
        given.append(topk_weights)
    rows = kind.rows(x.contiguous(), *given)
    result, sums = parts_of(handle.shuffle.combine(rows, handle.routing))
    result = with_biases(result, biases)
    if topk_weights is None or sums is None:
        return result, None
    return result, sums[:, : kind.num_topk].contiguous()


def _open(call: Call, kind: Kind, device: torch.device) -> Shuffle:
    if not call.expands:
        options = {}
        if not call.syncs:
            options = {"max_sources": call.num_max_tokens, "num_handles": NUM_HANDLES}
            options["capacity"] = call.num_ranks * call.num_max_tokens
        constants = kind.constants(call.num_ranks)
        shuffle = call.shuffles.get(kind.spec, constants, device, call.num_sms, **options)
        if options:
            check_fixed(shuffle)
        return shuffle
    spec = kind.expanded(call.num_experts, call.alignment)
    return call.shuffles.get(*spec, device, call.num_sms)


def _beside(
    rank: int, num_max_tokens: int, topk_idx: Tensor, topk_weights: Tensor | None
) -> list[Tensor]:
    """Experts, weights, and numbers of tokens."""
    experts = topk_idx.float()
    weights = torch.zeros_like(experts) if topk_weights is None else topk_weights
    first = rank * num_max_tokens
    numbers = torch.arange(first, first + len(experts), device=experts.device)
    return [experts, weights, numbers.float()[:, None]]


def _ranks_of(topk_idx: Tensor, call: Call) -> Tensor:
    """int64 [num_tokens, num_ranks]: every rank that a token goes to, else -1."""
    ranks = torch.arange(call.num_ranks, device=topk_idx.device)
    owners = topk_idx // (call.num_experts // call.num_ranks)
    goes = (owners[:, :, None] == ranks).any(1)
    return torch.where(goes, ranks, -1)


def _found(call: Call, kind: Kind, beside: Tensor | None, routing: Any) -> Found:
    assert beside is not None
    if call.expands:
        num_tokens = call.num_ranks * call.num_max_tokens
        counts = routing.key_offsets, routing.key_counts
        return of_choices(beside, kind, call.rank, *counts, num_tokens)
    num_rows = None if call.syncs else routing.key_counts
    return of_tokens(beside, kind, call.rank, call.num_experts // call.num_ranks, num_rows)


def _handle(
    call: Call,
    kind: Kind,
    shuffle: Shuffle,
    routing: Any,
    found: Found,
    topk_idx: Tensor,
    route: Tensor,
) -> EPHandle:
    source = found.metadata[:, 0] // call.num_max_tokens
    ranks = torch.arange(call.num_ranks, device=source.device)
    per_rank = (source[:, None] == ranks).sum(0)
    aligned = -(-found.counts // call.alignment) * call.alignment
    ends = aligned.cumsum(0)
    if call.expands:
        ends = ends - aligned + found.counts
    return EPHandle(
        do_expand=call.expands,
        num_experts=call.num_experts,
        expert_alignment=call.alignment,
        num_max_tokens_per_rank=call.num_max_tokens,
        num_sms=call.num_sms,
        topk_idx=topk_idx.clone() if call.copies else topk_idx,
        num_recv_tokens=len(found.metadata),
        num_expanded_tokens=routing.num_slots if call.expands else 0,
        num_recv_tokens_per_expert_list=aligned.tolist() if call.syncs else [],
        psum_num_recv_tokens_per_scaleup_rank=per_rank.cumsum(0).int(),
        psum_num_recv_tokens_per_expert=ends.int(),
        num_unaligned_recv_tokens_per_expert=found.counts.int(),
        recv_src_metadata=found.metadata,
        dst_buffer_slot_idx=route,
        kind=kind,
        shuffle=shuffle,
        routing=routing,
        found=found,
    )


def _finished(call: Call, recv: Tokens, found: Found) -> Tokens:
    """Rows with padding as it was asked for, and scales stored so."""
    values, scales = recv if isinstance(recv, tuple) else (recv, None)
    if call.zeroes:
        values.view(torch.uint8).masked_fill_(~found.is_used[:, None], 0)
    if scales is None:
        return values
    if call.zeroes:
        scales = scales.masked_fill(~found.is_used[:, None], 0)
    if call.by_column:
        step = TMA_BYTES // scales.itemsize
        num, width = scales.shape
        stored = scales.new_zeros(width, -(-num // step) * step)
        stored[:, :num] = scales.T
        scales = stored.T[:num]
    return values, scales


def _typed(idx: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if idx is None else idx.to(dtype)
