"""What goes into a rank's plan and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from fuscoc_runtime.arrays import Array, array_on, on_host
from fuscoc_runtime.manifest.program import Program
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan.cost import CostModel
from fuscoc_runtime.plan.links import network_row_bytes
from fuscoc_runtime.plan.placement import KeyOrder, dealt_keys
from fuscoc_runtime.plan.wire import Wire
from fuscoc_runtime.topology import Topology

if TYPE_CHECKING:
    import torch

DescriptorList = dict[str, Array]
"""Columns of a descriptor list by name, int64 [num_descriptors] each (terms: [num_terms])."""


@dataclass(frozen=True)
class PlanContext:
    """Who plans what, where. ``device`` is the compute device, where all lists live, in tensors;
    ``None``: in arrays of numpy.

    ``model``: the wires that ``balance auto`` reckons with, equal on all ranks; default
    ``links.cost_model``.
    """

    shuffle: ShuffleSpec
    topology: Topology
    rank: int
    device: torch.device | None = None
    model: CostModel | None = None

    @property
    def program(self) -> Program:
        """The rules."""
        return self.shuffle.program

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of a row of the network hop; also of a reply's, if that takes the same plan."""
        reply = self.shuffle.reply
        shared = [reply.program] if reply is not None and reply.shares_plan else []
        return max(map(network_row_bytes, (self.program, *shared)))

    @cached_property
    def key_order(self) -> KeyOrder:
        """The keys by rank, where no table places them."""
        assert self.shuffle.program.target.kind == "packed"
        return KeyOrder.of(dealt_keys(self.shuffle.program.target, self.topology), self.topology)


@dataclass(frozen=True, eq=False)
class Points:
    """Outputs of the relation kernel on one rank, and what it was evaluated on.

    ``columns``: int64 [num_points] each, in domain order: ``source``, ``src_offset``,
    ``src_stride0`` ..., ``rank`` (-1 dropped, -2 out of range), and ``key`` (packed) or ``slot``
    (dense). ``key_to_rank``: int64 [num_keys], packed only. ``target_length``: slots of this
    rank's target, dense only. ``inputs`` and ``extents`` are kept to explain a bad index.
    """

    columns: Mapping[str, Array]
    key_to_rank: Array | None
    target_length: int | None
    inputs: Mapping[str, Array]
    extents: Mapping[str, int]

    def on_host(self) -> Points:
        """The same, all columns in arrays of numpy."""
        columns = {name: on_host(column) for name, column in self.columns.items()}
        owners = on_host(self.key_to_rank) if self.key_to_rank is not None else None
        return replace(self, columns=columns, key_to_rank=owners)


@dataclass(frozen=True)
class BufferRows:
    """Rows of every row buffer a plan needs."""

    target: int  # destination slots, or what those of a compact target refer to
    staging: int  # results coming back to this source: direct rows, then net_send rows
    forward_staging: int  # results coming back to this forwarder: one per forward row
    slices: int  # rows sent over the network
    landing: int  # rows received from the network
    carried: int  # rows of other ranks of the node among those sent


@dataclass(frozen=True, eq=False)
class RankPlan:
    """All descriptor lists of one rank, and the counts that size its buffers.

    ``lists``: name -> columns; the lists are documented where they are built
    (``plan/send.py`` and ``plan/receive.py``).
    ``rows``: what this rank needs; ``max_rows``: the largest of every rank, so that windows can
    be allocated equal everywhere.
    ``net_send_counts[r]`` / ``net_recv_counts[r]``: network rows to / from rank ``r`` at dispatch;
    combine returns the same rows the other way. ``wire``: in which stages.
    ``flow_counts[r]``: this rank's own network rows that rank ``r`` forwards; those that other
    ranks send for it are among them, and those that it sends for others are not.
    ``point_order``: int64 [num_live_points], the domain points of this rank in the order in which
    their weights are sent: (destination rank, source, domain order); ``point_send_counts`` and
    ``point_recv_counts`` cut it by rank. A ``term_point`` indexes the received weights.
    ``keys``, ``key_counts`` [num_local_keys]: keys owned by this rank, ascending, and the rows of
    each. ``key_offsets`` [num_local_keys + 1]: first slot of each; the last is ``num_slots``.
    Empty (and ``[0]``) for dense targets.
    ``row_index``: int64 [num_slots], the row that every slot of a compact target refers to, -1 for
    padding; empty for other targets, whose slots are rows.
    """

    rank: int
    num_sources: int
    lists: dict[str, DescriptorList]
    rows: BufferRows
    max_rows: BufferRows
    net_send_counts: tuple[int, ...]
    net_recv_counts: tuple[int, ...]
    flow_counts: tuple[int, ...]
    wire: Wire
    point_order: Array
    point_send_counts: tuple[int, ...]
    point_recv_counts: tuple[int, ...]
    keys: Array
    key_counts: Array
    key_offsets: Array
    row_index: Array

    @property
    def point_slots(self) -> Array:
        """int64 [num_arriving_points]: the slot of every point that arrives, as weights do."""
        return self.lists["reduce_direct"]["term_slot"]

    @property
    def num_slots(self) -> int:
        """Slots of the target here."""
        return len(self.row_index) or self.rows.target

    @property
    def num_rows(self) -> int:
        """Rows of the target here."""
        return self.rows.target

    def to(self, device: torch.device | None) -> RankPlan:
        """The same plan in tensors on ``device``, without one in arrays of numpy."""
        moved = partial(array_on, device=device)
        lists = {
            name: {column: moved(values) for column, values in columns.items()}
            for name, columns in self.lists.items()
        }
        names = ("point_order", "keys", "key_counts", "key_offsets", "row_index")
        arrays: dict[str, Any] = {name: moved(getattr(self, name)) for name in names}
        return replace(self, lists=lists, **arrays)
