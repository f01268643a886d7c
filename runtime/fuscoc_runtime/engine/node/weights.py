"""Weights of a combine in the place of those that kernels of a fixed capacity have sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fuscoc_runtime.engine.node.engine import NodeEngine, current_device
from fuscoc_runtime.engine.node.handle import NodeHandle
from fuscoc_runtime.topology import Topology

WEIGHT_BITS = 32
"""Bits of a point, int64, below its weight: those of its code."""
CODE = (1 << WEIGHT_BITS) - 1


def put_weights(points: Tensor, weights: Tensor | int) -> None:
    """Give points, int64, other weights: bits of f32 that stand where a point has them."""
    points.bitwise_and_(CODE).bitwise_or_(weights)


def taken_on(weights: Tensor, topology: Topology, places: int) -> Tensor:
    """Of the segments of all ranks those that each rank of a node takes on, so many ``places`` of
    every node: f32 [ranks of a node, num_nodes * places, fanout]. In one node these are its own."""
    _, num_sources, fanout = weights.shape
    nodes, ranks = topology.num_nodes, topology.ranks_per_node
    by_place = weights.view(nodes, ranks, num_sources, fanout).transpose(0, 1)
    filled_up = torch.nn.functional.pad(by_place, (0, 0, 0, places - num_sources))
    return filled_up.reshape(ranks, nodes * places, fanout)


def combine_weighed(
    engine: NodeEngine,
    rows: Tensor | Mapping[str, Tensor],
    handle: NodeHandle,
    gather: Callable[[], Tensor],
) -> dict[str, Tensor]:
    """``NodeEngine.combine`` with the f32 weights [num_ranks, max_sources, fanout] of all ranks'
    segments, which ``gather`` returns, in the place of those that dispatch has sent.

    They stay: later combines with the handle are given weights, too. Nothing waits on the host.

    Raises:
        InputError: as ``NodeEngine.combine``; the weights of other ranks were gathered before.
    """
    launched = handle.launched
    with current_device(engine.members.device), engine.order.turn():
        weights = gather()
        try:
            handle.check_live()
            topology, points = engine.members.topology, engine.node.points(launched)
            weights = taken_on(weights, topology, points.shape[1] // topology.num_nodes)
            bits = weights.view(torch.int32).long() << WEIGHT_BITS
            own = topology.local_rank(engine.members.rank)
            mine = weights[own, : launched.num_sources].contiguous()
        except Exception:
            engine.refuse_combine(handle)
            raise
        put_weights(points, bits)
        return engine.combine(rows, replace(handle, launched=replace(launched, weights=mine)), {})
