"""Tile sizes of the Triton kernels inside one node."""

from __future__ import annotations

from dataclasses import dataclass

from fuscoc.codegen.cuda_types import CudaField, CudaShuffle, row_bytes, unit_bytes
from fuscoc.codegen.tiles import BYTES_PER_LANE, LANES, MAX_WARPS, cut_row, warps_for
from fuscoc.lang.dtypes import ITEM_BYTES

PART_BYTES = MAX_WARPS * LANES * BYTES_PER_LANE
PLAN_POINTS, PLAN_WARPS, PLAN_KEYS = 128, 4, 8

# Elements of copies, by the bytes that an access is aligned to.
WORDS = {16: ("int64", 8), 8: ("int64", 8), 4: ("int32", 4), 2: ("int16", 2), 1: ("int8", 1)}


@dataclass(frozen=True)
class PieceSizes:
    """How a field of a row is taken: parts of ``part_elems`` elements that move, each in ``pieces``
    of so many lanes, whose last may have fewer elements; accesses are aligned to ``align_bytes``.
    """

    field: str
    align_bytes: int
    part_elems: int
    pieces: tuple[int, ...]


@dataclass(frozen=True)
class TritonSizes:
    """Sizes chosen for a shuffle: see ``fuscoc.dialect.node.TritonTile``."""

    plan_points: int
    plan_warps: int
    plan_keys: int
    row_parts: int
    row_warps: int
    moved: tuple[PieceSizes, ...]
    summed: tuple[PieceSizes, ...]


def power_of_two(least: int) -> int:
    """The smallest power of two that is as large."""
    return 1 << (least - 1).bit_length()


def choose_triton_sizes(shuffle: CudaShuffle) -> TritonSizes:
    """A program of the planner compares all points of its tile with each other; one that moves rows
    holds a part of all fields in registers: words of a copy, elements of a sum."""
    whole = sum(map(row_bytes, shuffle.fields))
    parts = -(-whole // PART_BYTES)
    summed = shuffle.leaving[:1] if shuffle.combine == "sum" else ()
    return TritonSizes(
        plan_points=PLAN_POINTS,
        plan_warps=PLAN_WARPS,
        plan_keys=min(PLAN_KEYS, power_of_two(shuffle.num_columns)),
        row_parts=parts,
        row_warps=warps_for(whole // parts),
        moved=tuple(
            _pieces(field, parts, WORDS[unit_bytes(field)][1]) for field in shuffle.leaving
        ),
        summed=tuple(_pieces(field, parts, ITEM_BYTES[field.dtype]) for field in summed),
    )


def _pieces(field: CudaField, parts: int, elem_bytes: int) -> PieceSizes:
    """Parts begin at multiples of what an access is aligned to, so that accesses stay as wide."""
    unit = unit_bytes(field)
    step = max(unit // elem_bytes, 1)
    part_elems = -(-row_bytes(field) // elem_bytes // (parts * step)) * step
    pieces = tuple(tile.size for tile in cut_row(part_elems, elem_bytes).tiles)
    return PieceSizes(field.name, unit, part_elems, pieces)
