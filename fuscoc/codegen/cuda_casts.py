"""Casts in the CUDA kernels: what cast.cuh can do, and the call that does it.

A warp turns the row in its row buffer into the row that arrives, eight elements a lane, in place:
so rows do not get longer, and consecutive lanes hold a block.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuscoc.codegen.cuda_types import CudaCast, CudaField

# What rows may be cast from and to on the way, and the types of cast.cuh.
CAST_TYPES = {"bf16": "Bf16", "f16": "F16", "f32": "F32", "f8e4m3": "E4m3", "f8e5m2": "E5m2"}
LANE_ELEMENTS = 8


def print_casts(
    casts: Sequence[CudaCast],
    leaving: Sequence[CudaField],
    arriving: Sequence[CudaField],
    offsets: Sequence[int],
) -> list[str]:
    """A member of ``Shape`` that casts a row; ``offsets`` are those of arriving fields in it.

    Without ``casts`` it does nothing, to rows that are no others than in the source.
    """
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
