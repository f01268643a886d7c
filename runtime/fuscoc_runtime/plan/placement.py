"""Which rank owns which key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fuscoc_runtime.arrays import Array, namespace, on_host
from fuscoc_runtime.errors import IndexOutOfRangeError, InputError, TopologyError
from fuscoc_runtime.manifest.program import DenseSlots, PackedSlots
from fuscoc_runtime.plan.arrays import positions, upload
from fuscoc_runtime.plan.flows import Int64Array
from fuscoc_runtime.topology import Topology

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class KeyOrder:
    """Keys by rank, int64 on the host.

    ``by_rank`` [num_keys]: all keys, those of rank 0 first, ascending within a rank. ``bounds``
    [num_ranks + 1]: where those of every rank begin, and the end.
    """

    by_rank: Int64Array
    bounds: Int64Array

    @classmethod
    def of(cls, owners: Int64Array, topology: Topology) -> KeyOrder:
        """``owners``: int64 [num_keys], the rank of every key."""
        by_rank = np.argsort(owners, kind="stable")
        return cls(by_rank, np.searchsorted(owners[by_rank], np.arange(topology.num_ranks + 1)))


def key_to_rank(
    target: PackedSlots,
    topology: Topology,
    rank: int,
    inputs: Mapping[str, Array],
    device: torch.device | None = None,
) -> Array:
    """Owner of every key: int64 [num_keys] on ``device``, or without one an array of numpy.

    ``block`` gives each rank num_keys / num_ranks consecutive keys, ``cyclic`` deals them out one
    by one, or group by group, ``table`` reads the input that the placement names. ``rank`` is who
    asks, for messages.

    Raises:
        TopologyError: ``block`` with a number of keys that the ranks do not divide.
        InputError: a table of the wrong shape or dtype.
        IndexOutOfRangeError: a table entry that is no rank.
    """
    if target.is_placed_by_table:
        table = _checked_table(target, topology.num_ranks, rank, inputs)
        return on_host(table) if device is None else table.to(device)
    [owners] = upload([dealt_keys(target, topology)], device)
    return owners


def dealt_keys(target: PackedSlots, topology: Topology) -> Int64Array:
    """Owner of every key that no table places: int64 [num_keys] on the host. Raises TopologyError
    as ``key_to_rank`` does."""
    num_ranks, placed = topology.num_ranks, target.num_keys // target.group
    keys = np.arange(target.num_keys) // target.group
    if target.placement.kind == "cyclic":
        return keys % num_ranks
    if placed % num_ranks:
        raise TopologyError(
            f"there are {placed} keys, which {num_ranks} ranks ({topology}) do not divide: "
            "`by block` gives every rank equally many; use `by cyclic` or a table"
        )
    return keys // (placed // num_ranks)


def keys_of_rank(
    target: DenseSlots | PackedSlots,
    topology: Topology,
    rank: int,
    inputs: Mapping[str, Array],
    device: torch.device | None = None,
) -> Array:
    """The keys of a rank, ascending, as ``key_to_rank`` gives keys; the host waits for a device. A
    dense target has none. Raises as ``key_to_rank`` does."""
    if target.kind == "dense":
        [none] = upload([np.zeros(0, np.int64)], device)
        return none
    return positions(key_to_rank(target, topology, rank, inputs, device) == rank)


def _checked_table(
    target: PackedSlots, num_ranks: int, rank: int, inputs: Mapping[str, Array]
) -> Array:
    name = target.placement.table or ""
    if name not in inputs:
        raise InputError(name, rank, "is missing: it places the keys on ranks")
    table = inputs[name]
    if table.dtype != namespace(table).int64 or table.shape != (target.num_keys,):
        raise InputError(
            name,
            rank,
            f"is {table.dtype} {list(table.shape)}; it must be torch.int64 [{target.num_keys}]",
        )
    bad = positions((table < 0) | (table >= num_ranks)).tolist()
    if bad:
        value = int(table[bad[0]])
        raise IndexOutOfRangeError(name, rank, (bad[0],), value, 0, num_ranks - 1)
    return table
