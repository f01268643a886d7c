"""Routings of which some ranks send nearly everything to other nodes, and others nearly nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuscoc_runtime.reference import RankData
from fuscoc_runtime.topology import Topology

KEYS, HIDDEN = 12, 5


def skewed(
    topology: Topology, dtype: torch.dtype, tokens: Sequence[int], away: Sequence[float], seed: int
) -> list[RankData]:
    """Routings of ``tokens[rank]`` rows, of which about ``away[rank]`` leave the node."""
    per_node = KEYS // topology.num_nodes
    ranks = []
    for rank, (count, part) in enumerate(zip(tokens, away, strict=True)):
        generator = torch.Generator().manual_seed(seed * 100 + rank)
        hops = torch.randint(1, topology.num_nodes, (count,), generator=generator)
        hops *= torch.rand(count, generator=generator) < part
        node = (topology.node(rank) + hops) % topology.num_nodes
        key = torch.randint(per_node, (count, 2), generator=generator)
        x = torch.randn(count, HIDDEN, generator=generator).to(dtype)
        weights = torch.rand(count, 2, generator=generator)
        inputs = {"idx": node[:, None] * per_node + key, "weights": weights}
        ranks.append(RankData({"x": x}, inputs, {"tokens": count}))
    return ranks
