"""Tile sizes of the Triton kernels inside one node."""

from __future__ import annotations

from dataclasses import dataclass

from fuscoc.codegen.cuda_types import CudaShuffle, row_bytes
from fuscoc.codegen.tiles import BYTES_PER_LANE, LANES, MAX_WARPS, warps_for

PART_BYTES = MAX_WARPS * LANES * BYTES_PER_LANE


@dataclass(frozen=True)
class Tile:
    """Sizes chosen for a shuffle: see ``fuscoc.dialect.node.TritonTile``."""

    plan_points: int
    plan_warps: int
    plan_keys: int
    row_parts: int
    row_warps: int


def power_of_two(least: int) -> int:
    """The smallest power of two that is as large."""
    return 1 << (least - 1).bit_length()


def choose_triton_tile(shuffle: CudaShuffle) -> Tile:
    """A program of the planner compares all points of its tile with each other; one that moves rows
    holds a part of all fields in registers."""
    whole = sum(map(row_bytes, shuffle.fields))
    parts = -(-whole // PART_BYTES)
    return Tile(
        plan_points=128,
        plan_warps=4,
        plan_keys=min(8, power_of_two(shuffle.num_columns)),
        row_parts=parts,
        row_warps=warps_for(whole // parts),
    )
