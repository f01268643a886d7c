"""One launch over the points of a routing where torch would need many: what autograd adds to a
node's kernels, beside ``row_kernels``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.engine.node.rings import Launched
from fuscoc_runtime.kernels.launches import start
from fuscoc_runtime.kernels.loader import device_module
from fuscoc_runtime.room import first_source, num_slot_bits, room_for

TILE = 1024
INTERPRETED_TILE = 1 << 16


def weights_of_slots(
    points: Tensor, handle: Launched, rank: int, capacity: int
) -> tuple[Tensor, Tensor]:
    """f32 [capacity]: the weight of the point whose segment a slot of ``rank`` holds, 0 without;
    and int64 [capacity]: the slot itself, -1 without.

    ``points`` int64 [num_ranks, max_sources, fanout] are those that the peers have told.
    """
    num_ranks, max_sources, fanout = points.shape
    assert handle.weights is not None
    room = room_for(num_ranks)
    own, sources = handle.weights.contiguous(), handle.routing[first_source(room) :]
    of_slot = torch.zeros(capacity, dtype=torch.float32, device=points.device)
    held = torch.full((capacity,), -1, dtype=torch.int64, device=points.device)
    _launch(
        "to_slots", points.numel(), points, handle.codes, own, sources, of_slot, held,
        points.numel(), max_sources * fanout, rank, fanout, num_slot_bits(room),
    )  # fmt: skip
    return of_slot, held


def values_at_points(of_slot: Tensor, handle: Launched) -> Tensor:
    """What all ranks of the node have for their slots [num_ranks, capacity], at this rank's points,
    in order; 0 for those without a segment."""
    num_points = handle.num_sources * handle.codes.shape[1]
    result = of_slot.new_empty(num_points)
    if num_points:
        _launch(
            "to_points", num_points, of_slot, handle.codes, result, num_points, of_slot.shape[1],
            num_slot_bits(room_for(len(of_slot))),
        )  # fmt: skip
    return result


def _launch(kernel: str, num_points: int, *arguments: Any) -> None:
    interpreted = arguments[0].device.type == "cpu"
    tile = INTERPRETED_TILE if interpreted else TILE
    function = getattr(device_module("point_values", interpreted=interpreted), kernel)
    start(function, (*arguments, tile), -(-num_points // tile))
