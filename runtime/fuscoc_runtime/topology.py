"""Ranks, nodes and who forwards for whom."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from fuscoc_runtime.errors import TopologyError

MAX_RANKS = 1 << 16


@dataclass(frozen=True)
class Topology:
    """``num_nodes`` nodes of ``ranks_per_node`` ranks; rank = node * ranks_per_node + local rank.

    A node is one NVLink (scale-up) domain: its ranks address each other's memory.
    """

    num_nodes: int
    ranks_per_node: int

    def __post_init__(self) -> None:
        if self.num_nodes < 1 or self.ranks_per_node < 1:
            raise TopologyError(
                f"{self.num_nodes} nodes of {self.ranks_per_node} ranks: both must be at least 1"
            )
        if self.num_ranks > MAX_RANKS:
            raise TopologyError(
                f"{self.num_nodes} nodes of {self.ranks_per_node} ranks are more than "
                f"{MAX_RANKS} ranks"
            )

    @classmethod
    def parse(cls, text: str) -> Topology:
        """``"2x4"`` is two nodes of four ranks."""
        match = re.fullmatch(r"(\d+)x(\d+)", text.strip())
        if match is None:
            raise TopologyError(
                f"`{text}` is not a topology: write NODESxRANKS_PER_NODE, for example 2x4"
            )
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def from_hosts(cls, hosts: Sequence[Hashable]) -> Topology:
        """Discover nodes from the host id of every rank, in rank order.

        The ranks of a host must be consecutive and every host must have equally many.
        """
        if not hosts:
            raise TopologyError("there are no ranks")
        nodes = list(dict.fromkeys(hosts))
        ranks_per_node = hosts.count(nodes[0])
        for rank, host in enumerate(hosts):
            expected = rank // ranks_per_node
            if expected >= len(nodes) or host != nodes[expected]:
                raise TopologyError(
                    f"rank {rank} is on host {host!r}: ranks must be numbered host by host, "
                    f"{ranks_per_node} on each"
                )
        if len(hosts) != len(nodes) * ranks_per_node:
            raise TopologyError(
                f"host {nodes[-1]!r} has {hosts.count(nodes[-1])} ranks where "
                f"{nodes[0]!r} has {ranks_per_node}"
            )
        return cls(len(nodes), ranks_per_node)

    @property
    def num_ranks(self) -> int:
        return self.num_nodes * self.ranks_per_node

    def node(self, rank: int) -> int:
        return rank // self.ranks_per_node

    def local_rank(self, rank: int) -> int:
        return rank % self.ranks_per_node

    def node_ranks(self, node: int) -> range:
        """The ranks of a node, in order of their local rank."""
        return range(node * self.ranks_per_node, (node + 1) * self.ranks_per_node)

    def forwarder(self, source: int, node: int) -> int:
        """The rank of ``node`` that receives what ``source`` sends there: same local rank."""
        return node * self.ranks_per_node + self.local_rank(source)

    def __str__(self) -> str:
        return f"{self.num_nodes}x{self.ranks_per_node}"
