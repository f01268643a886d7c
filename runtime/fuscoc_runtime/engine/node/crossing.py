"""Which segments cross between nodes where ranks alone decide it, and their places in slabs.

A static shuffle's relation says of every segment of every rank where it goes before any call. So a
slab has places for the segments that go to its node, in their order, and both of its ends know how
many they are. Where inputs decide, every segment has its own place in every slab.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from fuscoc_runtime.engine.bounds import values_of
from fuscoc_runtime.engine.divisions import check_divisions
from fuscoc_runtime.errors import DivisorError, InexactDivisionError
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan.flows import Int64Array
from fuscoc_runtime.scalar import Scope, builtin_extents, evaluate
from fuscoc_runtime.topology import Topology

MOST_POINTS = 1 << 23
"""Of all ranks, that each looks at when it opens a shuffle, within some tenths of a second."""


def crossing(shuffle: ShuffleSpec, topology: Topology) -> Tensor | None:
    """The segments that every rank sends every other node, int64 [num_ranks, num_nodes].

    None where calls decide it, where slots are not the spec's (so replies, which take the places of
    what they answer, have none), where ranks have too many points to look at, or where the shuffle
    cannot run on so many ranks, as calls will say.
    """
    program, ranks = shuffle.program, range(topology.num_ranks)
    if topology.num_nodes == 1 or not program.is_static or program.target.kind != "dense":
        return None
    try:
        for rank in ranks:
            check_divisions(shuffle, rank, builtin_extents(rank, topology.num_ranks))
    except (DivisorError, InexactDivisionError):
        return None
    points = sum(math.prod(_sizes(shuffle, topology, rank).values()) for rank in ranks)
    if points > MOST_POINTS:
        return None
    return torch.stack([_counts(shuffle, topology, rank) for rank in ranks])


def leaving(shuffle: ShuffleSpec, topology: Topology, rank: int) -> Tensor:
    """Which other nodes each segment of a rank goes to, of a shuffle whose `crossing` is known:
    bool [num_sources, num_nodes]."""
    to, nodes = _other_nodes(shuffle, topology, rank), torch.arange(topology.num_nodes)
    return (to[:, :, None] == nodes).any(1)


def _counts(shuffle: ShuffleSpec, topology: Topology, rank: int) -> Tensor:
    """How many segments of a rank go to each other node, int64 [num_nodes], without a look at every
    node for each of them."""
    to = _other_nodes(shuffle, topology, rank).sort(1).values
    is_new = to.diff(dim=1, prepend=torch.full((len(to), 1), -1)) > 0
    return to[is_new].bincount(minlength=topology.num_nodes)


def _other_nodes(shuffle: ShuffleSpec, topology: Topology, rank: int) -> Tensor:
    """The node that each point of a rank goes to, -1 if that is its own or none: int64
    [num_sources, points of a segment]."""
    target, fanout = shuffle.declared.target, shuffle.program.num_points_each(topology.num_ranks)
    assert target.kind == "dense"
    sizes = _sizes(shuffle, topology, rank)
    rest, indices = np.arange(math.prod(sizes.values())), dict[str, Int64Array]()
    for name, size in reversed(sizes.items()):
        indices[name], rest = rest % max(size, 1), rest // max(size, 1)
    to = values_of(target.rank, builtin_extents(rank, topology.num_ranks), indices)
    node = to // topology.ranks_per_node
    goes = (to >= 0) & (to < topology.num_ranks) & (node != topology.node(rank))
    rest[:] = np.where(goes, node, -1)
    return torch.from_numpy(rest).view(-1, fanout)


def _sizes(shuffle: ShuffleSpec, topology: Topology, rank: int) -> dict[str, int]:
    """Those of the domain, outermost first."""
    scope = Scope(builtin_extents(rank, topology.num_ranks))
    return {each.name: max(0, evaluate(each.extent, scope)) for each in shuffle.declared.domain}


class Packing:
    """The places of a rank's segments in slabs, of a shuffle whose `crossing` is known.

    Attributes:
        at: int32 [num_nodes, places], by node and segment; -1 if it does not go there. What goes to
            this rank's own node does not travel, and all segments have places of their own there.
        sent, received: how many segments travel to and from every node.
    """

    def __init__(
        self, shuffle: ShuffleSpec, topology: Topology, rank: int, max_sources: int, places: int
    ) -> None:
        """Of up to ``max_sources`` segments, for which there are ``places``."""
        own, local = topology.node(rank), topology.local_rank(rank)
        goes = leaving(shuffle, topology, rank)[:max_sources]
        self._num_sources = len(goes)
        self.at = torch.full((topology.num_nodes, places), -1, dtype=torch.int32)
        self.at[:, : len(goes)] = torch.where(goes, goes.cumsum(0) - 1, -1).T
        self.at[own] = torch.arange(places)
        self._others = [node for node in range(topology.num_nodes) if node != own]
        self.sent = tuple(goes.sum(0).tolist())
        rail = [node * topology.ranks_per_node + local for node in range(topology.num_nodes)]
        self.received = tuple(
            int((_other_nodes(shuffle, topology, peer)[:max_sources] == own).any(1).sum())
            for peer in rail
        )

    def finishing(self, rounds: Sequence[range], group: int) -> tuple[Tensor, list[range]]:
        """The segments in the order in which they have all their sums, if these travel in
        ``rounds`` of places of slabs: int32 [places]; and which of these each round is the last one
        of. Every ``group`` of them stays together, as peers flag it, and places without a segment
        are behind all others."""
        last = self.at[self._others].amax(0)
        ends = torch.tensor([each.stop for each in rounds[:-1]], dtype=last.dtype)
        of_group = torch.bucketize(last, ends, right=True).view(-1, group).amax(1)
        of_group[self._num_sources // group :] = len(rounds) - 1
        of_group[-1] = len(rounds) - 1  # so that only the last round is behind all
        order = of_group.argsort(stable=True)[:, None] * group + torch.arange(group)
        counts = of_group.bincount(minlength=len(rounds)) * group
        bounds = accumulate(counts.tolist(), initial=0)
        return order.flatten().int(), [range(*each) for each in pairwise(bounds)]
