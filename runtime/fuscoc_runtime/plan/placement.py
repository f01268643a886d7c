"""Which rank owns which key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fuscoc_runtime.errors import IndexOutOfRangeError, InputError, TopologyError
from fuscoc_runtime.manifest.program import DenseSlots, PackedSlots
from fuscoc_runtime.plan.flows import Int64Array
from fuscoc_runtime.topology import Topology


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
    inputs: Mapping[str, Tensor],
    device: torch.device | str = "cpu",
) -> Tensor:
    """Owner of every key: int64 [num_keys] on ``device``.

    ``block`` gives each rank num_keys / num_ranks consecutive keys, ``cyclic`` deals them out one
    by one, or group by group, ``table`` reads the input that the placement names. ``rank`` is who
    asks, for messages.

    Raises:
        TopologyError: ``block`` with a number of keys that the ranks do not divide.
        InputError: a table of the wrong shape or dtype.
        IndexOutOfRangeError: a table entry that is no rank.
    """
    num_keys, num_ranks = target.num_keys, topology.num_ranks
    if target.is_placed_by_table:
        return _checked_table(target, num_ranks, rank, inputs).to(device)
    keys = torch.arange(num_keys, dtype=torch.int64, device=device) // target.group
    placed = num_keys // target.group
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
    inputs: Mapping[str, Tensor],
    device: torch.device | str = "cpu",
) -> Tensor:
    """The keys of a rank, ascending: int64 on ``device``, for which the host waits. A dense target
    has none. Raises as `key_to_rank` does."""
    if target.kind == "dense":
        return torch.empty(0, dtype=torch.int64, device=device)
    return torch.nonzero(key_to_rank(target, topology, rank, inputs, device) == rank).flatten()


def _checked_table(
    target: PackedSlots, num_ranks: int, rank: int, inputs: Mapping[str, Tensor]
) -> Tensor:
    name = target.placement.table or ""
    if name not in inputs:
        raise InputError(name, rank, "is missing: it places the keys on ranks")
    table = inputs[name]
    if table.dtype != torch.int64 or table.shape != (target.num_keys,):
        raise InputError(
            name,
            rank,
            f"is {table.dtype} {list(table.shape)}; it must be torch.int64 [{target.num_keys}]",
        )
    bad = torch.nonzero((table < 0) | (table >= num_ranks)).flatten().tolist()
    if bad:
        value = int(table[bad[0]])
        raise IndexOutOfRangeError(name, rank, (bad[0],), value, 0, num_ranks - 1)
    return table
