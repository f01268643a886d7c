"""Where every point must go, worked out from the relation alone: the planner's oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fuscoc.testing.arrays import Ints, before, ints, joined
from fuscoc.testing.points import owners
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.padding import blocks
from fuscoc_runtime.plan import Points
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.topology import Topology


@dataclass(frozen=True, eq=False)
class Expected:
    """All live points of all ranks, by (source rank, domain order); int64 [num_live] each.

    ``source_rank``, ``point`` (in the domain of that rank), ``source`` (the segment's id there),
    ``rank`` and ``slot`` of the destination, and ``row``, where the segment lies there: the slot,
    or the number of the segment on that rank if the target is compact. ``num_slots`` and
    ``num_rows`` [num_ranks]: slots of every target, padding included, and its rows. ``key_owner``,
    ``key_counts``, ``key_offset`` [num_keys]: rank, rows and first slot of every key; empty for a
    dense target.
    """

    source_rank: Ints
    point: Ints
    source: Ints
    rank: Ints
    slot: Ints
    row: Ints
    num_slots: Ints
    num_rows: Ints
    key_owner: Ints
    key_counts: Ints
    key_offset: Ints


def expect(
    shuffle: ShuffleSpec, topology: Topology, ranks: Sequence[RankData], points: Sequence[Points]
) -> Expected:
    """The live points and their slots. Within a key, slots follow (source rank, domain order)."""
    rank_columns = [ints(each.columns["rank"]) for each in points]
    alive = joined(rank_columns) >= 0
    lengths = [len(column) for column in rank_columns]
    source_rank = np.repeat(np.arange(len(points)), lengths)[alive]
    point = joined([np.arange(length) for length in lengths])[alive]
    rank = joined(rank_columns)[alive]
    source = point // shuffle.program.num_points_each(topology.num_ranks)
    if shuffle.declared.target.kind == "dense":
        slot = joined([ints(each.columns["slot"]) for each in points])[alive]
        num_slots = ints([each.target_length or 0 for each in points])
        none = np.zeros(0, np.int64)
        live = (source_rank, point, source, rank, slot, slot)
        return Expected(*live, num_slots, num_slots, none, none, none)

    target = shuffle.declared.target
    key = joined([ints(each.columns["key"]) for each in points])[alive]
    owner = owners(target, topology, ranks[0])
    counts = np.bincount(key, minlength=target.num_keys)
    padded = blocks(target, counts) * target.align
    offset = np.zeros_like(padded)
    for each in range(topology.num_ranks):
        mine = owner == each
        offset[mine] = before(padded[mine])
    order = np.argsort(key, kind="stable")
    slot = np.empty_like(key)
    slot[order] = np.arange(len(key)) - before(counts)[key[order]] + offset[key[order]]
    num_slots = np.zeros(topology.num_ranks, np.int64)
    np.add.at(num_slots, owner, padded)
    row, num_rows = slot, num_slots
    if target.compact:
        segments, number = np.unique([rank, source_rank, source], axis=1, return_inverse=True)
        num_rows = np.bincount(segments[0], minlength=topology.num_ranks)
        row = number.ravel() - before(num_rows)[rank]
    live = (source_rank, point, source, rank, slot, row)
    return Expected(*live, num_slots, num_rows, owner, counts, offset)
