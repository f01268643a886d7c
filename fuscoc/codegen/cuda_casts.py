"""Casts in the CUDA kernels: what cast.cuh can do, and the call that does it.

A warp turns the row in its row buffer into the row that arrives: in place, eight elements a lane,
if it does not get longer and consecutive lanes hold a block; or else from one part of the buffer to
another, in single elements. One that computes (normalise.cuh) goes from part to part, too, by
groups of elements whose channels the text knows.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuscoc.codegen.cuda_types import CudaCast, CudaField, choose
from fuscoc.lang.dtypes import ITEM_BYTES, NARROW

# What rows may be cast from and to on the way, and the types of cast.cuh.
CAST_TYPES = {
    "bf16": "Bf16",
    "f16": "F16",
    "f32": "F32",
    "f8e4m3": "E4m3",
    "f8e5m2": "E5m2",
    "i8": "Integer<signed char>",
    "i16": "Integer<short>",
    "u8": "Integer<unsigned char>",
}
LANE_ELEMENTS = 8
WARP_ELEMENTS = 32 * LANE_ELEMENTS


def in_place(cast: CudaCast, leaving: CudaField, arriving: CudaField) -> bool:
    """Whether a warp can cast a field where it lies."""
    apart = cast.applied or cast.factors
    return not apart and fits_in_place(leaving.dtype, arriving.dtype, arriving.elems, cast.block)


def fits_in_place(leaves: str, arrives: str, elems: int, block: int | None) -> bool:
    """The same of so many elements that leave as one type and arrive as another."""
    part = block or LANE_ELEMENTS
    shared = WARP_ELEMENTS % part == part % LANE_ELEMENTS == elems % part == 0
    return shared and leaves not in NARROW and ITEM_BYTES[arrives] <= ITEM_BYTES[leaves]


def print_casts(
    casts: Sequence[CudaCast],
    leaving: Sequence[CudaField],
    arriving: Sequence[CudaField],
    offsets: Sequence[int],
    left_at: Sequence[int],
) -> list[str]:
    """A member of ``Shape`` that casts a row; ``offsets`` are those of arriving fields in the
    buffer, ``left_at`` those of leaving ones.

    Without ``casts`` it does nothing, to rows that are no others than in the source.
    """
    at = {field.name: offset for field, offset in zip(arriving, offsets, strict=True)}
    left = {field.name: offset for field, offset in zip(leaving, left_at, strict=True)}
    sources, targets = ({field.name: field for field in fields} for fields in (leaving, arriving))
    numbers = list[str]()
    lines = ["  __device__ static __forceinline__ void cast(char* row, int lane) {"]
    for position, cast in enumerate(casts):
        target = targets[cast.field]
        types = f"{CAST_TYPES[sources[cast.field].dtype]}, {CAST_TYPES[target.dtype]}"
        scales = "nullptr"
        if cast.scales is not None:
            ends = left if cast.applied else at
            scales = f"reinterpret_cast<float*>(row + {ends[cast.scales]})"
        if cast.factors:
            numbers += _line(f"Line{position}", cast)
            lines.append(
                f"    normalise<{types}, {target.elems}, Line{position}>"
                f"(row + {left[cast.field]}, row + {at[cast.field]}, lane);"
            )
            continue
        sizes, place = f"{target.elems}, {cast.block or 0}", f"row + {at[cast.field]}"
        if left[cast.field] == at[cast.field]:
            lines.append(f"    cast_elements<{types}, {sizes}>({place}, {scales}, lane);")
            continue
        applied = str(cast.applied).lower()
        lines.append(
            f"    cast_apart<{types}, {sizes}, {applied}>"
            f"(row + {left[cast.field]}, {place}, {scales}, lane);"
        )
    return [*numbers, *lines, "  }"]


def _line(name: str, cast: CudaCast) -> list[str]:
    """What a cast computes with, by channel."""
    lines = [f"  struct {name} {{", f"    static constexpr int channels = {len(cast.factors)};"]
    for function, values in (("shift", cast.shifts), ("factor", cast.factors)):
        chosen = choose([f"{value.hex()}f" for value in values], "channel")
        lines += [
            f"    __device__ static constexpr float {function}(int channel) {{ return {chosen}; }}"
        ]
    return [*lines, "  };"]
