"""What moves over which wire, counted from the descriptor lists of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fuscoc_runtime.arrays import namespace, on_host
from fuscoc_runtime.plan.balance import same_local_rank
from fuscoc_runtime.plan.carry import landing_order
from fuscoc_runtime.plan.flows import Assignment, Demand, Int64Array
from fuscoc_runtime.plan.types import DescriptorList, RankPlan
from fuscoc_runtime.topology import Topology


@dataclass(frozen=True, eq=False)
class Traffic:
    """Segments by wire: int64 matrices, from rank (row) to rank (column) unless said otherwise.

    ``points``: live domain points, source -> destination: what is sent without deduplication.
    ``pairs``: NVLink copies after it, source -> destination, wherever they are written from.
    ``network``: network rows, sender -> forwarder; ``flows``: the same by source, and ``handed``:
    rows that a source hands to their sender over NVLink. ``nvlink``: copies that a source or a
    forwarder writes into a rank of its node for good; its own memory is the diagonal. ``local``
    [num_ranks]: copies that a destination makes of rows it has.
    """

    topology: Topology
    points: Int64Array
    pairs: Int64Array
    network: Int64Array
    flows: Int64Array
    handed: Int64Array
    nvlink: Int64Array
    local: Int64Array

    @classmethod
    def of(cls, topology: Topology, plans: Sequence[RankPlan]) -> Traffic:
        """Count the lists of all ranks, in rank order."""
        num_ranks, m = topology.num_ranks, topology.ranks_per_node
        pairs, nvlink, handed = (np.zeros((num_ranks, num_ranks), np.int64) for _ in range(3))
        flows = np.array([plan.flow_counts for plan in plans], np.int64)
        for plan in plans:
            mine = topology.node_ranks(topology.node(plan.rank))
            node = slice(mine.start, mine.stop)
            near = _count(_column(plan.lists["direct"], "dst_peer"), m)
            forward = plan.lists["forward"]
            landed = np.arange(num_ranks)
            if plan.wire.hands_over:
                landed = landing_order(topology, topology.local_rank(plan.rank))
                handed[plan.rank, node] = _count(_column(plan.lists["carry"], "dst_peer"), m)
            row_source = np.repeat(landed, flows[landed, plan.rank])
            pair = row_source[_column(forward, "src_row")] * m + _column(forward, "dst_peer")
            forwarded = _count(pair, num_ranks * m).reshape(num_ranks, m)
            pairs[plan.rank, node] += near
            pairs[:, node] += forwarded
            nvlink[plan.rank, node] = near + forwarded.sum(axis=0)
        return cls(
            topology,
            np.array([plan.point_send_counts for plan in plans], np.int64),
            pairs,
            np.array([plan.net_send_counts for plan in plans], np.int64),
            flows,
            handed,
            nvlink,
            np.array([len(plan.lists["local"]["dst_slot"]) for plan in plans], np.int64),
        )

    @property
    def demand(self) -> Demand:
        """What the network hop has to bring where, whoever forwards it."""
        return Demand(self.forwarders.share.sum(axis=2), self.pairs)

    @property
    def forwarders(self) -> Assignment:
        """How much of every flow each forwarder takes."""
        topology = self.topology
        shape = topology.num_ranks, topology.num_nodes, topology.ranks_per_node
        return Assignment(self.flows.reshape(shape), carried=bool(self.handed.any()))

    def unbalanced(self) -> Traffic:
        """The same copies when every source's forwarders have its own local rank."""
        n, m = self.topology.num_nodes, self.topology.ranks_per_node
        same = self._same_node()
        # Pairs from other nodes, [local rank of the source, node, local rank of the destination].
        forwarded = (self.pairs * ~same).reshape(n, m, n, m).sum(axis=0)
        nvlink = (self.pairs * same).reshape(n, m, n, m)
        node = np.arange(n)
        nvlink[node, :, node] += forwarded.transpose(1, 0, 2)
        network = same_local_rank(self.demand).pairs
        return replace(
            self,
            network=network,
            flows=network,
            handed=np.zeros_like(self.handed),
            nvlink=nvlink.reshape(self.pairs.shape),
        )

    def without_dedup(self) -> Traffic:
        """Every point a copy of its own, straight from its source over whichever wire."""
        same = self._same_node()
        return replace(
            self,
            pairs=self.points,
            network=self.points * ~same,
            flows=self.points * ~same,
            handed=np.zeros_like(self.handed),
            nvlink=self.points * same,
            local=np.zeros_like(self.local),
        )

    @property
    def nic_load(self) -> Int64Array:
        """int64 [num_ranks]: network rows in a NIC's busier direction."""
        return np.asarray(np.maximum(self.network.sum(axis=0), self.network.sum(axis=1)))

    @property
    def nvlink_rows(self) -> int:
        """Copies to their destinations that cross NVLink: not those into a rank's own memory."""
        return int(self.nvlink.sum() - np.trace(self.nvlink))

    def by_node(self, matrix: Int64Array) -> Int64Array:
        """A rank x rank matrix added up to int64 [num_nodes, num_nodes]."""
        n, m = self.topology.num_nodes, self.topology.ranks_per_node
        return np.asarray(matrix.reshape(n, m, n, m).sum(axis=(1, 3)))

    def _same_node(self) -> NDArray[np.bool_]:
        node = np.arange(self.topology.num_ranks) // self.topology.ranks_per_node
        return np.equal(node[:, None], node)


def copies_in_node(plan: RankPlan, local_rank: int) -> tuple[int, int, int]:
    """Rows that ``local_rank`` of a node stores into the memory of others for good, rows that it
    copies inside its own, and points that share a row which others stored here."""
    peers = [plan.lists[name]["dst_peer"] for name in ("direct", "forward")]
    written = namespace(peers[0]).concatenate(peers)
    elsewhere = int((written != local_rank).sum())
    shared = sum(
        int((group["term_end"] - group["term_begin"] - 1)[group["dst_peer"] != local_rank].sum())
        for group in (plan.lists["reduce_direct"], plan.lists["reduce_forward"])
    )
    return elsewhere, len(written) - elsewhere + len(plan.lists["local"]["dst_slot"]), shared


def _column(columns: DescriptorList, name: str) -> Int64Array:
    found: Int64Array = on_host(columns[name])
    return found


def _count(values: Int64Array, num_values: int) -> Int64Array:
    return np.bincount(values, minlength=num_values)
