"""What a row of every buffer holds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.manifest.program import Program


@dataclass(frozen=True)
class RowField:
    """A field of a segment row: contiguous, ``shape`` elements of ``dtype``."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @cached_property
    def row_bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def row_fields(program: Program) -> dict[str, list[RowField]]:
    """The fields of every buffer's rows."""
    return {
        buffer: [RowField(f.name, TORCH_DTYPES[f.dtype], f.shape) for f in fields]
        for buffer, fields in program.buffers.items()
    }
