"""Weights of a combine in the place of those that kernels of a fixed capacity have sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fuscoc_runtime.engine.node.engine import NodeEngine, current_device
from fuscoc_runtime.engine.node.handle import NodeHandle

CODE_BITS = 32
CODE = (1 << CODE_BITS) - 1  # of a point, whose weight is in the bits above


def combine_weighed(
    engine: NodeEngine,
    rows: Tensor | Mapping[str, Tensor],
    handle: NodeHandle,
    weights: Tensor,
) -> dict[str, Tensor]:
    """``NodeEngine.combine`` inside one node, with f32 ``weights`` [num_ranks, max_sources, fanout]
    of all ranks' segments in the place of those that dispatch has sent.

    They stay: later combines with the handle are given weights, too. Nothing waits on the host.
    """
    launched = handle.launched
    with current_device(engine.members.device), engine.order.turn():
        bits = weights.view(torch.int32).long() << CODE_BITS
        engine.node.points(launched).bitwise_and_(CODE).bitwise_or_(bits)
        mine = weights[engine.members.rank, : launched.num_sources].contiguous()
        return engine.combine(rows, replace(handle, launched=replace(launched, weights=mine)), {})
