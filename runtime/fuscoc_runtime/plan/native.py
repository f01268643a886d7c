"""Call the planner's C files; ``library.py`` loads them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fuscoc_runtime.padding import Padded
from fuscoc_runtime.plan.flows import Assignment, Demand, Float64Array, Int64Array
from fuscoc_runtime.plan.library import BuildError, is_there, load

__all__ = ["BuildError", "is_there", "load"]

FORWARDERS = ("static", "greedy", "lpt", "split", "rebalance", "auto")
SCHEDULES = ("pairwise", "spread-out", "fast", "auto")
"""The rules of the network hop that ``network.c`` knows, in its order."""
PADDINGS = ("fewest",)
"""The paddings that ``slots`` knows."""

_Start = ctypes.c_char * 0  # any array has one, even an empty one


class NetworkArrays(NamedTuple):
    """``share``, ``carried`` and ``pairs`` of an ``Assignment``; ``kind``, a number, ``tile`` and
    ``stages`` (``peer``, ``begin``, ``end``) of a ``Schedule``, none if nothing crosses."""

    share: Int64Array
    carried: bool
    pairs: Int64Array
    kind: int
    tile: Int64Array
    stages: Int64Array


def rebalance(flows: Int64Array) -> tuple[Int64Array, Int64Array]:
    """FAST's sender balancing: flows [num_ranks, num_nodes] -> (share, tile).

    ``share`` as in a carried ``Assignment``; ``tile[i, q]``: int64 [num_nodes, num_nodes], the most
    that one rank of node ``i`` sends to node ``q``, which is the mean, rounded up.
    """
    num_ranks, num_nodes = flows.shape
    ranks_per_node = num_ranks // num_nodes
    share = np.empty((num_ranks, num_nodes, ranks_per_node), np.int64)
    tile = np.empty((num_nodes, num_nodes), np.int64)
    load().fuscoc_rebalance(
        num_nodes, ranks_per_node, _address(flows), _address(share), _address(tile)
    )
    return share, tile


def longest_first(flows: Int64Array) -> Int64Array:
    """LPT: flows [num_ranks, num_nodes] -> the ``share`` of an ``Assignment``."""
    num_ranks, num_nodes = flows.shape
    ranks_per_node = num_ranks // num_nodes
    share = np.empty((num_ranks, num_nodes, ranks_per_node), np.int64)
    if load().fuscoc_lpt(num_nodes, ranks_per_node, _address(flows), _address(share)) < 0:
        raise MemoryError
    return share


def decompose(tile: Int64Array, grain: int) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Birkhoff-von-Neumann: tile [n, n] -> (peer, begin, end), int64 [num_stages, n] each.

    In stage ``k`` node ``i`` sends the range ``begin[k, i]:end[k, i]`` of ``tile[i, j]`` to node
    ``j = peer[k, i]`` (-1: nothing). Entries are rounded up to multiples of ``grain`` first, which
    makes fewer and longer stages; grain 1 is exact.
    """
    num_nodes = len(tile)
    stages = np.empty((3, num_nodes * (num_nodes - 2) + 2, num_nodes), np.int64)
    address, size = _address(stages), stages.nbytes // 3
    num_stages = load().fuscoc_decompose(
        num_nodes, _address(tile), grain, address, address + size, address + 2 * size
    )
    if num_stages < 0:
        raise MemoryError
    peer, begin, end = stages[:, :num_stages]
    return peer, begin, end


def stages(
    pairs: Int64Array, order: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Stages of a fixed order: ``tile``, ``peer``, ``begin``, ``end`` of a ``Schedule``.

    ``pairs``: of an ``Assignment``. ``order``: int64 [num_orders, num_nodes], to which node every
    node sends in which stage; those in which nothing moves are left out.
    """
    num_orders, n = order.shape
    tile, table = np.empty((n, n), np.int64), np.empty((3, num_orders, n), np.int64)
    address, size = _address(table), table.nbytes // 3
    num_stages = load().fuscoc_stages(
        n,
        len(pairs) // n,
        _address(pairs),
        num_orders,
        _address(order),
        _address(tile),
        address,
        address + size,
        address + 2 * size,
    )
    peer, begin, end = table[:, :num_stages]
    return tile, peer, begin, end


def network(
    demand: Demand,
    policy: int,
    kind: int,
    orders: Sequence[Int64Array],
    speeds: Float64Array,
    sizes: Int64Array,
) -> NetworkArrays:
    """The network hop of one plan.

    ``policy``, ``kind``: indices into ``FORWARDERS`` and ``SCHEDULES``. ``orders``: to which node
    every node sends in the stages of the kinds that have a fixed order, int64 [num_stages, n] each.
    ``speeds``: of a ``CostModel``. ``sizes``: int64 [2], bytes of a segment and of a slice at most.
    """
    n, m, num_ranks = demand.num_nodes, demand.ranks_per_node, demand.num_ranks
    # ``decompose`` needs n * (n - 2) + 2, and an order n at most.
    room = n * n if n > 2 and kind >= len(orders) else n
    share, pairs = np.empty((num_ranks, n, m), np.int64), np.empty((num_ranks, num_ranks), np.int64)
    tile, stages = np.empty((n, n), np.int64), np.empty((3, room, n), np.int64)
    found = np.empty(3, np.int64)
    tables = [value for order in orders for value in (len(order), _address(order))]
    status = load().fuscoc_network(
        n,
        m,
        *map(_address, (demand.flows, demand.copies, speeds, sizes)),
        policy,
        kind,
        *tables,
        room,
        *map(_address, (share, pairs, tile, stages, found)),
    )
    if status < 0:
        raise MemoryError
    carried, chosen, num_stages = found.tolist()
    return NetworkArrays(share, bool(carried), pairs, chosen, tile, stages[:, :num_stages])


def ways(
    assignment: Assignment, stages: Sequence[Int64Array], rank: int
) -> tuple[Int64Array, Int64Array, int, int, int]:
    """What engine/node/ways.py says of ``rank``: parts of flows [2, num_nodes, ranks_per_node, 3],
    moves [num_moves, 5] in so many legs, the most rows of any rank, and those handed over.

    ``stages``: ``peer``, ``begin``, ``end`` and ``tile`` of a ``Schedule``.
    """
    num_stages, n = stages[0].shape
    m = assignment.ranks_per_node
    parts = np.empty((2, n, m, 3), np.int64)
    moves, found = np.empty((2 * m * num_stages, 5), np.int64), np.empty(3, np.int64)
    num_legs = load().fuscoc_ways(
        n,
        m,
        rank,
        assignment.carried,
        *map(_address, (assignment.share, assignment.pairs)),
        num_stages,
        *map(_address, stages),
        *map(_address, (parts[0], parts[1], moves, found)),
    )
    if num_legs < 0:
        raise MemoryError
    num_moves, most_rows, handed_over = found.tolist()
    return parts, moves[:num_moves], num_legs, most_rows, handed_over


def slots(
    keys: Int64Array, by_rank: Int64Array, bounds: Int64Array, target: Padded, rank: int
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Divide slots among keys, in blocks of ``align``, by one of ``PADDINGS``.

    ``keys``: int64 [num_ranks, num_keys], points by source rank and key; rows may be apart.
    ``by_rank``, ``bounds``: of a ``KeyOrder``. Returns the blocks of every rank [num_ranks], and
    ``first``, ``key_counts`` and ``key_offsets`` of the ``SlotLayout`` of ``rank``, which wrap if
    there are too many slots.
    """
    num_ranks, num_keys = keys.shape
    owned = int(bounds[rank + 1] - bounds[rank])
    sizes = num_ranks, num_keys, owned, owned + 1
    blocks, first, counts, offsets = parts = [np.empty(size, np.int64) for size in sizes]
    load().fuscoc_slots(
        num_ranks,
        keys.ctypes.data,
        keys.strides[0] // keys.itemsize,
        *map(_address, (by_rank, bounds)),
        target.align,
        rank,
        *map(_address, parts),
    )
    return blocks, first, counts, offsets


def loads(
    demand: Demand, assignment: Assignment
) -> tuple[
    Int64Array, Float64Array, Float64Array, Int64Array, Float64Array, Float64Array, Int64Array
]:
    """The fields of ``cost.Loads``, in order."""
    n = demand.num_nodes
    tile, node_tile, local = (
        np.empty((n, n), np.int64),
        np.empty(n, np.int64),
        np.empty(n, np.int64),
    )
    balance, redistribution = np.empty((n, n)), np.empty((n, n))
    node_balance, node_redistribution = np.empty(n), np.empty(n)
    fields = (
        tile, balance, redistribution, node_tile, node_balance, node_redistribution, local,
    )  # fmt: skip
    status = load().fuscoc_loads(
        n,
        demand.ranks_per_node,
        _address(demand.flows),
        _address(assignment.share),
        _address(demand.copies),
        assignment.carried,
        *map(_address, fields),
    )
    if status < 0:
        raise MemoryError
    return fields


def pipeline(
    network: Int64Array,
    balance: Float64Array,
    redistribution: Float64Array,
    local: Int64Array,
    wire: Float64Array,
    slice_segments: int,
) -> float:
    """Seconds until the last segment has arrived; the model is told in ``cost.py``.

    ``network``: int64 [num_stages], segments of the busiest NIC. ``balance``, ``redistribution``:
    float64 [num_stages, num_nodes], segments of the busiest NVLink port; ``local``: int64
    [num_nodes]. ``wire``: float64 [3], seconds of a segment on a NIC, on NVLink, and of a stage's
    start.
    """
    seconds: float = load().fuscoc_pipeline(
        len(local),
        len(network),
        *map(_address, (network, balance, redistribution, local, wire)),
        slice_segments,
    )
    return seconds


def _address(array: NDArray[Any]) -> int:
    """Of C-contiguous memory. A quarter of the time of ``array.ctypes``, half of a small plan's."""
    try:
        return ctypes.addressof(_Start.from_buffer(array.data))
    except TypeError:  # read-only
        if not array.flags.c_contiguous:
            raise
        return array.ctypes.data
