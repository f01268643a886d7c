"""The manifest of an artifact, schema 1, as frozen dataclasses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from fuscoc_runtime.scalar import Inside, Load, Scalar, subexpressions


@dataclass(frozen=True)
class InputSpec:
    """A data tensor passed with every call; its shape is in the rank's own extents."""

    name: str
    dtype: str
    shape: tuple[Scalar, ...]
    role: Literal["route", "weight", "extent", "placement"]


@dataclass(frozen=True)
class FieldSpec:
    """A typed part of a segment or of a cell."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_elems(self) -> int:
        return math.prod(self.shape)


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
    """An array of cells, row-major over ``dims``; outer entries are concatenated when ragged."""

    layout: str
    fields: tuple[FieldSpec, ...]
    dims: tuple[Scalar, ...]
    subscripts: tuple[Subscript, ...]


@dataclass(frozen=True)
class PlacementSpec:
    """Which rank owns a key; ``table`` names an int64 input [num_keys]."""

    kind: Literal["block", "cyclic", "table"]
    table: str | None


@dataclass(frozen=True)
class PackedTarget:
    """Slots assigned by the planner: keys ascending, each at a multiple of ``align``.

    Rows lie in their slots; those of a ``compact`` target once a rank, and slots refer to them.
    """

    kind: Literal["packed"]
    layout: str
    key: Scalar
    num_keys: int
    align: int
    capacity: int | None
    placement: PlacementSpec
    compact: bool = False


@dataclass(frozen=True)
class DenseTarget:
    """Slots computed by the spec, ``length`` of them on a rank."""

    kind: Literal["dense"]
    layout: str
    slot: Scalar
    rank: Scalar
    length: Scalar


@dataclass(frozen=True)
class CastSpec:
    """A field whose dtype changes on the way.

    ``scales`` is a field of the target alone, made from ``block`` consecutive elements each, or of
    the source alone, applied to as many.
    """

    field: str
    scales: str | None
    block: int | None


@dataclass(frozen=True)
class WeightSpec:
    """Factor of every domain point in a weighted combine: ``input``, read in domain order."""

    name: str
    input: str
    dtype: str


@dataclass(frozen=True)
class CombineSpec:
    """The way back; ``copy`` moves bits, ``sum`` adds in f32."""

    kind: Literal["copy", "sum", "max"]
    weight: WeightSpec | None


@dataclass(frozen=True)
class PolicySpec:
    """Knobs of the plan and of the pipeline; what is listed here is what this runtime can do."""

    dedup: tuple[Literal["node", "rank"], ...]
    balance: Literal["none", "static", "greedy", "lpt", "split", "rebalance", "auto"]
    schedule: Literal["pairwise", "fast", "auto"]
    slice_bytes: int
    backend: str

    @property
    def balances_senders(self) -> bool:
        """Whether a rank may send rows of another rank of its node."""
        return self.balance in ("rebalance", "auto")


@dataclass(frozen=True)
class RunDim:
    """An outer run dimension: strides in cells (source, or a column's name) and elements (row)."""

    count: int
    src_stride: int | str
    dst_stride: int


@dataclass(frozen=True)
class FieldRuns:
    """How one field of a segment is copied."""

    name: str
    dtype: str
    run_elems: int
    run_dims: tuple[RunDim, ...]
    seg_elems: int
    cell_elems: int
    unit_bytes: int
    copy_dtype: str


@dataclass(frozen=True)
class RelationSpec:
    """The kernel that evaluates the relation, ``block`` domain points a program."""

    kernel: str
    block: int
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class LaunchStep:
    """Run a kernel over a descriptor list. ``bind``: kernel argument -> buffer."""

    op: Literal["launch"]
    kernel: str
    list: str
    bind: Mapping[str, str]
    signal: int | None = None
    wait: tuple[int, ...] = ()


@dataclass(frozen=True)
class ExchangeStep:
    """The network hop: the rows of ``list`` to their forwarders, or their results back."""

    op: Literal["exchange"]
    list: str
    direction: Literal["forward", "back"]


@dataclass(frozen=True)
class PathSpec:
    """The steps of dispatch or of combine, in order.

    ``dtypes`` are those of the buffers (``staging.x``) whose rows are not of their field's dtype.
    """

    steps: tuple[LaunchStep | ExchangeStep, ...]
    dtypes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CudaLaunch:
    """The CTA of a CUDA kernel: threads, and dynamic shared memory in bytes."""

    threads: int
    shared_bytes: int


@dataclass(frozen=True)
class CudaCubin:
    """Machine code for the GPU ``arch``, made with the device headers of that digest."""

    arch: str
    file: str
    headers: str


@dataclass(frozen=True)
class CudaVariant:
    """CUDA text for GPUs from ``arch`` on whose CTAs may have ``shared_bytes`` of memory."""

    arch: str
    file: str
    shared_bytes: int
    launches: Mapping[str, CudaLaunch]
    tile: Mapping[str, int]
    cubins: tuple[CudaCubin, ...]


@dataclass(frozen=True)
class CudaSpec:
    """The CUDA kernels of a shuffle; ``inputs`` are those of the relation, in argument order."""

    inputs: tuple[str, ...]
    weighted: bool
    row_bytes: tuple[int, ...]
    variants: tuple[CudaVariant, ...]


@dataclass(frozen=True)
class NodeSpec:
    """The Triton kernels of a shuffle inside one node.

    ``kernels``: names by role, ``count``, ``exchange``, ``assign``, ``dispatch`` and, for a sum,
    ``combine``. A program of the planner takes ``tile_sources`` segments; keys are padded to
    ``padded_keys`` and exchanged by ``key_block``.
    """

    kernels: Mapping[str, str]
    tile_sources: int
    padded_keys: int
    key_block: int


@dataclass(frozen=True)
class ShuffleSpec:
    """One compiled shuffle. ``fields`` are those of a segment that arrives. ``baked``: files of
    plans made when compiling, by topology.

    Where there are no CUDA kernels, ``cuda`` is None and ``cuda_note`` says why; so do ``node`` and
    ``node_note`` of the Triton kernels for one node.
    """

    name: str
    constants: Mapping[str, int]
    extents: tuple[str, ...]
    inputs: tuple[InputSpec, ...]
    domain: tuple[DomainIndex, ...]
    num_source_dims: int
    ragged: bool
    segment: str
    fields: tuple[FieldSpec, ...]
    source: SourceSpec
    target: PackedTarget | DenseTarget
    combine: CombineSpec | None
    policy: PolicySpec
    src_strides: int
    runs: tuple[FieldRuns, ...]
    relation: RelationSpec
    extents_kernel: str | None
    dispatch: PathSpec
    combine_steps: PathSpec | None
    casts: tuple[CastSpec, ...] = ()
    baked: Mapping[str, str] = field(default_factory=dict)
    cuda: CudaSpec | None = None
    cuda_note: str | None = None
    node: NodeSpec | None = None
    node_note: str | None = None

    @property
    def is_static(self) -> bool:
        """Whether rank and number of ranks alone decide the plan, so that it never changes."""
        return not self.extents and all(each.role == "weight" for each in self.inputs)

    @property
    def is_compact(self) -> bool:
        """Whether a rank holds every segment once, in a row that slots refer to."""
        return self.target.kind == "packed" and self.target.compact

    @property
    def source_fields(self) -> tuple[FieldSpec, ...]:
        """The fields of a segment as it leaves; those of the rows that combine brings back."""
        lengths = tuple(s.length for s in self.source.subscripts if s.length is not None)
        return tuple(replace(each, shape=(*lengths, *each.shape)) for each in self.source.fields)

    @property
    def is_differentiable(self) -> bool:
        """Whether gradients flow: dispatch's transpose is combine, if that copies or sums."""
        return self.combine is not None and self.combine.kind != "max" and not self.casts

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
        end = self.target.key if self.target.kind == "packed" else self.target.rank
        return tuple(dict.fromkeys([*read, *(place.value for place in self.places), end]))

    @property
    def _parts(self) -> list[Scalar]:
        """Everything that a point evaluates, inner parts before what they are inside of."""
        target = self.target
        ends = (target.key,) if target.kind == "packed" else (target.rank, target.slot)
        scalars = (*(each.start for each in self.source.subscripts), *ends)
        return [part for each in scalars for part in reversed(tuple(subexpressions(each)))]

    @cached_property
    def fanout(self) -> int:
        """Domain points of every source segment."""
        extents = [index.extent for index in self.domain[self.num_source_dims :]]
        return math.prod(extent for extent in extents if isinstance(extent, int))


@dataclass(frozen=True)
class KernelArg:
    """One kernel parameter; ``value`` names what is passed."""

    name: str
    kind: Literal["scalar", "column", "address"]
    value: str


@dataclass(frozen=True)
class KernelSpec:
    """One generated kernel: ``function`` in the module ``file`` of the artifact."""

    name: str
    file: str
    function: str
    args: tuple[KernelArg, ...]
    num_warps: int
    emits: tuple[Literal["signal", "wait"], ...]


@dataclass(frozen=True)
class SpecSource:
    """The ``.fsc`` that was compiled."""

    file: str
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Everything that the runtime knows of an artifact."""

    schema: int
    compiler: str
    spec: SpecSource
    files: Mapping[str, str]
    shuffles: tuple[ShuffleSpec, ...]
    kernels: tuple[KernelSpec, ...]
