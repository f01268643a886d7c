"""A shuffle after checking: names resolved, constants folded, nothing left to go wrong.

This is the only thing that later rooms see of the language. Scalars are tiny expressions over
the domain's indices; they are lowered to ``arith`` by the dialect's builder and, independently,
written into the manifest for the runtime's reference to interpret.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Literal, TypeAlias

from fuscoc.lang import dtypes
from fuscoc.source import SourceFile, Span


@dataclass(frozen=True)
class Const:
    """An integer known at compile time."""

    value: int


@dataclass(frozen=True)
class IndexRef:
    """The value of a domain index, e.g. ``t``."""

    name: str


@dataclass(frozen=True)
class ExtentRef:
    """A run-time extent of the executing rank, e.g. ``tokens``, or its own number, ``rank``."""

    name: str


@dataclass(frozen=True)
class Load:
    """An element of an input tensor, e.g. ``topk_idx[t, k]`` or ``height[n]``.

    One of -1 in a route drops every point that depends on it, whatever is computed of it.
    """

    input: str
    at: tuple[Scalar, ...]


Operator: TypeAlias = Literal["+", "-", "*", "/", "%", "//", "min", "max", "cdiv"]
DIVISIONS: tuple[Operator, ...] = ("/", "%", "//", "cdiv")


@dataclass(frozen=True)
class BinaryOp:
    """Integer arithmetic; ``/`` floors, ``%`` is its remainder, and ``cdiv`` rounds up.

    Divisors are positive. In an extent ``/`` comes out even, and ``//`` floors: it is what a
    constant was divided by.
    """

    op: Operator
    lhs: Scalar
    rhs: Scalar


@dataclass(frozen=True)
class Inside:
    """A value read from an input that names a place below ``limit``, which is known to exist.

    At run time -1 drops the point, and any other value outside of [0, limit) is an error.
    """

    value: Scalar
    limit: Scalar


RANK, RANKS = ExtentRef("rank"), ExtentRef("ranks")

Scalar: TypeAlias = Const | IndexRef | ExtentRef | Load | BinaryOp | Inside


@dataclass(frozen=True)
class Bound:
    """``0 <= value < limit`` at every point, which nobody could prove: a run checks it."""

    value: Scalar
    limit: Scalar


@dataclass(frozen=True)
class Input:
    """A data tensor that the user passes with every call (routing, weights, image sizes, numbers
    that a cast computes with)."""

    name: str
    dtype: str
    shape: tuple[Scalar, ...]
    role: Literal["route", "weight", "extent", "placement", "cast"]
    span: Span


@dataclass(frozen=True)
class Field:
    """One typed part of a segment; ``shape`` is empty for a scalar field.

    Complex numbers are pairs of reals, the last dimension, and ``is_complex`` says that they were.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    span: Span
    is_complex: bool = False

    @property
    def spelled(self) -> str:
        """Its type as a spec has it."""
        return dtypes.spelled(self.dtype, self.shape, self.is_complex)


@dataclass(frozen=True)
class DomainIndex:
    """One loop of the iteration space. ``extent`` may load inputs at *earlier* indices (ragged);
    a division in a ragged extent must be exact at run time."""

    name: str
    extent: Scalar
    span: Span


@dataclass(frozen=True)
class Subscript:
    """One subscript of the source access: an index (``length is None``) or a run of cells."""

    start: Scalar
    length: int | None
    span: Span


def run_lengths(subscripts: Sequence[Subscript], order: Sequence[int]) -> tuple[int, ...]:
    """The lengths of the runs among subscripts, in an ``order`` of positions, if it is given."""
    given = [subscripts[position] for position in order] if order else subscripts
    return tuple(each.length for each in given if each.length is not None)


@dataclass(frozen=True)
class Source:
    """Where segments are read at dispatch (and written back at combine).

    The layout is an array of *cells*, row-major over ``dims`` (the innermost varies fastest), one
    tensor a field. A cell of field ``f`` has shape ``fields[f].shape``; a segment is the block of
    cells that ``subscripts`` names, so its field shape is the run lengths followed by the cell's
    shape. ``dims[d > 0]`` may load inputs at the outermost index (ragged): then the outer entries
    are concatenated. With an ``order``, the positions of the runs, a segment has them in this one,
    outermost first.
    """

    layout: str
    fields: tuple[Field, ...]
    dims: tuple[Scalar, ...]
    subscripts: tuple[Subscript, ...]
    span: Span
    order: tuple[int, ...] = ()

    @property
    def segment_fields(self) -> tuple[Field, ...]:
        """The fields of a segment as it lies in the source: what combine brings back."""
        runs = run_lengths(self.subscripts, self.order)
        return tuple(replace(field, shape=(*runs, *field.shape)) for field in self.fields)


@dataclass(frozen=True)
class GivenNumbers:
    """``count`` numbers of the input of that name: one for all channels, or one for each."""

    input: str
    count: int


@dataclass(frozen=True)
class ComputedNumbers:
    """An operation channel by channel, in f64; a single number is that of all channels."""

    op: Literal["+", "-", "*", "/"]
    lhs: Numbers
    rhs: Numbers

    @property
    def count(self) -> int:
        """How many numbers these are."""
        return max(count_of(self.lhs), count_of(self.rhs))


Numbers: TypeAlias = tuple[float, ...] | GivenNumbers | ComputedNumbers
ExactNumbers: TypeAlias = tuple[Fraction, ...] | GivenNumbers | ComputedNumbers


def count_of(numbers: Numbers | ExactNumbers) -> int:
    """How many numbers these are: one for all channels, or one for each."""
    return len(numbers) if isinstance(numbers, tuple) else numbers.count


@dataclass(frozen=True)
class Normalise:
    """``(x - shift) * factor`` of every element ``x`` of a field, in f32, both operations rounded.

    There is one of each for all, or one for each of the ``channels``, which is what the last
    dimension of the field counts. Constants are numbers of f32. Where a call gives any, all are
    computed in f64, by the rank that sends, and rounded to f32.
    """

    shifts: Numbers
    factors: Numbers

    @property
    def channels(self) -> int:
        """How many shifts and factors there are."""
        return max(count_of(self.shifts), count_of(self.factors))

    @property
    def given(self) -> tuple[GivenNumbers, ...]:
        """What is read from inputs, each once."""
        found: list[GivenNumbers] = []
        parts: list[Numbers] = [self.factors, self.shifts]
        while parts:
            match parts.pop():
                case GivenNumbers() as each:
                    found.append(each)
                case ComputedNumbers(_, lhs, rhs):
                    parts += [rhs, lhs]
        return tuple(dict.fromkeys(found))

    @property
    def constants(self) -> dict[str, tuple[float, ...]]:
        """The numbers by name, of f32, where all are constants."""
        assert isinstance(self.shifts, tuple)
        assert isinstance(self.factors, tuple)
        return {"shifts": self.shifts, "factors": self.factors}


@dataclass(frozen=True)
class Cast:
    """A field whose element type changes on the way.

    ``scales`` names a field of f32 factors, one for every ``block`` consecutive elements: one of
    the target alone, which dispatch makes, or one of the source alone, which it applies. A field
    without scales may be ``normalise``d before it is rounded to its new type.
    """

    field: str
    scales: str | None
    block: int | None
    span: Span
    normalise: Normalise | None = None

    @property
    def given(self) -> tuple[GivenNumbers, ...]:
        """The numbers that it reads from inputs, each once."""
        return () if self.normalise is None else self.normalise.given


@dataclass(frozen=True)
class Placement:
    """Which rank owns a key: ``block``, ``cyclic``, or the i64 input ``table`` [num_keys]."""

    kind: Literal["block", "cyclic", "table"]
    table: str | None
    span: Span


@dataclass(frozen=True)
class PackedTarget:
    """Ragged destination: fuscoc assigns the slots, contiguous for each key, keys ascending.

    A key takes whole blocks of ``align`` slots, as many as the rule ``padding`` says for its points
    (``fuscoc.lang.padding``). ``capacity`` is the most slots a rank may hold (``None``: exactly
    what arrives). A ``compact`` target holds every segment once, in a row that its slots refer to.
    If keys are ``distinct``, no two points of a segment have one; -1 is none.
    ``placed`` is the key of the index that is placed, and -1 drops the point; where the layout is
    packed by further ones, ``group`` consecutive values of ``key``, a number in mixed radix, belong
    to one value of ``placed``.
    """

    layout: str
    key: Scalar
    placed: Scalar
    num_keys: int
    group: int
    align: int
    padding: str
    capacity: int | None
    compact: bool
    placement: Placement
    span: Span
    distinct: bool = False


@dataclass(frozen=True)
class DenseTarget:
    """Destination whose slots the spec computes. A rank of -1 drops the point."""

    layout: str
    slot: Scalar
    rank: Scalar
    length: Scalar
    span: Span


@dataclass(frozen=True)
class Weight:
    """Per-point factor of a weighted combine, read from an input at the domain's indices."""

    name: str
    input: str
    dtype: str
    span: Span


@dataclass(frozen=True)
class Combine:
    """The way back: a reduction, or ``copy`` where every segment has exactly one destination.

    Where inputs say which cells a segment is, a run checks that no two segments have one in common,
    ``checks_cells``. Those that have begin with the same one.
    """

    kind: str
    weight: Weight | None
    span: Span
    checks_cells: bool = False


@dataclass(frozen=True)
class Into:
    """Memory of the caller's that rows go into from their slots, on every rank by itself.

    A call is given it under the name of its ``layout``, for every one of ``fields`` a tensor
    [*dims, *cell shape]. Rows are cut into parts that lie one behind the other there. ``parts`` is
    a shuffle of a rank to itself: its source are the slots of the target, its segments parts of
    rows, and its slots as many parts of the memory. Of ``kind`` ``copy`` they are put there, of
    ``sum`` added to what is there.
    """

    layout: str
    dims: tuple[Scalar, ...]
    fields: tuple[Field, ...]
    parts: CheckedShuffle
    kind: str
    span: Span


@dataclass(frozen=True)
class Policy:
    """Optional knobs, with the defaults the compiler chose."""

    dedup: tuple[Literal["node", "rank"], ...]
    balance: str
    schedule: str
    slice_bytes: int
    backend: str


@dataclass(frozen=True)
class CheckedShuffle:
    """One shuffle, ready to lower.

    ``domain[:num_source_dims]`` enumerates source segments; the remaining indices fan each out
    (their extents are constants, or all ranks: ``RANKS``). ``segment`` is what arrives; its fields
    correspond one to one to ``source.fields``, but for element types and scales that ``casts``
    change. ``extents`` are given with every call; ``builtins`` (``rank``, ``ranks``) are those that
    the shuffle depends on without being given them. ``bounds`` are left for a run to check.
    ``option_spans`` says where ``policy`` comes from.

    With a ``reply`` the way back is the combine of that shuffle, which has the same points, slots
    and owners, and whose source are the reply's rows; it ``is_reply`` itself, and ``shares_plan``
    where its rows stand for the segments of the dispatch, one for one. A ``combine`` beside it only
    takes gradients back to what was sent. What a point of the dispatch looks up to find its
    segment is nothing that a reply reads; ``dropping`` are the values of that, inner ones first,
    which drop the point where they are -1.
    """

    name: str
    source_file: SourceFile
    span: Span
    constants: tuple[tuple[str, int], ...]
    extents: tuple[str, ...]
    inputs: tuple[Input, ...]
    domain: tuple[DomainIndex, ...]
    num_source_dims: int
    segment: str
    fields: tuple[Field, ...]
    source: Source
    target: PackedTarget | DenseTarget
    combine: Combine | None
    policy: Policy
    dispatch_span: Span
    builtins: tuple[str, ...] = ()
    casts: tuple[Cast, ...] = ()
    bounds: tuple[Bound, ...] = ()
    option_spans: tuple[tuple[str, Span], ...] = ()
    into: Into | None = None
    dropping: tuple[Scalar, ...] = ()
    reply: CheckedShuffle | None = None
    is_reply: bool = False
    shares_plan: bool = False

    @property
    def fan_out(self) -> tuple[DomainIndex, ...]:
        """The indices by which a source segment goes to several places."""
        return self.domain[self.num_source_dims :]

    @property
    def fanout(self) -> int:
        """Destinations of a source segment; of each rank, if it goes to ``every_rank``."""
        fan = [index.extent for index in self.fan_out]
        return prod(extent.value for extent in fan if isinstance(extent, Const))

    @property
    def every_rank(self) -> DomainIndex | None:
        """The index of all ranks, by which segments fan out."""
        return next((index for index in self.fan_out if index.extent == RANKS), None)

    @property
    def is_static(self) -> bool:
        """Whether rank and number of ranks alone decide the plan, so that it never changes."""
        return not self.extents and all(each.role in ("weight", "cast") for each in self.inputs)

    def option_span(self, name: str) -> Span:
        """Where the dispatch gives an option, or all of it where that is left to the default."""
        return dict(self.option_spans).get(name, self.dispatch_span)
