"""What can be read off rows that have come: whose they are, and where their choices go."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fuscoc_runtime.deep_ep.normal import localised
from fuscoc_runtime.deep_ep.rows import Kind
from fuscoc_runtime.engine.row_kernels import take_rows


@dataclass(frozen=True)
class Found:
    """What is known of rows; see ``EPHandle``.

    Attributes:
        topk_idx: int64 [n, topk], local experts of every row, -1 for those of other ranks.
        topk_weights: f32 [n, topk], 0 for those of other ranks.
        counts: int64 [num_local_experts], choices of this rank's experts.
        metadata: int32 [n, 2 + topk]: the token's number, -1 where there is none; -1; and where
            rows are expanded the row of every choice, else -1.
        source: int64 [num_expanded], the row that every expanded row is made of, -1 for padding;
            None where rows are not expanded.
    """

    topk_idx: Tensor
    topk_weights: Tensor
    counts: Tensor
    metadata: Tensor
    source: Tensor | None = None

    @property
    def where(self) -> Tensor:
        """int64 [n, topk]: the expanded row of every choice, -1 for none."""
        return self.metadata[:, 2:].long()

    def weights_of_choices(self, weights: Tensor) -> Tensor:
        """[num_expanded] of weights [n, topk]; 0 in padding."""
        assert self.source is not None
        where, behind = self.where, len(self.source)
        own = weights.new_zeros(behind + 1)
        own[torch.where(where >= 0, where, behind)] = weights
        return own[:-1]

    def weights_of_rows(self, weights: Tensor) -> Tensor:
        """[n, topk] of weights [num_expanded]; 0 where there is no choice."""
        where = self.where
        return take_rows(weights[:, None], where.view(-1)).view(where.shape)


def of_rows(
    beside: Tensor, kind: Kind, rank: int, num_local: int, num_rows: Tensor | None
) -> Found:
    """Of the first ``num_rows`` rows, or all: nothing waits for a GPU."""
    rows = torch.arange(len(beside), device=beside.device)
    is_used = rows < (len(beside) if num_rows is None else num_rows)
    gates = beside[:, kind.num_scales : kind.num_scales + 2 * kind.num_topk]
    idx, weights = localised(gates, num_rows, rank * num_local, num_local, torch.int64)
    counts = torch.zeros(num_local + 1, dtype=torch.int64, device=beside.device)
    counts.scatter_add_(0, (idx + 1).view(-1), torch.ones_like(idx).view(-1))
    metadata = torch.full((len(beside), 2 + kind.num_topk), -1, device=beside.device)
    metadata[:, 0] = torch.where(is_used, beside[:, -1], -1)
    return Found(idx, weights, counts[1:], metadata.int())


def expanded(found: Found, aligned: Tensor, num_expanded: int) -> Found:
    """With a row for every choice, by expert, then row: expert i has room for ``aligned[i]``."""
    num, topk = found.topk_idx.shape
    num_local, device = len(found.counts), found.counts.device
    choices = torch.where(found.topk_idx >= 0, found.topk_idx, num_local).view(-1)
    by_expert, order = choices.sort(stable=True)
    among = torch.arange(len(order), device=device)
    # Where an expert's choices begin among all, and its rows; then those that are of no expert.
    first = torch.cat([found.counts, aligned]).view(2, -1).cumsum(1)
    first = torch.cat([first.new_zeros(2, 1), first], dim=1)
    row = torch.where(by_expert < num_local, (first[1] - first[0])[by_expert] + among, -1)
    where = torch.empty_like(order)
    where[order] = row
    source = torch.full((num_expanded + 1,), -1, device=device)
    source[torch.where(where >= 0, where, num_expanded)] = (
        torch.arange(num * topk, device=device) // topk
    )
    metadata = found.metadata.clone()
    metadata[:, 2:] = where.view(num, topk).int()
    return Found(found.topk_idx, found.topk_weights, found.counts, metadata, source[:-1])
