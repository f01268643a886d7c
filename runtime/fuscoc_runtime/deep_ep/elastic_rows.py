"""What can be read off rows that have come: whose they are, and where those of a token lie."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fuscoc_runtime.deep_ep.normal import localised
from fuscoc_runtime.deep_ep.rows import Kind


@dataclass(frozen=True)
class Found:
    """What is known of rows; see ``EPHandle``.

    Attributes:
        topk_idx: [n, topk], local experts of every row; None of expanded ones.
        topk_weights: [n, topk]; of expanded rows [n], each its own.
        choice: [n, 1], of expanded rows which choice of its token each is; else None.
        is_used: bool [n], whether something has come there.
        counts: int64 [num_local_experts].
        metadata: int32 [num_tokens, 2 + topk]: the token's number, -1, and of expanded rows where
            the row of every choice is, else -1.
    """

    topk_idx: Tensor | None
    topk_weights: Tensor
    choice: Tensor | None
    is_used: Tensor
    counts: Tensor
    metadata: Tensor


def of_tokens(
    beside: Tensor, kind: Kind, rank: int, num_local: int, num_rows: Tensor | None
) -> Found:
    """Of rows that are one for a token: the first ``num_rows``, or all."""
    rows = torch.arange(len(beside), device=beside.device)
    is_used = rows < (len(beside) if num_rows is None else num_rows)
    gates = beside[:, kind.num_scales : kind.num_scales + 2 * kind.num_topk]
    idx, weights = localised(gates, num_rows, rank * num_local, num_local, torch.int64)
    counts = torch.zeros(num_local + 1, dtype=torch.int64, device=beside.device)
    counts.scatter_add_(0, (idx + 1).view(-1), torch.ones_like(idx).view(-1))
    metadata = torch.full((len(beside), 2 + kind.num_topk), -1, device=beside.device)
    metadata[:, 0] = torch.where(is_used, beside[:, -1], -1)
    return Found(idx, weights, None, is_used, counts[1:], metadata.int())


def of_choices(
    beside: Tensor, kind: Kind, rank: int, offsets: Tensor, counts: Tensor, num_tokens: int
) -> Found:
    """Of rows that are one for a choice: expert i's are ``counts[i]`` from ``offsets[i]`` on.
    Tokens are numbered below ``num_tokens``. The host waits for how many have come."""
    rows = torch.arange(len(beside), device=beside.device)
    expert = torch.searchsorted(offsets[1:], rows, right=True).clamp(max=len(counts) - 1)
    is_used = rows - offsets[expert] < counts[expert]
    at = kind.num_scales
    experts = beside[:, at : at + kind.num_topk]
    weights = beside[:, at + kind.num_topk : at + 2 * kind.num_topk]
    hits = experts == (rank * len(counts) + expert)[:, None]
    choice = hits.int().argmax(1, keepdim=True)
    own = torch.where(is_used, weights.gather(1, choice)[:, 0], 0)
    token = torch.where(is_used, beside[:, -1], num_tokens).long()
    where = torch.full((num_tokens + 1, kind.num_topk), -1, device=beside.device)
    where[token, choice[:, 0]] = rows
    where[num_tokens] = -1
    present = (where >= 0).any(1).nonzero()
    metadata = torch.cat([present, torch.full_like(present, -1), where[present[:, 0]]], dim=1)
    return Found(None, own, choice, is_used, counts, metadata.int())
