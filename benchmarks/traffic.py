"""Synthetic all-to-all traffic between all ranks of a cluster, as FAST's evaluation uses it."""

from __future__ import annotations

import numpy as np

from fuscoc_runtime.plan.flows import Demand

LARGEST = 1024
"""The largest of the amounts that ``zipf`` draws, before they are scaled."""


def zipf(num_nodes: int, ranks_per_node: int, exponent: float, seed: int, mean: int) -> Demand:
    """Amounts of all pairs of ranks are drawn from a Zipf distribution of 1 to ``LARGEST``, and
    scaled to a mean: the probability of an amount ``k`` goes with ``k ** -exponent``. That is how
    FAST's evaluation makes its skewed traffic (arXiv 2505.09764, section 5, and its code)."""
    num_ranks = num_nodes * ranks_per_node
    sizes = np.arange(1, LARGEST + 1)
    odds = sizes**-exponent
    amounts = np.random.default_rng(seed).choice(sizes, (num_ranks, num_ranks), p=odds / odds.sum())
    np.fill_diagonal(amounts, 0)
    scale = mean * num_ranks * (num_ranks - 1) / amounts.sum()
    return Demand.without_sharing((amounts * scale).astype(np.int64), ranks_per_node)


def uniform(num_nodes: int, ranks_per_node: int, seed: int, mean: int) -> Demand:
    num_ranks = num_nodes * ranks_per_node
    amounts = np.random.default_rng(seed).integers(0, 2 * mean + 1, (num_ranks, num_ranks))
    return Demand.without_sharing(amounts, ranks_per_node)


def even(num_nodes: int, ranks_per_node: int, amount: int) -> Demand:
    """The same from every rank to every other one."""
    amounts = np.full((num_nodes * ranks_per_node,) * 2, amount)
    np.fill_diagonal(amounts, 0)
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
