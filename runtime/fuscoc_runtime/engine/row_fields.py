"""What a row of every buffer holds, and tensors like those of the source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

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


def like_the_source(
    program: Program,
    shapes: Mapping[str, torch.Size],
    device: torch.device,
    make: Callable[..., Tensor] = torch.zeros,
) -> dict[str, Tensor]:
    """A tensor for every field of the source, of these shapes: what a combine's results are."""
    return {
        field.name: make(shapes[field.name], dtype=TORCH_DTYPES[field.dtype], device=device)
        for field in program.buffers["source"]
    }
