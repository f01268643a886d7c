"""Weights of a combine in the place of those that kernels of a fixed capacity have sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fuscoc_runtime.engine.node.engine import NodeEngine, current_device
from fuscoc_runtime.engine.node.handle import NodeHandle

WEIGHT_BITS = 32
"""Bits of a point, int64, below its weight: those of its code."""
CODE = (1 << WEIGHT_BITS) - 1


def put_weights(points: Tensor, weights: Tensor | int) -> None:
    """Give points, int64, other weights: bits of f32 that stand where a point has them."""
    points.bitwise_and_(CODE).bitwise_or_(weights)


def combine_weighed(
    engine: NodeEngine,
    rows: Tensor | Mapping[str, Tensor],
    handle: NodeHandle,
    gather: Callable[[], Tensor],
) -> dict[str, Tensor]:
    """``NodeEngine.combine`` inside one node, with the f32 weights [num_ranks, max_sources, fanout]
    of all ranks' segments, which ``gather`` returns, in the place of those that dispatch has sent.

    They stay: later combines with the handle are given weights, too. Nothing waits on the host.

    Raises:
        InputError: as ``NodeEngine.combine``; the weights of other ranks were gathered before.
    """
    launched = handle.launched
    with current_device(engine.members.device), engine.order.turn():
        weights = gather()
        try:
            handle.check_live()
            bits = weights.view(torch.int32).long() << WEIGHT_BITS
            mine = weights[engine.members.rank, : launched.num_sources].contiguous()
        except Exception:
            engine.refuse_combine(handle)
            raise
        put_weights(engine.node.points(launched), bits)
        return engine.combine(rows, replace(handle, launched=replace(launched, weights=mine)), {})
