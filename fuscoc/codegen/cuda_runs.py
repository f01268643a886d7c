"""Scattered segments in the CUDA kernels: where the runs of a field lie in the source.

A row buffer is filled run by run, and combine puts every vector of a row to its run.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuscoc.codegen.cuda_types import CudaField, choose, row_bytes
from fuscoc.lang.dtypes import ITEM_BYTES


def num_strides(fields: Sequence[CudaField]) -> int:
    """Strides between runs that only a call knows: those of every field are the same."""
    return max(sum(isinstance(loop.stride, str) for loop in f.loops) for f in fields)


def print_runs(fields: Sequence[CudaField]) -> list[str]:
    """Members of a ``Shape``: the bytes of a run, and where it begins, by its number."""
    runs = [f.run_elems * ITEM_BYTES[f.dtype] if f.loops else row_bytes(f) for f in fields]
    return [
        "  __device__ static constexpr int run_bytes(int field) { return " + choose(runs) + "; }",
        "  __device__ static i64 run_offset(int field, int run, const i64* strides) {",
        f"    return {choose([_offset(field) for field in fields])};",
        "  }",
    ]


def _offset(field: CudaField) -> str:
    """Bytes from the begin of a segment's field to that of run ``run``."""
    cell, terms, inner = field.cell_elems * ITEM_BYTES[field.dtype], list[str](), 1
    given = sum(isinstance(loop.stride, str) for loop in field.loops)
    for position, loop in reversed(list(enumerate(field.loops))):
        index = "run" if inner == 1 else f"run / {inner}"
        if position > 0:
            index = f"{index} % {loop.count}"
        inner *= loop.count
        if isinstance(loop.stride, str):
            given -= 1
            terms.insert(0, f"i64({index}) * {cell} * strides[{given}]")
        else:
            terms.insert(0, f"i64({index}) * {cell * loop.stride}")
    return " + ".join(terms) or "0"
