"""What has to cross the network, and which ranks carry it.

Amounts are segments, int64. ``n`` nodes of ``m`` ranks; rank = node * m + local rank. A *flow* is
what one source rank sends to one remote node, deduplicated: one copy of a segment, whatever the
number of its destinations there. Its rows are in the order in which the source lists them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]
Float64Array = NDArray[np.float64]

MAX_SEGMENTS = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Demand:
    """How many segments go where.

    ``flows[s, q]``: int64 [num_ranks, num_nodes], distinct segments from rank ``s`` to node ``q``;
    0 for its own node. ``copies[s, r]``: int64 [num_ranks, num_ranks], distinct segments from rank
    ``s`` to rank ``r``, own node included. Both are C-contiguous.

    Raises ValueError for other shapes, negative amounts, or more than ``MAX_SEGMENTS``.
    """

    flows: Int64Array
    copies: Int64Array

    def __post_init__(self) -> None:
        num_ranks, num_nodes = self.flows.shape
        if num_nodes == 0 or num_ranks % num_nodes or self.copies.shape != (num_ranks, num_ranks):
            raise ValueError(
                f"flows {self.flows.shape} and copies {self.copies.shape} must be "
                "[num_ranks, num_nodes] and [num_ranks, num_ranks] with equally large nodes"
            )
        for array in (self.flows, self.copies):
            if array.dtype != np.int64 or not array.flags.c_contiguous:
                raise ValueError("flows and copies must be C-contiguous int64 arrays")
            if array.min() < 0:
                raise ValueError("an amount of segments is negative")
            if array.sum() > MAX_SEGMENTS:
                raise ValueError(f"more than {MAX_SEGMENTS} segments; are these bytes?")

    def check(self) -> None:
        """Raise ValueError, naming the flow, if ``flows`` and ``copies`` contradict each other."""
        copies = self.copies.reshape(self.num_ranks, self.num_nodes, self.ranks_per_node)
        own = np.repeat(np.eye(self.num_nodes, dtype=np.int64), self.ranks_per_node, axis=0)
        least, most = copies.max(axis=2) * (1 - own), copies.sum(axis=2) * (1 - own)
        wrong = np.argwhere((self.flows < least) | (self.flows > most))
        if len(wrong):
            source, node = wrong[0]
            raise ValueError(
                f"the flow of rank {source} to node {node} is {self.flows[source, node]} segments; "
                f"it must be between {least[source, node]} and {most[source, node]}"
            )

    @classmethod
    def without_sharing(cls, copies: Int64Array, ranks_per_node: int) -> Demand:
        """Every segment has one destination rank (a plain all-to-all of ``copies``)."""
        num_ranks = len(copies)
        num_nodes = num_ranks // ranks_per_node
        flows = copies.reshape(num_ranks, num_nodes, ranks_per_node).sum(axis=2)
        flows[np.arange(num_ranks), np.arange(num_ranks) // ranks_per_node] = 0
        return cls(flows, np.ascontiguousarray(copies))

    @property
    def num_nodes(self) -> int:
        return int(self.flows.shape[1])

    @property
    def num_ranks(self) -> int:
        return int(self.flows.shape[0])

    @property
    def ranks_per_node(self) -> int:
        return self.num_ranks // self.num_nodes

    @property
    def node_flows(self) -> Int64Array:
        """int64 [num_nodes, num_nodes]: all that one node sends to another."""
        by_rank = self.flows.reshape(self.num_nodes, self.ranks_per_node, self.num_nodes)
        return np.asarray(by_rank.sum(axis=1))


@dataclass(frozen=True, eq=False)
class Assignment:
    """Who sends and who receives the rows of every flow.

    ``share[s, q, l]``: int64 [num_ranks, num_nodes, ranks_per_node], how many rows of flow
    (s -> q) local rank ``l`` of node ``q`` receives. They are consecutive: ``l`` takes the rows
    from ``share[s, q, :l].sum()`` on.
    ``carried``: they are sent by local rank ``l`` of the *source's* node, which got them over
    NVLink first (FAST's rebalancing); otherwise by ``s`` itself.
    """

    share: Int64Array
    carried: bool

    def __post_init__(self) -> None:
        if self.share.ndim != 3 or not self.share.flags.c_contiguous:
            raise ValueError("share must be a C-contiguous [num_ranks, num_nodes, m] array")

    @classmethod
    def summed(cls, share: Int64Array, carried: bool, pairs: Int64Array) -> Assignment:
        """One whose ``pairs`` somebody has summed up."""
        made = cls(share, carried)
        vars(made)["pairs"] = pairs  # where the property keeps them
        return made

    @property
    def ranks_per_node(self) -> int:
        return int(self.share.shape[2])

    @cached_property
    def pairs(self) -> Int64Array:
        """int64 [num_ranks, num_ranks]: rows that one rank sends to another over the network.

        The rows of a pair are ordered by (source rank, row order of the source), but those of the
        sender itself come first: nothing has to be handed over before they can leave.
        """
        num_ranks, num_nodes, m = self.share.shape
        if not self.carried:
            return self.share.reshape(num_ranks, num_ranks)
        carried = self.share.reshape(num_nodes, m, num_nodes, m).sum(axis=1)
        pairs = np.zeros((num_nodes, m, num_nodes, m), np.int64)
        local = np.arange(m)
        pairs[:, local, :, local] = carried.transpose(2, 0, 1)
        return pairs.reshape(num_ranks, num_ranks)

    @cached_property
    def handed(self) -> Int64Array:
        """int64 [num_ranks, num_ranks]: rows of a source that another rank of its node sends."""
        num_ranks, num_nodes, m = self.share.shape
        by_node = np.zeros((num_nodes, m, num_nodes, m), np.int64)
        if self.carried:
            node = np.arange(num_nodes)
            by_node[node, :, node] = self.share.sum(axis=1).reshape(num_nodes, m, m)
        handed = by_node.reshape(num_ranks, num_ranks)
        np.fill_diagonal(handed, 0)
        return handed

    @cached_property
    def hands_over(self) -> bool:
        """Whether any row is sent by another rank than its source."""
        return self.carried and bool(self.handed.any())

    def forwarder(self) -> Int64Array:
        """int64 [num_ranks, num_nodes]: the rank that receives a whole flow; -1 for empty flows.

        Raises ValueError if a flow is cut.
        """
        if ((self.share > 0).sum(axis=2) > 1).any():
            raise ValueError("a flow is cut: it has several forwarders")
        node = np.arange(self.share.shape[1])
        rank = node * self.ranks_per_node + self.share.argmax(axis=2)
        return np.where(self.share.any(axis=2), rank, -1)

    def tile(self) -> Int64Array:
        """int64 [num_nodes, num_nodes]: the most that one rank sends or receives of what node ``i``
        sends to node ``q``."""
        n, m = self.share.shape[1], self.ranks_per_node
        by_node = self.pairs.reshape(n, m, n, m)
        sent, received = by_node.sum(axis=3).max(axis=1), by_node.sum(axis=1).max(axis=2)
        return np.asarray(np.maximum(sent, received))

    def num_cuts(self) -> Int64Array:
        """int64 [num_nodes]: cuts inside flows, by destination node."""
        pieces = (self.share > 0).sum(axis=2)
        return np.asarray(np.maximum(pieces - 1, 0).sum(axis=0))


@dataclass(frozen=True, eq=False)
class Shares:
    """Who forwards how much, and who sends it.

    Network rows, int64 [R, R] on the host: ``rows`` by source rank and forwarder, ``sent`` by the
    rank that sends them and forwarder, which is ``assignment.pairs``.
    """

    demand: Demand
    assignment: Assignment
    sent: Int64Array

    @property
    def rows(self) -> Int64Array:
        num_ranks = self.demand.num_ranks
        return self.assignment.share.reshape(num_ranks, num_ranks)

    @property
    def hands_over(self) -> bool:
        """Whether ranks send rows for others of their node."""
        return self.assignment.hands_over
