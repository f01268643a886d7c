"""Synthetic all-to-all traffic between all ranks of a cluster, as FAST's evaluation uses it."""

from __future__ import annotations

import numpy as np

from fuscoc_runtime.plan.flows import Demand


def zipf(num_nodes: int, ranks_per_node: int, exponent: float, seed: int, mean: int) -> Demand:
    """Amounts of all pairs of ranks follow a Zipf distribution, in random order."""
    num_ranks = num_nodes * ranks_per_node
    amounts = np.arange(1, num_ranks**2 + 1) ** -exponent
    amounts = np.random.default_rng(seed).permutation(amounts / amounts.mean() * mean)
    return Demand.without_sharing(
        amounts.astype(np.int64).reshape(num_ranks, num_ranks), ranks_per_node
    )


def uniform(num_nodes: int, ranks_per_node: int, seed: int, mean: int) -> Demand:
    num_ranks = num_nodes * ranks_per_node
    amounts = np.random.default_rng(seed).integers(0, 2 * mean + 1, (num_ranks, num_ranks))
    return Demand.without_sharing(amounts, ranks_per_node)


def one_to_one(num_nodes: int, ranks_per_node: int, amount: int) -> Demand:
    """FAST's adversary (appendix A): of every node one rank has all the data, and another one
    wants it. What stays inside a node is the mean of what leaves it for one node."""
    num_ranks = num_nodes * ranks_per_node
    amounts = np.zeros((num_ranks, num_ranks), np.int64)
    amounts[::ranks_per_node, ranks_per_node - 1 :: ranks_per_node] = amount
    first = np.arange(0, num_ranks, ranks_per_node)
    amounts[first, first + ranks_per_node - 1] = amount * (num_nodes - 1) // num_nodes
    return Demand.without_sharing(amounts, ranks_per_node)
