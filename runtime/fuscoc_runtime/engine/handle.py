"""What a dispatch leaves behind: everything that combine, or a curious user, needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from fuscoc_runtime.plan import RankPlan
from fuscoc_runtime.topology import Topology


@dataclass(frozen=True)
class HopStats:
    """Segment rows that one rank moved over one kind of hop.

    ``saved_rows``: further rows that the same relation needs there without deduplication.
    """

    rows: int
    saved_rows: int
    row_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.rows * self.row_bytes

    @property
    def saved_bytes(self) -> int:
        return self.saved_rows * self.row_bytes


@dataclass(frozen=True)
class DispatchStats:
    """What one rank's dispatch did.

    ``network``: rows sent to other nodes. ``nvlink``: rows stored into other ranks of the node, as
    source or as forwarder; its ``saved_rows`` are those that this rank, as destination, copied
    from its own memory instead. ``local``: rows copied inside this rank's memory.
    ``planning_ms``: host time from the call to the finished plan.
    """

    network: HopStats
    nvlink: HopStats
    local: HopStats
    planning_ms: float

    def __str__(self) -> str:
        return (
            f"network {self.network.rows} rows (saved {self.network.saved_rows}), "
            f"NVLink {self.nvlink.rows} (saved {self.nvlink.saved_rows}), "
            f"local {self.local.rows}, planned in {self.planning_ms:.2f} ms"
        )


@dataclass(frozen=True, eq=False)
class Handle:
    """The routing of one dispatch, to be combined any number of times.

    Attributes:
        num_slots: rows that dispatch returned on this rank, padding included.
        keys: int64 [num_local_keys], the keys of a packed target that live here, ascending.
        key_counts: int64 [num_local_keys], rows of each.
        key_offsets: int64 [num_local_keys + 1], first slot of each; the last is ``num_slots``.
        extents: run-time extents of this rank.
        source_shapes: shape of every source field.
        weights: the weight input if it was given at dispatch, by name.
        owner, number: which shuffle on this rank made it, and in which of its dispatches.
    """

    plan: RankPlan
    topology: Topology
    extents: Mapping[str, int]
    source_shapes: Mapping[str, torch.Size]
    row_bytes: int
    planning_ms: float
    owner: object
    number: int
    weights: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def num_slots(self) -> int:
        return self.plan.rows.target

    @property
    def keys(self) -> Tensor:
        return self.plan.keys

    @property
    def key_counts(self) -> Tensor:
        return self.plan.key_counts

    @property
    def key_offsets(self) -> Tensor:
        return self.plan.key_offsets

    @cached_property
    def stats(self) -> DispatchStats:
        """Counted when first asked for: it reads device memory."""
        return _count(self)

    def __repr__(self) -> str:
        return (
            f"<Handle of rank {self.plan.rank} of {self.topology}: {self.num_slots} slots, "
            f"{len(self.keys)} keys; {self.stats}>"
        )


def _count(handle: Handle) -> DispatchStats:
    plan, topology = handle.plan, handle.topology
    here = topology.local_rank(plan.rank)
    near = topology.node_ranks(topology.node(plan.rank))
    remote_points = sum(
        count for rank, count in enumerate(plan.point_send_counts) if rank not in near
    )
    network_rows = sum(plan.net_send_counts)

    written = torch.cat([plan.lists[name]["dst_peer"] for name in ("direct", "forward")])
    nvlink_rows = int((written != here).sum())
    duplicated = sum(
        int((group["term_end"] - group["term_begin"] - 1)[group["dst_peer"] != here].sum())
        for group in (plan.lists["reduce_direct"], plan.lists["reduce_forward"])
    )
    local_rows = len(written) - nvlink_rows + len(plan.lists["local"]["dst_slot"])

    size = handle.row_bytes
    return DispatchStats(
        network=HopStats(network_rows, remote_points - network_rows, size),
        nvlink=HopStats(nvlink_rows, duplicated, size),
        local=HopStats(local_rows, 0, size),
        planning_ms=handle.planning_ms,
    )
