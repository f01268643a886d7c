"""Routings like those that FUSCO's tables were measured with, as far as it describes them.

Its dispatcher takes as many tokens from every rank (``fusco/moe_dispatcher.py`` of its repository),
so loads of the network differ only by where tokens go. What a rank's tokens prefer hangs on its
*local index*, as if eight recorded traces were played on every node: that is what a balancer evens
out that beats groups of equal local index (arXiv 2512.22036, sections 3.4 and 5.4).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fuscoc_runtime.topology import Topology

NUM_GROUPS, TOP_GROUPS = 8, 4
"""``n_group`` and ``topk_group`` of DeepSeek-V3's gate: a token's experts are of the 4 of 8 groups
with the largest sums of two scores (arXiv 2412.19437, section 2.1.2). On 8 nodes, each has one."""
BUSY = (8, 7, 6, 5, 3, 2, 1, 0)
"""Ranks of the nodes, in some order, that send everything to other nodes where the load is
imbalanced; the others keep everything."""


@dataclass(frozen=True)
class Widths:
    """Of the log-normal weights of experts. ``preference``: those of a local index; ``popularity``:
    those of all ranks where the load is imbalanced. Both are chosen (docs/simulation.md)."""

    preference: float = 0.85
    popularity: float = 2.0


WIDTHS, EVEN = Widths(), Widths(0.0, 0.0)


def routing(
    kind: str,
    tokens: int,
    experts: int,
    topk: int,
    topology: Topology,
    rank: int,
    draw: int = 0,
    widths: Widths = WIDTHS,
) -> Tensor:
    """``topk_idx`` of one rank, int64 [tokens, topk], without replacement by the weights of its
    local index. ``draw`` says which weights these are.

    ``kind``: ``real-world``, with the gate's limit on groups; ``single-node``, all experts of a
    token on the node of its first; ``imbalanced``, with loads of the network that are bimodal by
    rank, "no data to send" or "all data needs to be sent to other nodes", and differ by node
    (arXiv 2512.22036, section 5.2 and figure 10).
    """
    random = torch.Generator().manual_seed(1000 * (draw + 1) + rank)
    shared = torch.Generator().manual_seed(draw)
    nodes, local = topology.num_nodes, rank % topology.ranks_per_node
    preferences = torch.randn(topology.ranks_per_node, experts, generator=shared)
    weights = (widths.preference * preferences[local]).exp()
    node_of_expert = torch.arange(experts) * nodes // experts
    if kind == "imbalanced":
        weights *= (widths.popularity * torch.randn(experts, generator=shared)).exp()
        is_near = node_of_expert == topology.node(rank)
        weights[is_near if _is_busy(topology, rank, shared) else ~is_near] = 0
    # The largest log(u) / w are weighted draws without replacement (Efraimidis and Spirakis).
    scores = torch.rand(tokens, experts, generator=random).log() / weights
    if kind == "real-world":
        in_groups = scores.view(tokens, NUM_GROUPS, -1)
        best = in_groups.topk(2, dim=2).values.exp().sum(dim=2).topk(TOP_GROUPS, dim=1).indices
        left_out = torch.ones(tokens, NUM_GROUPS, 1, dtype=torch.bool).scatter_(
            1, best[..., None], False
        )
        scores = in_groups.masked_fill(left_out, -torch.inf).view(tokens, experts)
    elif kind == "single-node":
        first = node_of_expert[scores.argmax(dim=1)]
        scores = scores.masked_fill(node_of_expert != first[:, None], -torch.inf)
    return scores.topk(topk, dim=1).indices


def _is_busy(topology: Topology, rank: int, shared: torch.Generator) -> bool:
    """Whether a rank sends: so many of a node's, in the same order on every node."""
    nodes = torch.randperm(topology.num_nodes, generator=shared)
    order = torch.randperm(topology.ranks_per_node, generator=shared)
    return bool(
        order[rank % topology.ranks_per_node] < torch.tensor(BUSY)[nodes[topology.node(rank)]]
    )
