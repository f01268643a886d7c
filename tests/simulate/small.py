"""Small shuffles, clusters and counts to simulate."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from fuscoc.planning.command import open_shuffle
from fuscoc.simulate.clusters import Cluster, load_cluster
from fuscoc.simulate.contenders import Contender, Rewrite, contender
from fuscoc.simulate.counts import Counts, Sharing, count
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.topology import Topology
from tests.engine.specs import artifact, routed

KEYS, TOPK = 24, 3


@cache
def opened(options: str = "dedup(node, rank)", hidden: int = 512) -> tuple[ShuffleSpec, Any]:
    """A routed shuffle and its module."""
    text = routed("bf16", hidden, KEYS, TOPK, options=options)
    return open_shuffle(artifact(text).path, None, {})


@cache
def made(rewrite: Rewrite) -> Contender:
    return contender("", rewrite, opened()[1])


def cluster(nodes: int, ranks: int, **changes: Any) -> Cluster:
    """A cluster of the package, of another size and with other rates."""
    return replace(load_cluster("h100-8x8-roce"), nodes=nodes, ranks_per_node=ranks, **changes)


def destinations(topology: Topology, tokens: int, seed: int) -> list[np.ndarray[Any, Any]]:
    """Random ranks of every point, some of them dropped, with more for some ranks than others."""
    random = np.random.default_rng(seed)
    weight = random.random(topology.num_ranks) ** 3 + 1e-3
    shape = tokens, TOPK
    found = []
    for _ in range(topology.num_ranks):
        ranks = random.choice(topology.num_ranks, shape, p=weight / weight.sum())
        found.append(np.where(random.random(shape) < 0.1, -1, ranks))
    return found


def counted(which: Contender, topology: Topology, tokens: int, seed: int) -> Counts:
    sharing = Sharing.of(which.program)
    return count(destinations(topology, tokens, seed), topology, [sharing])[sharing]
