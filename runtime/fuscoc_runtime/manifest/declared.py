"""What a spec declares, as an artifact says it: relation and shapes, as the checker wrote them.

The reference, the checks of arguments, and messages read it; what is executed follows the program.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from fuscoc_runtime.padding import check_padding
from fuscoc_runtime.scalar import Inside, Load, Scalar, subexpressions


@dataclass(frozen=True)
class InputSpec:
    """A data tensor passed with every call; its shape is in the rank's own extents."""

    name: str
    dtype: str
    shape: tuple[Scalar, ...]
    role: Literal["route", "weight", "extent", "placement", "cast"]


ITEM_BYTES: dict[str, int] = {
    **dict.fromkeys(("bool", "i8", "u8", "f8e4m3", "f8e5m2"), 1),
    **dict.fromkeys(("i16", "u16", "f16", "bf16"), 2),
    **dict.fromkeys(("i32", "u32", "f32"), 4),
    **dict.fromkeys(("i64", "u64", "f64"), 8),
}
"""Of element types, by their names in a manifest."""


@dataclass(frozen=True)
class FieldSpec:
    """A typed part of a segment or of a cell.

    Complex numbers are pairs of reals, the last dimension, everywhere but in what a user gives and
    gets (``is_complex``).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    is_complex: bool = False

    @property
    def num_elems(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of a row of the field."""
        return self.num_elems * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class DomainIndex:
    """One loop of the iteration space; the extent may load inputs at earlier indices (ragged)."""

    name: str
    extent: Scalar


@dataclass(frozen=True)
class Subscript:
    """One subscript of the source access: an index, or a run of ``length`` cells."""

    start: Scalar
    length: int | None


@dataclass(frozen=True)
class SourceSpec:
    """An array of cells, row-major over ``dims``; outer entries are concatenated when ragged.

    A segment has its runs in the ``order`` of these positions, or as the layout has them.
    """

    layout: str
    fields: tuple[FieldSpec, ...]
    dims: tuple[Scalar, ...]
    subscripts: tuple[Subscript, ...]
    order: tuple[int, ...] = ()

    @property
    def runs(self) -> tuple[int, ...]:
        """The positions of the subscripts that are runs, as a segment has them, outermost first."""
        found = (at for at, each in enumerate(self.subscripts) if each.length is not None)
        return self.order or tuple(found)


@dataclass(frozen=True)
class PlacementSpec:
    """Which rank owns a key; ``table`` names an int64 input [num_keys]."""

    kind: Literal["block", "cyclic", "table"]
    table: str | None


@dataclass(frozen=True)
class PackedTarget:
    """Slots assigned by the planner: keys ascending, each in whole blocks of ``align`` of them.

    How many, the rule ``padding`` says; none is more than ``most_padding`` beyond a key's points.
    ``group`` consecutive keys belong to one value of ``placed``, the key that says which rank owns
    them; it is ``key`` itself, and groups are of one, unless a layout is packed by several indices.

    Rows lie in their slots; those of a ``compact`` target once a rank, and slots refer to them. If
    keys are ``distinct``, those of a segment's points differ, but for -1. ``agreed``: the extents
    that all ranks have to give alike.
    """

    kind: Literal["packed"]
    layout: str
    key: Scalar
    placed: Scalar
    num_keys: int
    group: int
    align: int
    padding: str
    most_padding: int
    capacity: int | None
    placement: PlacementSpec
    compact: bool = False
    distinct: bool = False
    agreed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_padding(self)


@dataclass(frozen=True)
class DenseTarget:
    """Slots computed by the spec, ``length`` of them on a rank. ``agreed``: the extents that all
    ranks have to give alike."""

    kind: Literal["dense"]
    layout: str
    slot: Scalar
    rank: Scalar
    length: Scalar
    agreed: tuple[str, ...] = ()


@dataclass(frozen=True)
class GivenNumbers:
    """Those of an input, f32: one for all channels, or one for each."""

    kind: Literal["given"]
    input: str


@dataclass(frozen=True)
class ComputedNumbers:
    """An operation channel by channel, in f64."""

    kind: Literal["computed"]
    op: Literal["+", "-", "*", "/"]
    lhs: Numbers
    rhs: Numbers


Numbers: TypeAlias = tuple[float, ...] | GivenNumbers | ComputedNumbers


@dataclass(frozen=True)
class NormaliseSpec:
    """``(x - shift) * factor``, in f32, of every element: one of each for all, or for every one of
    ``channels``, the elements of the last dimension. Constants are numbers of f32, or of f64 where
    others are a call's; then the rank that sends computes both in f64, of its own inputs, and
    rounds them once."""

    shifts: Numbers
    factors: Numbers
    channels: int

    @property
    def is_given(self) -> bool:
        """Whether a call gives any of the numbers."""
        return not (isinstance(self.shifts, tuple) and isinstance(self.factors, tuple))


@dataclass(frozen=True)
class CastSpec:
    """A field whose dtype changes on the way.

    ``scales`` is a field of the target alone, made from ``block`` consecutive elements each, or of
    the source alone, applied to as many. Others may be ``normalise``d before they are rounded.
    """

    field: str
    scales: str | None
    block: int | None
    normalise: NormaliseSpec | None = None


@dataclass(frozen=True)
class WeightSpec:
    """Factor of every domain point in a weighted combine: ``input``, read in domain order."""

    name: str
    input: str
    dtype: str


@dataclass(frozen=True)
class Bound:
    """``0 <= value < limit`` at every point, which was not proved: a run checks it."""

    value: Scalar
    limit: Scalar


WAYS_BACK = ["copy", "sum", "max"]
"""What a combine may do."""


@dataclass(frozen=True)
class CombineSpec:
    """The way back: ``copy`` moves bits, others reduce; ``sum`` adds in f32."""

    kind: str
    weight: WeightSpec | None

    def __post_init__(self) -> None:
        if self.kind not in WAYS_BACK:
            raise ValueError(f"{self.kind!r} is none of {', '.join(map(repr, WAYS_BACK))}")

    @property
    def is_linear(self) -> bool:
        """Whether it is the transpose of a dispatch, and so brings gradients back."""
        return self.kind in ("copy", "sum")


@dataclass(frozen=True)
class Declared:
    """What the spec declares: relation and shapes, as the checker wrote them.

    Read by the reference, by the checks of arguments, and for messages. What is executed follows
    ``Program``. ``fields`` are those of a segment that arrives. ``dropping``: of a reply, what the
    points that it answers look up to find their segments, and are dropped by.
    """

    constants: Mapping[str, int]
    extents: tuple[str, ...]
    inputs: tuple[InputSpec, ...]
    domain: tuple[DomainIndex, ...]
    num_source_dims: int
    segment: str
    fields: tuple[FieldSpec, ...]
    source: SourceSpec
    target: PackedTarget | DenseTarget
    combine: CombineSpec | None
    casts: tuple[CastSpec, ...] = ()
    bounds: tuple[Bound, ...] = ()
    dropping: tuple[Scalar, ...] = ()

    @property
    def source_fields(self) -> tuple[FieldSpec, ...]:
        """The fields of a segment as it leaves; those of the rows that combine brings back."""
        given = (self.source.subscripts[at].length for at in self.source.runs)
        lengths = tuple(length for length in given if length is not None)
        return tuple(replace(each, shape=(*lengths, *each.shape)) for each in self.source.fields)

    @property
    def fan_out(self) -> tuple[DomainIndex, ...]:
        """The indices by which every segment goes to several places."""
        return self.domain[self.num_source_dims :]

    @property
    def computes_slots(self) -> bool:
        """Whether destinations follow from indices and extents, on which ranks must then agree."""
        target = self.target
        return target.kind == "dense" and not any(
            isinstance(part, Load)
            for scalar in (target.slot, target.rank)
            for part in subexpressions(scalar)
        )

    @property
    def places(self) -> tuple[Inside, ...]:
        """What a point looks up by values of inputs, inner ones before what they are inside of."""
        return tuple(dict.fromkeys(part for part in self._parts if isinstance(part, Inside)))

    @property
    def drops(self) -> tuple[Scalar, ...]:
        """What drops a point where it is -1: what the point reads from routes, its places, its key
        or rank."""
        routes = {given.name for given in self.inputs if given.role == "route"}
        read = [part for part in self._parts if isinstance(part, Load) and part.input in routes]
        end = self.target.placed if self.target.kind == "packed" else self.target.rank
        placed = (place.value for place in self.places)
        return tuple(dict.fromkeys([*self.dropping, *read, *placed, end]))

    @property
    def _parts(self) -> list[Scalar]:
        """Everything that a point evaluates, inner parts before what they are inside of."""
        target = self.target
        ends = (target.key,) if target.kind == "packed" else (target.rank, target.slot)
        scalars = (*(each.start for each in self.source.subscripts), *ends)
        return [part for each in scalars for part in reversed(tuple(subexpressions(each)))]
