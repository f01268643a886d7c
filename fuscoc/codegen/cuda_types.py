"""What the kernels of one node are printed from: the rows of a shuffle, and where they go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from fuscoc.lang.dtypes import ITEM_BYTES

# What CUDA kernels reduce, by their own names.
REDUCED = {
    "bf16": "Bf16",
    "f16": "F16",
    "f32": "F32",
    "f64": "Number<double>",
    "i8": "Number<signed char>",
    "i16": "Number<short>",
    "i32": "Number<int>",
    "i64": "Number<i64>",
    "u8": "Number<unsigned char>",
}
# What combine makes of elements of such a type, by the headers' own names.
COMBINED = {"copy": "Raw", "sum": "{}", "max": "Largest<{}>"}

MAX_RANKS = 8


@dataclass(frozen=True)
class CudaLoop:
    """``count`` runs of a field, ``stride`` cells apart, or as many as an output of the relation
    says."""

    count: int
    stride: int | str


@dataclass(frozen=True)
class CudaField:
    """A field of a segment: ``elems`` elements in a segment, ``cell_elems`` in a source cell.

    In the source it may lie in runs of ``run_elems``, inside nested ``loops``, outermost first.
    ``multiple`` are bytes that divide where each of its runs begins, if more is known than that
    segments begin with cells.
    """

    name: str
    dtype: str
    elems: int
    cell_elems: int
    run_elems: int = 0
    loops: tuple[CudaLoop, ...] = ()
    multiple: int = 0

    @property
    def begin_bytes(self) -> int:
        """What divides where a run begins in the source, in bytes."""
        return self.multiple or self.cell_elems * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class CudaInput:
    """An input tensor of the relation."""

    name: str
    dtype: str


@dataclass(frozen=True)
class CudaCast:
    """A field whose type changes on the way; ``scales`` is made, one for every ``block``, or, if
    it is ``applied``, leaves with the field. With ``factors`` it is normalised, and
    with ``channels`` by as many numbers of the call: see `Normalise`."""

    field: str
    scales: str | None
    block: int | None
    applied: bool = False
    shifts: tuple[float, ...] = ()
    factors: tuple[float, ...] = ()
    channels: int | None = None


@dataclass(frozen=True)
class CudaShuffle:
    """What the kernels of one node need to know of a shuffle.

    ``inputs`` and ``extents`` are those of a call, in order. ``fanout`` is the number of
    destinations of a segment. ``fields`` are those of a row that arrives; where it leaves as
    something else, by ``casts`` or from scattered runs, ``source_fields`` leave. With ``compact`` a
    segment has one row on a rank, and slots refer to rows. With ``given_slots`` the relation says
    the slot of every point and nothing is counted: there are no keys. With ``ragged`` extents vary
    with the outermost index, as inputs say. Segments that go to ``every_rank`` have ``fanout``
    points for each; ``everywhere``: and none of them is dropped. ``in_order``: segment i lies
    behind segment i - 1, so that nothing needs to be stored to find it. ``apart``: a call checks
    that no two segments begin with the same source cell. ``by_table``: an input places keys.
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
    given_slots: bool = False
    ragged: bool = False
    every_rank: bool = False
    everywhere: bool = False
    in_order: bool = True
    apart: bool = False
    padding: str = "fewest"
    by_table: bool = False

    @property
    def num_columns(self) -> int:
        """What ranks tell each other counts of; of given slots, how many each of them has."""
        return 1 if self.given_slots else num_columns(self.num_keys, self.compact)

    @property
    def is_placed(self) -> bool:
        """Whether segments need not lie one behind the other: planning stores a place for each.
        What combine makes of one goes there, and cells of no segment are left alone."""
        return self.given_slots or not self.in_order

    @property
    def leaving(self) -> tuple[CudaField, ...]:
        """The fields of a row that leaves the source, and of one that combine sums."""
        return self.source_fields or self.fields


def num_columns(num_keys: int, compact: bool) -> int:
    """What planning counts rows of: every key and, for a compact target, every rank."""
    return num_keys + (MAX_RANKS if compact else 0)


def row_bytes(field: CudaField) -> int:
    return field.elems * ITEM_BYTES[field.dtype]


def run_bytes(field: CudaField) -> int:
    """Bytes of a field that lie together in the source, whatever a call says."""
    return field.run_elems * ITEM_BYTES[field.dtype] if field.loops else row_bytes(field)


def unit_bytes(field: CudaField) -> int:
    """Widest unit, up to 16 bytes, that divides the field's runs and where they begin."""
    return gcd(16, run_bytes(field), field.begin_bytes)


def choose(values: Sequence[object], index: str = "field") -> str:
    """``values[index]`` as an expression that folds to a constant."""
    head = "".join(f"{index} == {i} ? {value} : " for i, value in enumerate(values[:-1]))
    return f"{head}{values[-1]}"
