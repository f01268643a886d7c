"""Casts in the CUDA kernels: what cast.cuh can do, and the call that does it.

A warp turns the row in its row buffer into the row that arrives, eight elements a lane, in place:
so rows do not get longer, and consecutive lanes hold a block.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuscoc.codegen.cuda_tiles import WARP
from fuscoc.codegen.cuda_types import CudaCast, CudaField
from fuscoc.lang.dtypes import ITEM_BYTES

# What rows may be cast from and to on the way, and the types of cast.cuh.
CAST_TYPES = {"bf16": "Bf16", "f16": "F16", "f32": "F32", "f8e4m3": "E4m3", "f8e5m2": "E5m2"}
LANE_ELEMENTS = 8


def cast_problem(
    casts: Sequence[CudaCast], leaving: Sequence[CudaField], arriving: Sequence[CudaField]
) -> str | None:
    """Why there are no kernels for casts between these fields; None if there are."""
    sources, targets = ({field.name: field for field in fields} for fields in (leaving, arriving))
    for cast in casts:
        name, source, target = cast.field, sources[cast.field], targets[cast.field]
        step = max(cast.block or 0, LANE_ELEMENTS)
        if cast.scales in sources:
            return f"`{name}` leaves with its scales"
        if ITEM_BYTES[target.dtype] > ITEM_BYTES[source.dtype]:
            return f"`{name}` gets longer on the way"
        if ITEM_BYTES[source.dtype] == 1:
            return f"`{name}` leaves as {source.dtype}"
        if cast.block is not None and not _is_block(cast.block):
            return f"the scales of `{name}` are for {cast.block} elements each"
        if target.elems % step:
            return f"`{name}` has {target.elems} elements, no multiple of {step}"
    return None


def _is_block(block: int) -> bool:
    """Whether consecutive lanes of a warp hold a block."""
    return LANE_ELEMENTS <= block <= LANE_ELEMENTS * WARP and block & (block - 1) == 0


def print_casts(
    casts: Sequence[CudaCast],
    leaving: Sequence[CudaField],
    arriving: Sequence[CudaField],
    offsets: Sequence[int],
) -> list[str]:
    """A member of ``Shape`` that casts a row; ``offsets`` are those of arriving fields in it."""
    at = {field.name: offset for field, offset in zip(arriving, offsets, strict=True)}
    sources, targets = ({field.name: field for field in fields} for fields in (leaving, arriving))
    lines = ["  __device__ static __forceinline__ void cast(char* row, int lane) {"]
    for cast in casts:
        target = targets[cast.field]
        types = f"{CAST_TYPES[sources[cast.field].dtype]}, {CAST_TYPES[target.dtype]}"
        scales = "nullptr"
        if cast.scales is not None:
            scales = f"reinterpret_cast<float*>(row + {at[cast.scales]})"
        lines.append(
            f"    cast_elements<{types}, {target.elems}, {cast.block or 0}>"
            f"(row + {at[cast.field]}, {scales}, lane);"
        )
    return [*lines, "  }"]
