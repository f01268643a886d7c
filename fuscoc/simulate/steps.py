"""What the steps of a path put on the links of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuscoc.simulate.amounts import Amounts
from fuscoc.simulate.clusters import Cluster
from fuscoc.simulate.hop import Slices
from fuscoc.simulate.tasks import Builder
from fuscoc_runtime.manifest.program import LaunchStep, Program
from fuscoc_runtime.plan.links import row_bytes

Float64Array = NDArray[np.float64]
Int64Array = NDArray[np.int64]


@dataclass(frozen=True)
class Wires:
    """Puts rows on links, as ``Cluster.links`` numbers them."""

    cluster: Cluster
    program: Program
    builder: Builder

    def hbm(self, tasks: Int64Array, rank: Int64Array, num_bytes: Float64Array) -> None:
        """Bytes read or written in the memory of ranks."""
        self.builder.demand(tasks, rank, num_bytes)

    def nvlink(
        self, tasks: Int64Array, rank: Int64Array, peer: Int64Array, num_bytes: Float64Array
    ) -> None:
        """Bytes from ranks to others of their node; nothing if they are the same."""
        ranks = self.cluster.num_ranks
        away = rank != peer
        for links in (ranks + rank, 2 * ranks + peer):
            self.builder.demand(tasks[away], links[away], num_bytes[away])

    def network(
        self, tasks: Int64Array, sender: Int64Array, receiver: Int64Array, num_bytes: Float64Array
    ) -> None:
        """Bytes between nodes: NICs, the memory that they read and write, and switches."""
        cluster, demand = self.cluster, self.builder.demand
        ranks = cluster.num_ranks
        self.hbm(tasks, sender, num_bytes)
        self.hbm(tasks, receiver, num_bytes)
        demand(tasks, 3 * ranks + sender, num_bytes)
        demand(tasks, 4 * ranks + receiver, num_bytes)
        if leaves := cluster.num_leaves:
            up, down = cluster.leaf(sender), cluster.leaf(receiver)
            away = up != down
            first = 5 * ranks
            over = tasks[away], num_bytes[away]
            demand(over[0], first + up[away], over[1])
            demand(over[0], first + leaves + down[away], over[1])
            demand(over[0], np.full(len(over[0]), first + 2 * leaves), over[1])

    def copies(self, step: LaunchStep, tasks: Int64Array, amounts: Amounts) -> None:
        """A launch: ``tasks`` are those of the amounts, one each. Rows of the source that it sends
        to several ranks are read once: what comes behind finds them in the cache."""
        read = amounts.terms * self.row_bytes(step.src)
        written = amounts.entries * self.row_bytes(step.dst)
        self.hbm(tasks, amounts.rank, read)
        self.hbm(tasks, amounts.peer, written)
        self.nvlink(tasks, amounts.rank, amounts.peer, written)

    def operator(
        self,
        name: str,
        after: Int64Array,
        read: NDArray[Any],
        written: NDArray[Any],
        part: float,
    ) -> Int64Array:
        """Every rank for itself, at a ``part`` of the memory's rate; its tasks, [R]."""
        ranks, costs = np.arange(self.cluster.num_ranks), self.cluster.costs
        ids = self.builder.add(ranks, "operator", (name,), costs.collective)
        self.builder.after(after, ids)
        self.hbm(ids, ranks, (read + written) / part)
        return ids

    def slice_bytes(self, ring: str, slices: Slices) -> Float64Array:
        return np.asarray(slices.rows * float(self.row_bytes(ring)))

    def row_bytes(self, buffer: str) -> int:
        """Of all fields of a buffer's rows; of one that a program lacks 0."""
        return row_bytes(self.program.buffers.get(buffer, ()))
