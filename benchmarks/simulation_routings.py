"""Routings like those that FUSCO's tables were measured with, as far as it describes them.

Real traffic is that of DeepSeek-V3, so its gate's limit on groups holds; its popularity of experts
is not published, and here all are alike. The imbalanced load is said to be bimodal by GPU, from no
data to send to all of it, and to differ by node (arXiv 2512.22036, section 5.2 and figure 10): here
half of the nodes send all tokens, and the others none; or half of all GPUs, as they are drawn.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fuscoc_runtime.topology import Topology

NUM_GROUPS, TOP_GROUPS = 8, 4
"""``n_group`` and ``topk_group`` of DeepSeek-V3's gate: a token's experts are of the 4 of 8 groups
with the largest sums of two scores (arXiv 2412.19437, section 2.1.2). On 8 nodes, each has one."""


def routing(
    kind: str, tokens: int, experts: int, topk: int, topology: Topology, rank: int, draw: int = 0
) -> Tensor:
    """``topk_idx`` of one rank, int64 [tokens of the rank, topk]; ``tokens``: the mean of ranks.
    ``kind``: ``real-world``, ``single-node``, ``imbalanced nodes`` or ``imbalanced GPUs``, of which
    ``draw`` says which ones are busy."""
    random = torch.Generator().manual_seed(1000 + rank)
    nodes = topology.num_nodes
    if kind == "imbalanced nodes":
        tokens = 2 * tokens if topology.node(rank) % 2 else 0
    elif kind == "imbalanced GPUs":
        order = torch.randperm(topology.num_ranks, generator=torch.Generator().manual_seed(draw))
        tokens = 2 * tokens if order[rank] % 2 else 0
    scores = torch.rand(tokens, experts, generator=random)
    if kind == "real-world":
        in_groups = scores.view(tokens, NUM_GROUPS, -1)
        best = in_groups.topk(2, dim=2).values.sum(dim=2).topk(TOP_GROUPS, dim=1).indices
        kept = torch.zeros(tokens, NUM_GROUPS, 1).scatter_(1, best[..., None], 1)
        scores = (in_groups * kept).view(tokens, experts)
    elif kind == "single-node":
        node_of_expert = torch.arange(experts) * nodes // experts
        chosen = torch.randint(nodes, (tokens, 1), generator=random)
        scores = torch.where(node_of_expert == chosen, scores, scores - 1)
    return scores.topk(topk, dim=1).indices
