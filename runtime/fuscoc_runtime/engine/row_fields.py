"""What a row of every buffer holds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.plan.links import network_fields
from fuscoc_runtime.schema import ShuffleSpec

COMBINED = ("staging", "forward_staging", "return_slices", "returned")
"""Buffers of combine, whose rows are those of a segment as it leaves, or partial sums of such."""


@dataclass(frozen=True)
class RowField:
    """A field of a segment row: contiguous, ``shape`` elements of ``dtype``."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @cached_property
    def row_bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def row_fields(shuffle: ShuffleSpec) -> dict[str, list[RowField]]:
    """The fields of every buffer's rows."""
    fields = dict.fromkeys(("carried", "slices", "landing"), network_fields(shuffle))
    fields |= {"target": shuffle.fields, **dict.fromkeys(COMBINED, shuffle.source_fields)}
    steps = shuffle.combine_steps
    dtypes = steps.dtypes if steps is not None else {}
    return {
        buffer: [
            RowField(f.name, TORCH_DTYPES[dtypes.get(f"{buffer}.{f.name}", f.dtype)], f.shape)
            for f in held
        ]
        for buffer, held in fields.items()
    }
