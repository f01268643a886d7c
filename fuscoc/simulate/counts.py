"""How many segments go from where to where: exact, rank by rank, without any list.

A simulation needs bytes, not rows, so all that is kept of a rank's points are its counts; what they
count is what ``fuscoc_runtime/plan/hops.py`` lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fuscoc_runtime.manifest.program import Program
from fuscoc_runtime.plan.flows import Demand
from fuscoc_runtime.topology import Topology

Int64Array = NDArray[np.int64]


@dataclass(frozen=True)
class Sharing:
    """What a segment crosses once, however many of its points are there."""

    once_per_rank: bool
    once_per_node: bool

    @classmethod
    def of(cls, program: Program) -> Sharing:
        return cls(program.copies_once("rank"), program.copies_once("node"))


@dataclass(frozen=True, eq=False)
class Counts:
    """Segments, int64. From source rank to destination rank, [R, R]: ``points``, live points;
    ``pairs``, copies; ``shared``, those copies that two points or more share. ``flows`` [R, n]:
    rows over the network to every other node. ``sources`` [R]: segments that go anywhere;
    ``near`` [R]: those that go to their own node."""

    topology: Topology
    points: Int64Array
    pairs: Int64Array
    shared: Int64Array
    flows: Int64Array
    sources: Int64Array
    near: Int64Array

    @property
    def demand(self) -> Demand:
        """What has to cross the network, for the planner."""
        return Demand(np.ascontiguousarray(self.flows), np.ascontiguousarray(self.pairs))

    @property
    def same_node(self) -> NDArray[np.bool_]:
        """bool [R, R]: whether two ranks are of one node."""
        node = np.arange(self.topology.num_ranks) // self.topology.ranks_per_node
        return np.equal(node[:, None], node)


def count(
    destinations: Iterable[Int64Array], topology: Topology, sharings: Iterable[Sharing]
) -> dict[Sharing, Counts]:
    """Count the points of all ranks, for every one of ``sharings``.

    ``destinations``: by rank, [num_sources, fanout]: the rank of every point, negative if dropped.
    """
    num_ranks, num_nodes, m = topology.num_ranks, topology.num_nodes, topology.ranks_per_node
    found = {
        sharing: Counts(
            topology,
            points=np.zeros((num_ranks, num_ranks), np.int64),
            pairs=np.zeros((num_ranks, num_ranks), np.int64),
            shared=np.zeros((num_ranks, num_ranks), np.int64),
            flows=np.zeros((num_ranks, num_nodes), np.int64),
            sources=np.zeros(num_ranks, np.int64),
            near=np.zeros(num_ranks, np.int64),
        )
        for sharing in sharings
    }
    for rank, given in enumerate(destinations):
        ranks = np.sort(given, axis=1)  # dropped points, which are -1, come first
        live = ranks >= 0
        first = live.copy()
        first[:, 1:] &= ranks[:, 1:] != ranks[:, :-1]
        points = np.bincount(ranks[live], minlength=num_ranks)
        distinct = np.bincount(ranks[first], minlength=num_ranks)
        second = first[:, :-1] & live[:, 1:] & (ranks[:, 1:] == ranks[:, :-1])
        shared = np.bincount(ranks[:, :-1][second], minlength=num_ranks)
        nodes = ranks // m
        leads = first.copy()
        leads[:, 1:] &= (nodes[:, 1:] != nodes[:, :-1]) | ~live[:, :-1]
        per_node = np.bincount(nodes[leads], minlength=num_nodes)
        for sharing, counts in found.items():
            counts.points[rank] = points
            counts.pairs[rank] = distinct if sharing.once_per_rank else points
            counts.shared[rank] = shared if sharing.once_per_rank else 0
            counts.sources[rank] = live.any(axis=1).sum()
            counts.near[rank] = per_node[topology.node(rank)]
            rows = counts.pairs[rank].reshape(num_nodes, m).sum(axis=1)
            counts.flows[rank] = per_node if sharing.once_per_node else rows
            counts.flows[rank, topology.node(rank)] = 0
    return found
