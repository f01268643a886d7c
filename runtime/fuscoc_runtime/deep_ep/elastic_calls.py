"""Dispatch and combine of an ``ElasticBuffer``: a row for a token, or one for a choice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.deep_ep.back import Back, by_last_choice
from fuscoc_runtime.deep_ep.elastic_rows import Found, expanded, of_rows
from fuscoc_runtime.deep_ep.ep_handle import EPHandle
from fuscoc_runtime.deep_ep.normal import NUM_HANDLES, parts_of
from fuscoc_runtime.deep_ep.refusals import refusal
from fuscoc_runtime.deep_ep.rows import Kind, Tokens, kind_of, pack, unpack
from fuscoc_runtime.deep_ep.specs import Shuffles, check_fixed
from fuscoc_runtime.engine.row_kernels import add_rows, take_rows
from fuscoc_runtime.face.shuffle import Shuffle

TMA_BYTES = 16


@dataclass(frozen=True)
class Call:
    """What a dispatch was asked for.

    Attributes:
        copies: whether the handle keeps a copy of ``topk_idx``.
        syncs: whether the host waits to know how many rows there are.
        expands: whether a row is one for a choice.
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

    def aligned(self, counts: Tensor) -> Tensor:
        """Rows of experts, rounded up."""
        return -(-counts // self.alignment) * self.alignment

    def most_expanded(self, num_topk: int, num_local: int) -> int:
        """Rows of choices that a rank can get, as DeepEP counts them."""
        tokens = self.num_ranks * self.num_max_tokens
        most = tokens * min(num_topk, num_local) + (self.alignment - 1) * num_local
        return -(-most // self.alignment) * self.alignment


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
    limits = _limits(call)
    shuffle = call.shuffles.get(
        kind.spec, kind.constants(call.num_ranks), rows.device, call.num_sms, **limits
    )
    if limits:
        check_fixed(shuffle)
    route = _ranks_of(topk_idx, call)
    sent = _beside(call.rank, call.num_max_tokens, topk_idx, topk_weights)
    arrived, routing = shuffle.dispatch(**kind.rows(rows, *scales, *sent), rank_idx=route)
    received, beside = parts_of(arrived)
    assert beside is not None
    found = _found(call, kind, beside, routing)
    aligned = call.aligned(found.counts)
    per_expert = aligned.tolist() if call.syncs else []
    if call.expands:
        most = sum(per_expert) if call.syncs else call.most_expanded(kind.num_topk, len(aligned))
        found = expanded(found, aligned, most)
    handle = _handle(call, kind, shuffle, routing, found, topk_idx, route, per_expert)
    recv = _received(call, found, received, beside, x)
    idx, weights = _choices(call, found, topk_idx.dtype)
    return recv, idx, None if topk_weights is None else weights, handle


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
    assert beside is not None
    recv = _received(call, handle.found, received, beside, x)
    found = handle.found
    if topk_weights is not None:
        num_rows = handle.routing.key_counts if handle.limits else None
        again = of_rows(beside, kind, call.rank, len(found.counts), num_rows)
        found = replace(found, topk_weights=again.topk_weights)
    idx, weights = _choices(call, found, handle.topk_idx.dtype)
    return recv, idx, None if topk_weights is None else weights, handle


def combine(
    x: Tensor, handle: EPHandle, topk_weights: Tensor | None, biases: list[Tensor]
) -> tuple[Tensor, Tensor | None]:
    """See ``ElasticBuffer.combine``."""
    kind, found = handle.kind, handle.found
    num_rows = handle.routing.num_slots if found.source is None else len(found.source)
    wanted = torch.Size([num_rows, kind.hidden])
    if x.shape != wanted or x.dtype != torch.bfloat16:
        raise refusal(
            f"x is {x.dtype} of the shape {list(x.shape)}; it is torch.bfloat16 {list(wanted)}"
        )
    if topk_weights is not None:
        shape = (len(x),) if handle.do_expand else (len(x), kind.num_topk)
        if topk_weights.shape != shape:
            raise refusal(
                f"topk_weights have the shape {list(topk_weights.shape)}, not {list(shape)}"
            )
    if found.source is not None:
        x = add_rows(x, found.where)
        topk_weights = None if topk_weights is None else found.weights_of_rows(topk_weights)
    if biases:
        goes = handle.dst_buffer_slot_idx >= 0
        num_local = len(found.counts)
        order = by_last_choice(handle.topk_idx, goes.shape[1], num_local)
        limits = {"max_sources": len(x), "capacity": len(x)} if handle.limits else {}
        back = Back(handle.shuffles, goes, order, handle.num_sms, limits)
        return back.combine(x, topk_weights, biases)
    rows = kind.rows(x.contiguous(), *([] if topk_weights is None else [topk_weights]))
    result, sums = parts_of(handle.shuffle.combine(rows, handle.routing))
    if topk_weights is None or sums is None:
        return result, None
    return result, sums[:, : kind.num_topk].contiguous()


def _limits(call: Call) -> dict[str, int]:
    """Of memory of a fixed size, if the host is not to wait."""
    if call.syncs:
        return {}
    rows = call.num_ranks * call.num_max_tokens
    return {"max_sources": call.num_max_tokens, "num_handles": NUM_HANDLES, "capacity": rows}


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


def _found(call: Call, kind: Kind, beside: Tensor, routing: Any) -> Found:
    num_rows = None if call.syncs else routing.key_counts
    return of_rows(beside, kind, call.rank, call.num_experts // call.num_ranks, num_rows)


def _handle(
    call: Call,
    kind: Kind,
    shuffle: Shuffle,
    routing: Any,
    found: Found,
    topk_idx: Tensor,
    route: Tensor,
    per_expert: list[int],
) -> EPHandle:
    source = found.metadata[:, 0] // call.num_max_tokens
    ranks = torch.arange(call.num_ranks, device=source.device)
    per_rank = (source[:, None] == ranks).sum(0)
    aligned = call.aligned(found.counts)
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
        num_expanded_tokens=0 if found.source is None else len(found.source),
        num_recv_tokens_per_expert_list=per_expert,
        psum_num_recv_tokens_per_scaleup_rank=per_rank.cumsum(0).int(),
        psum_num_recv_tokens_per_expert=ends.int(),
        num_unaligned_recv_tokens_per_expert=found.counts.int(),
        recv_src_metadata=found.metadata,
        dst_buffer_slot_idx=route,
        kind=kind,
        limits=_limits(call),
        shuffles=call.shuffles,
        shuffle=shuffle,
        routing=routing,
        found=found,
    )


def _received(call: Call, found: Found, received: Tensor, beside: Tensor, like: Tokens) -> Tokens:
    """Rows in memory of their own, one for each choice if they are expanded, where padding is 0,
    and scales stored as was asked for."""
    if found.source is None:
        recv = unpack(received, beside, like)
    else:
        recv = take_rows(received, found.source)
        if isinstance(like, tuple):
            scales = beside[:, : like[1].shape[1]].contiguous().view(like[1].dtype)
            recv = recv, take_rows(scales, found.source)
    if not isinstance(recv, tuple) or not call.by_column:
        return recv
    values, scales = recv
    step = TMA_BYTES // scales.itemsize
    num, width = scales.shape
    stored = scales.new_zeros(width, -(-num // step) * step)
    stored[:, :num] = scales.T
    return values, stored.T[:num]


def _choices(call: Call, found: Found, dtype: torch.dtype) -> tuple[Tensor | None, Tensor]:
    """``recv_topk_idx`` and ``recv_topk_weights``."""
    if call.expands:
        return None, found.weights_of_choices(found.topk_weights)
    return found.topk_idx.to(dtype), found.topk_weights
