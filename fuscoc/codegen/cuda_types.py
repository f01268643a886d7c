"""What the kernels of one node are printed from: a shuffle whose segments are contiguous rows."""

from __future__ import annotations

from dataclasses import dataclass

from fuscoc.lang.dtypes import ITEM_BYTES

# What CUDA kernels reduce, and what those of Triton inside one node sum up, by their own names.
SUMMABLE = {"bf16": "Bf16", "f16": "F16", "f32": "F32"}
# What combine makes of elements of such a type, by the headers' own names.
COMBINED = {"copy": "Raw", "sum": "{}", "max": "Largest<{}>"}
FLOATS = {"bf16": "bfloat16", "f32": "float32"}

MAX_RANKS = 8


@dataclass(frozen=True)
class CudaField:
    """A field of a segment: ``elems`` elements in a segment, ``cell_elems`` in a source cell."""

    name: str
    dtype: str
    elems: int
    cell_elems: int


@dataclass(frozen=True)
class CudaInput:
    """An input tensor of the relation."""

    name: str
    dtype: str


@dataclass(frozen=True)
class CudaCast:
    """A field whose type changes on the way; ``scales`` is made, one for every ``block``."""

    field: str
    scales: str | None
    block: int | None


@dataclass(frozen=True)
class CudaShuffle:
    """What the backend needs to know of a shuffle whose segments are contiguous rows.

    ``inputs`` and ``extents`` are those of a call, in order. ``fanout`` is the number of
    destinations of a segment. ``fields`` are those of a row that arrives; where ``casts`` make
    them, ``source_fields`` leave. With ``compact`` a segment has one row on a rank, and slots refer
    to rows.
    """

    name: str
    fields: tuple[CudaField, ...]
    extents: tuple[str, ...]
    inputs: tuple[CudaInput, ...]
    fanout: int
    num_keys: int
    align: int
    combine: str | None
    weighted: bool
    casts: tuple[CudaCast, ...] = ()
    source_fields: tuple[CudaField, ...] = ()
    compact: bool = False

    @property
    def num_columns(self) -> int:
        return num_columns(self.num_keys, self.compact)

    @property
    def leaving(self) -> tuple[CudaField, ...]:
        """The fields of a row that leaves the source, and of one that combine sums."""
        return self.source_fields or self.fields


def num_columns(num_keys: int, compact: bool) -> int:
    """What planning counts rows of: every key and, for a compact target, every rank."""
    return num_keys + (MAX_RANKS if compact else 0)


def row_bytes(field: CudaField) -> int:
    return field.elems * ITEM_BYTES[field.dtype]


def unit_bytes(field: CudaField) -> int:
    """Widest unit, up to 16 bytes, that divides the field's rows and source cells."""
    cell = field.cell_elems * ITEM_BYTES[field.dtype]
    return next(u for u in (16, 8, 4, 2, 1) if row_bytes(field) % u == 0 and cell % u == 0)
