"""What a shuffle did, in numbers: rows and bytes by hop, deduplication, load, time, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuscoc_runtime.engine.handle import Handle, HopStats
from fuscoc_runtime.engine.into import Into
from fuscoc_runtime.engine.node.exact_handle import ExactHandle
from fuscoc_runtime.engine.node.exact_rails import ExactRails
from fuscoc_runtime.engine.node.flow_rails import FlowKnown
from fuscoc_runtime.engine.node.handle import NodeHandle
from fuscoc_runtime.engine.node.ragged import RaggedSizes
from fuscoc_runtime.engine.node.rails import RailNode
from fuscoc_runtime.engine.node.rings import Launched
from fuscoc_runtime.engine.observer import Tally
from fuscoc_runtime.plan.links import Link
from fuscoc_runtime.room import num_slot_bits, room_for
from fuscoc_runtime.topology import Topology


@dataclass(frozen=True)
class ShuffleStats:
    """One rank's latest dispatch.

    Attributes:
        num_sources: source segments of this rank.
        num_rows: rows that it received, without padding.
        num_slots: rows that its target has.
        network, nvlink, local: segment rows that this rank moved over every kind of hop, and how
            many more the same relation needs there without deduplication.
        carried: rows that it handed to other ranks of its node, over NVLink, for them to send.
        rows_to_rank: its points for every rank; of fixed capacity between nodes those that found no
            slot there, too.
        rows_of_key: rows of every key that lives here, by key.
        planning_ms: host time from the call to the finished plan; 0 where kernels plan.
        dispatch_ms, combine_ms: host time of the latest calls. With kernels of fixed capacity that
            is the time to enqueue them; where autograd or a compiler made the call, its operator's.
        num_dispatches, num_combines: calls so far.
        num_rounds: exchanges in which its rows crossed the network; 0 inside one node. Of fixed
            capacity there are several only if ``max_sources`` rows are large.
        into: parts of rows that it copied from its window into memory of the caller's; ``None``
            where the spec has none go there.
        link: what the network was measured to do when the shuffle was opened; ``None`` where it was
            not.
        nodes: how the nodes were found when it was opened: as given, by NVLink domains, or by hosts
            and why not by domains.
    """

    num_sources: int
    num_rows: int
    num_slots: int
    network: HopStats
    carried: HopStats
    nvlink: HopStats
    local: HopStats
    rows_to_rank: tuple[int, ...]
    rows_of_key: dict[int, int]
    planning_ms: float
    dispatch_ms: float
    combine_ms: float
    num_dispatches: int
    num_combines: int
    num_rounds: int
    into: HopStats | None
    link: Link | None
    nodes: str

    @property
    def dedup_ratio(self) -> float:
        """The part of the rows that deduplication kept off the wires, network and NVLink."""
        saved = self.network.saved_rows + self.nvlink.saved_rows
        sent = self.network.rows + self.nvlink.rows
        return saved / (saved + sent) if saved else 0.0

    @property
    def key_imbalance(self) -> float:
        """The rows of the busiest key here over the mean; 1 is even."""
        rows = self.rows_of_key.values()
        return max(rows) * len(rows) / sum(rows) if any(rows) else 1.0

    def __str__(self) -> str:
        hops = [("network", self.network), ("NVLink", self.nvlink), ("local", self.local)]
        if self.carried.rows:
            hops.insert(1, ("handed over", self.carried))
        if self.into is not None:
            hops.append(("into memory of the caller's", self.into))
        moved = ", ".join(f"{name} {hop.rows} rows ({hop.num_bytes} B)" for name, hop in hops)
        rounds = f"; network in {self.num_rounds} rounds" if self.num_rounds else ""
        link = f"; the network carries {self.link}" if self.link is not None else ""
        return (
            f"{self.num_sources} segments to {sum(self.rows_to_rank)} slots; {moved}{rounds}; "
            f"deduplication saved {self.dedup_ratio:.0%}; received {self.num_rows} rows in "
            f"{self.num_slots} slots, busiest key {self.key_imbalance:.2f} of the mean; dispatch "
            f"{self.dispatch_ms:.2f} ms, combine {self.combine_ms:.2f} ms{link}"
        )


@dataclass(frozen=True)
class Memory:
    """Bytes that one rank of a shuffle holds, or several shuffles that share a pool.

    Attributes:
        window_bytes: memory that its peers can address. With ``max_sources`` it never changes; else
            it follows the largest batch so far, and is at most a quarter more than that needs.
        private_bytes: its tables.
    """

    window_bytes: int
    private_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.window_bytes + self.private_bytes


def shuffle_stats(tally: Tally, into: Into | None = None) -> ShuffleStats | None:
    """Reads device memory, so it waits for the dispatch; None before the first one."""
    if tally.handle is None:
        return None
    counted = _count if isinstance(tally.handle, Handle) else _count_node
    keys, counts = tally.handle.keys.tolist(), tally.handle.key_counts.tolist()
    return ShuffleStats(
        **counted(tally.handle),
        num_slots=tally.handle.num_slots,
        rows_of_key=dict(zip(keys, counts, strict=True)),
        dispatch_ms=tally.dispatch_ms,
        combine_ms=tally.combine_ms,
        num_dispatches=tally.num_dispatches,
        num_combines=tally.num_combines,
        into=_put_by(into) if into is not None else None,
        link=tally.link,
        nodes=tally.nodes,
    )


def _put_by(into: Into) -> HopStats:
    num_parts = 0 if into.latest is None else int((into.latest >= 0).sum())
    return HopStats(num_parts, 0, into.part_bytes)


def _count(handle: Handle) -> dict[str, Any]:
    plan, stats = handle.plan, handle.stats
    return {
        "num_sources": plan.num_sources,
        "num_rows": sum(plan.point_recv_counts),
        "network": stats.network,
        "carried": stats.carried,
        "nvlink": stats.nvlink,
        "local": stats.local,
        "rows_to_rank": plan.point_send_counts,
        "planning_ms": handle.planning_ms,
        "num_rounds": plan.wire.num_stages,
    }


def _count_node(handle: NodeHandle | ExactHandle) -> dict[str, Any]:
    launched, members = handle.launched, handle.engine.members
    topology, node = members.topology, handle.engine.node
    num_sources, points, pairs, to_nodes = _pairs(launched, topology)
    filled = launched.filled if launched.has_given_slots else handle.key_counts
    received = int(filled.sum())
    near = topology.node_ranks(topology.node(members.rank))
    in_node, at = slice(near.start, near.stop), topology.local_rank(members.rank)
    remote = _without(pairs[in_node], at)
    row_bytes = sum(rows.shape[1] * rows.element_size() for rows in node.rows)
    ways = None
    if isinstance(handle, ExactHandle) and isinstance(handle.known, FlowKnown):
        ways = handle.known.going.ways
    own = (points if launched.row_index is None else pairs)[members.rank]
    crossing = _without(to_nodes, topology.node(members.rank))
    far = sum(points) - sum(points[in_node])
    return {
        "num_sources": num_sources,
        "num_rows": received,
        "network": HopStats(crossing, far - crossing, row_bytes),
        "carried": HopStats(0 if ways is None else ways.handed_over, 0, row_bytes),
        "nvlink": HopStats(remote, _without(points[in_node], at) - remote, row_bytes),
        "local": HopStats(own, 0, row_bytes),
        "rows_to_rank": tuple(points),
        "planning_ms": 0.0,
        "num_rounds": node.num_rounds if isinstance(node, RailNode | ExactRails) else 0,
    }


def _pairs(launched: Launched, topology: Topology) -> tuple[int, list[int], list[int], list[int]]:
    """Segments; by rank how many points they have there, and how many of them some; the latter by
    node, too."""
    fanout, num_ranks = launched.codes.shape[1], topology.num_ranks
    if launched.moved is not None:
        _, num_points, *points = launched.moved.tolist()
        return num_points // fanout, points[:num_ranks], points[:num_ranks], [0]
    sent = launched.sent
    num_sources = launched.num_sources if sent is None else sent.num_sources
    if isinstance(launched.ragged, RaggedSizes):
        num_sources = int(launched.ragged.totals[0]) // fanout
    if sent is None:
        codes = launched.codes[:num_sources]  # rank and slot
        bits = num_slot_bits(room_for(num_ranks))  # of one node
        ranks = torch.where(codes >= 0, codes >> bits, num_ranks).long()
    else:
        ranks = sent.ranks[:num_sources]
        ranks = torch.where(ranks >= 0, ranks, num_ranks)
    per_source = torch.nn.functional.one_hot(ranks, num_ranks + 1).sum(1)[:, :-1]
    goes = per_source > 0
    to_nodes = goes.view(len(goes), topology.num_nodes, topology.ranks_per_node).any(2)
    points, pairs = per_source.sum(0).tolist(), goes.sum(0).tolist()
    return num_sources, points, pairs, to_nodes.sum(0).tolist()


def _without(values: Sequence[int], position: int) -> int:
    return sum(values) - values[position]
