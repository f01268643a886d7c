"""Routings like those that FUSCO's tables were measured with, as far as it describes them.

Its imbalanced load is bimodal by rank, from nothing to send to all of it (arXiv 2512.22036, figure
10). No senders' loads can explain that NCCL takes 2.4 times as long as with its real traffic, most
of which leaves the node anyway: ranks must also receive unequally. So what leaves goes to experts
of Zipf popularity, whose exponent is chosen on one cell of the table.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fuscoc_runtime.topology import Topology

BUSY, IDLE = 0.95, 0.05
"""The parts of its tokens that a rank sends away."""


def routing(
    kind: str, tokens: int, experts: int, topk: int, exponent: float, topology: Topology, rank: int
) -> Tensor:
    """``topk_idx`` of one rank, int64 [tokens, topk]. ``kind``: ``real-world``, ``single-node`` or
    ``imbalanced``; ``exponent`` is of the last."""
    random = torch.Generator().manual_seed(1000 + rank)
    scores = torch.rand(tokens, experts, generator=random)
    nodes = topology.num_nodes
    node_of_expert = torch.arange(experts) * nodes // experts
    if kind == "single-node":
        chosen = torch.randint(nodes, (tokens, 1), generator=random)
        scores = torch.where(node_of_expert == chosen, scores, scores - 1)
    elif kind == "imbalanced":
        order = torch.randperm(experts, generator=torch.Generator().manual_seed(11))
        popularity = -exponent * (order + 1.0).log()
        scores = popularity - (-scores.clamp(1e-9, 1 - 1e-9).log()).log()  # Gumbel top-k
        busy = torch.rand(1, generator=torch.Generator().manual_seed(rank)) < 0.5
        leaves = torch.rand(tokens, 1, generator=random) < (BUSY if busy else IDLE)
        mine = node_of_expert == topology.node(rank)
        scores = torch.where(mine == leaves, scores - 100, scores)
    return scores.topk(topk, dim=1).indices
