"""What a rank plans as a source, by kernels: the same as ``points.py``, ``hops.py``, ``slots.py``
and ``send.py`` make of tensors, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fuscoc_runtime.kernels.loader import PLACEHOLDER_ADDRESS, address
from fuscoc_runtime.plan.arrays import allocate, before, upload
from fuscoc_runtime.plan.census import NUM_BAD, Census, census_size, has_table, num_keys
from fuscoc_runtime.plan.device.launch import blocks, launch, power_of_two, prepare
from fuscoc_runtime.plan.flows import Int64Array
from fuscoc_runtime.plan.forwarders import Forwarding
from fuscoc_runtime.plan.hops import NumCopies
from fuscoc_runtime.plan.points import count_again
from fuscoc_runtime.plan.send import Described, word_width
from fuscoc_runtime.plan.slots import SlotLayout, rank_rows
from fuscoc_runtime.plan.types import DescriptorList, PlanContext, Points

TILE_POINTS = 32
"""A tile's pairs of points are summed by a warp for every so many points."""

SCAN_COLUMNS = 8
BLOCK = 256
FEWEST_BINS = 32  # of a histogram

NUM_SCRATCH = 10
"""Columns that ``place`` of ``kernels/device/plan_sources.py`` writes and a plan does not keep:

by live point   point, source, rank, target; where its description is sent; its number among those
                of its key, and its pair's among those of its rank; its copy: the number of the
                direct pair that it leads, that of the remote pair plus the room of a column, or
                minus the distance to the lead
by remote pair  row
by network row  source
"""

NUM_LISTS = 5
"""Those that it keeps: local rank by direct pair, row by network row, first term by source, the
place behind its last by source, row by term; then, for every column of an address, by source, by
network row, by direct pair."""


@dataclass(frozen=True, eq=False)
class Placed:
    """This rank's row of the census, and columns with room for ``num_points`` elements each, of
    which the census says how many are used. ``place`` fills them, and reads ``tiles``."""

    row: Tensor
    scratch: Tensor
    lists: Tensor
    num_points: int
    tiles: Tensor
    place: Callable[[], None]


@dataclass(frozen=True, eq=False)
class ListedByKernels:
    """``Listed``; what a rank needs before it can send is cut first.

    ``names``: of the columns of an address. ``num_live``: points; ``copies``: those of this rank;
    ``num_sources``.
    """

    placed: Placed
    names: list[str]
    num_live: int
    copies: NumCopies
    num_sources: int

    @property
    def net_send(self) -> DescriptorList:
        rows = self.copies.rows
        return {**self._addresses(1, rows), "dst_row": self._list(1, rows)}

    @property
    def addresses(self) -> dict[str, Tensor]:
        return self._addresses(0, self.num_sources)

    @property
    def row_source(self) -> Tensor:
        return self._part(self.placed.scratch, 9, self.copies.rows)

    @property
    def remote_row(self) -> Tensor:
        return self._part(self.placed.scratch, 8, self.copies.far)

    def source_lists(self, direct_slot: Tensor) -> dict[str, DescriptorList]:
        """The lists of ``send.source_lists``."""
        near, num_sources = self.copies.near, self.num_sources
        returned = {name.replace("src", "dst"): part for name, part in self.addresses.items()}
        terms = self._list(2, num_sources), self._list(3, num_sources)
        return {
            "direct": {
                **self._addresses(2, near),
                "dst_peer": self._list(0, near),
                "dst_slot": direct_slot,
            },
            "reduce_source": {
                **returned,
                "term_begin": terms[0],
                "term_end": terms[1],
                "term_row": self._list(4, near + self.copies.rows),
            },
        }

    def _addresses(self, kind: int, size: int) -> dict[str, Tensor]:
        places = range(NUM_LISTS + kind, NUM_LISTS + kind + 3 * len(self.names), 3)
        return {
            name: self._list(place, size) for name, place in zip(self.names, places, strict=True)
        }

    def _list(self, column: int, size: int) -> Tensor:
        return self._part(self.placed.lists, column, size)

    def _part(self, columns: Tensor, column: int, size: int) -> Tensor:
        begin = column * self.placed.num_points
        return columns[begin : begin + size]


def place_points(ctx: PlanContext, points: Points) -> Placed:
    """Count, and prepare to place all that needs no word from the other ranks."""
    shuffle, topology, device = ctx.shuffle, ctx.topology, ctx.device
    names = list(ctx.program.relation.addresses)
    num_ranks, keys = topology.num_ranks, num_keys(ctx)
    num_points, fanout = len(points.columns["rank"]), ctx.program.num_points_each(num_ranks)
    num_counts = 1 + 2 * num_ranks + topology.num_nodes + keys
    lanes = power_of_two(fanout)
    tile = max(TILE_POINTS, lanes)
    num_tiles = blocks(num_points, tile // lanes * fanout)
    tiles = torch.empty(num_tiles * num_counts, dtype=torch.int32, device=device)
    num_lists = NUM_LISTS + 3 * len(names)
    row, scratch = allocate([census_size(ctx), NUM_SCRATCH * num_points], device)
    [lists] = allocate([num_lists * num_points], device)
    packed = shuffle.program.target.kind == "packed"
    rank = address(points.columns["rank"])
    target = address(points.columns["key" if packed else "slot"])
    tables, census = address(tiles), row.data_ptr()
    where = fanout, num_ranks, topology.ranks_per_node, topology.node(ctx.rank)
    bins = power_of_two(num_ranks, FEWEST_BINS)
    dedup = tuple(int(ctx.program.copies_once(tier)) for tier in ("rank", "node"))
    launch(
        "plan_sources", "count", device, num_tiles,
        (rank, target, tables, num_points, *where, keys, num_counts),
        (*dedup, tile, lanes, bins, power_of_two(keys, FEWEST_BINS) if packed else 0),
        tile // TILE_POINTS,
    )  # fmt: skip
    owners = points.key_to_rank if has_table(ctx) else None
    launch(
        "plan_sources", "take_census", device, blocks(num_counts, SCAN_COLUMNS),
        (
            tables, census, PLACEHOLDER_ADDRESS if owners is None else address(owners), num_tiles,
            num_counts, 0 if owners is None else keys, points.target_length or 0,
        ),
        (SCAN_COLUMNS,),
    )  # fmt: skip
    if ctx.program.relation.apart:
        row[NUM_BAD] += count_again(points)
    addresses = [address(points.columns[name]) for name in names]
    addresses += [PLACEHOLDER_ADDRESS] * (4 - len(names))
    place = prepare(
        "plan_sources", "place", device, num_tiles,
        (
            rank, target, *addresses, tables, census, address(scratch), address(lists),
            num_points, *where, num_counts, len(names) - 1,
        ),
        (*dedup, tile, lanes, bins, int(packed)),
        tile // TILE_POINTS,
    )  # fmt: skip
    return Placed(row, scratch, lists, num_points, tiles, place)


def list_placed(ctx: PlanContext, placed: Placed, census: Census) -> ListedByKernels:
    """What the census says of the columns."""
    return ListedByKernels(
        placed,
        list(ctx.program.relation.addresses),
        int(census.points[ctx.rank].sum()),
        census.num_copies(ctx.topology, ctx.rank),
        placed.num_points // ctx.program.num_points_each(ctx.topology.num_ranks),
    )


def describe_placed(
    ctx: PlanContext,
    listed: ListedByKernels,
    layout: SlotLayout,
    census: Census,
    forwarding: Forwarding,
    rows: Int64Array,
) -> Described:
    """Slots, and what the other ranks have to know. ``rows`` [R]: this rank's network rows by
    forwarder."""
    m, num_ranks = ctx.topology.ranks_per_node, ctx.topology.num_ranks
    local = np.arange(num_ranks) % m
    first, to_rank, keys, key_counts, key_offsets, sent = upload(
        [
            layout.first,
            rank_rows(ctx, census),
            layout.keys,
            layout.key_counts,
            layout.key_offsets,
            np.concatenate([before(rows), local, forwarding.landing, forwarding.position]),
        ],
        ctx.device,
    )
    width, copies, placed = word_width(ctx), listed.copies, listed.placed
    sizes = [width * listed.num_live, listed.num_live, copies.near, 2 * copies.far]
    words, order, slot, forwards = allocate(sizes, ctx.device)
    launch(
        "plan_words", "describe", ctx.device, blocks(listed.num_live, BLOCK),
        (
            address(placed.scratch), placed.num_points, listed.num_live, address(first),
            address(to_rank), address(sent), num_ranks, num_ranks.bit_length(), m,
            ctx.topology.local_rank(ctx.rank),
            address(words), address(order), address(slot), address(forwards),
        ),
        (int(ctx.program.target.kind == "packed"), int(ctx.program.is_compact), width, BLOCK),
    )  # fmt: skip
    return Described(
        order,
        words.view(-1, width),
        forwards.view(-1, 2),
        listed.source_lists(slot),
        keys,
        key_counts,
        key_offsets,
    )
