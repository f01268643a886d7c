"""The manifest of an artifact, as frozen dataclasses: ``docs/abi.md``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

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
class Declared:
    """What the spec declares: relation and shapes, as the checker wrote them.

    Read by the reference, by the checks of arguments, and for messages. What is executed follows
    ``Program``. ``fields`` are those of a segment that arrives.
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
        target = self.target
        ends = (target.key,) if target.kind == "packed" else (target.rank, target.slot)
        scalars = (*(each.start for each in self.source.subscripts), *ends)
        found = [
            part
            for scalar in scalars
            for part in reversed(tuple(subexpressions(scalar)))
            if isinstance(part, Inside)
        ]
        return tuple(dict.fromkeys(found))


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
    """The kernels of the relation: ``kernel`` evaluates it, ``block`` points of the domain a
    program; ``extents_kernel`` has the sizes of every outer index of a ragged domain."""

    kernel: str
    extents_kernel: str | None
    block: int
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class PackedSlots:
    """How a packed target numbers its slots: see ``PackedTarget``."""

    kind: Literal["packed"]
    num_keys: int
    align: int
    capacity: int | None
    compact: bool
    placement: PlacementSpec


@dataclass(frozen=True)
class DenseSlots:
    """The relation numbers the slots itself."""

    kind: Literal["dense"]


@dataclass(frozen=True)
class ListSpec:
    """A descriptor list of ``builder``; ``per`` says what an entry of a dispatch's is a copy for.

    ``terms`` are the columns that entries of a reduction point into.
    """

    name: str
    builder: Literal["source", "carrier", "forwarder", "target"]
    per: Literal["point", "rank", "node"] | None
    columns: tuple[str, ...]
    terms: tuple[str, ...]


@dataclass(frozen=True)
class LaunchStep:
    """Run a kernel over a descriptor list, which takes rows from ``src`` to ``dst``.

    ``bind``: kernel argument -> field of a buffer. ``after``: numbers of the steps before it.
    """

    op: Literal["launch"]
    after: tuple[int, ...]
    kernel: str
    list: str
    src: str
    dst: str
    bind: Mapping[str, str]
    signal: int | None
    wait: tuple[int, ...]


@dataclass(frozen=True)
class Rules:
    """How the rows of the network hop travel: see ``ExchangeStep``."""

    forwarder: str
    schedule: str
    slice_bytes: int

    @property
    def balances_senders(self) -> bool:
        """Whether a rank may send rows of another rank of its node."""
        return self.forwarder in ("rebalance", "auto")


@dataclass(frozen=True)
class ExchangeStep:
    """The network hop. Forth: the rule that picks forwarders, that which orders slices, and their
    bytes; back, nothing has to be chosen."""

    op: Literal["exchange"]
    after: tuple[int, ...]
    forwarder: Literal["static", "greedy", "lpt", "split", "rebalance", "auto"] | None
    schedule: Literal["pairwise", "fast", "auto"] | None
    slice_bytes: int | None


@dataclass(frozen=True)
class PathSpec:
    """Dispatch or combine: the lists to plan, and the steps over them."""

    lists: tuple[ListSpec, ...]
    steps: tuple[LaunchStep | ExchangeStep, ...]

    @cached_property
    def launches(self) -> tuple[LaunchStep, ...]:
        """The steps that launch kernels."""
        return tuple(step for step in self.steps if isinstance(step, LaunchStep))

    @cached_property
    def exchange(self) -> ExchangeStep:
        """The network hop."""
        (found,) = (step for step in self.steps if isinstance(step, ExchangeStep))
        return found

    @cached_property
    def before(self) -> tuple[LaunchStep, ...]:
        """The steps that the network hop comes after, in order."""
        first, number = set[int](), self.steps.index(self.exchange)
        found = [*self.exchange.after]
        while found:
            if (number := found.pop()) not in first:
                first.add(number)
                found += self.steps[number].after
        return self._launches(first)

    @cached_property
    def behind(self) -> tuple[LaunchStep, ...]:
        """The steps that come after the network hop, in order."""
        later = {self.steps.index(self.exchange)}
        for number, step in enumerate(self.steps):
            if later.intersection(step.after):
                later.add(number)
        return self._launches(later)

    @cached_property
    def beside(self) -> tuple[LaunchStep, ...]:
        """The steps that have nothing to do with the network hop, in order."""
        others = (*self.before, *self.behind)
        return tuple(step for step in self.launches if step not in others)

    def _launches(self, numbers: set[int]) -> tuple[LaunchStep, ...]:
        steps = (self.steps[number] for number in sorted(numbers))
        return tuple(step for step in steps if isinstance(step, LaunchStep))


@dataclass(frozen=True)
class Program:
    """What planner and engine follow: the compiler's L2, and the kernels of its steps.

    ``inputs`` (but for weights) and ``extents``: names of what the relation may read. ``fanout``:
    domain points of every source segment. ``runs``: how fields of the source are copied.
    ``buffers``: what a row of each holds, and in ``weights`` the input of that name.
    """

    inputs: tuple[str, ...]
    extents: tuple[str, ...]
    fanout: int
    relation: RelationSpec
    target: PackedSlots | DenseSlots
    runs: tuple[FieldRuns, ...]
    buffers: Mapping[str, tuple[FieldSpec, ...]]
    dispatch: PathSpec
    combine: PathSpec | None

    @property
    def exchange(self) -> Rules:
        """The rules of the network hop."""
        hop = self.dispatch.exchange
        assert hop.forwarder is not None
        assert hop.schedule is not None
        assert hop.slice_bytes is not None
        return Rules(hop.forwarder, hop.schedule, hop.slice_bytes)

    def with_rules(self, **changes: Any) -> Program:
        """The same program with other ``Rules``, to be planned."""
        hop = self.dispatch.exchange
        steps = (replace(s, **changes) if s is hop else s for s in self.dispatch.steps)
        return replace(self, dispatch=replace(self.dispatch, steps=tuple(steps)))

    def copies_once(self, tier: Literal["node", "rank"]) -> bool:
        """Whether a segment goes to a node, or to a rank, once, however many points it has there:
        whether that is what copies on the way there are for."""
        return any(each.per == tier for each in self.dispatch.lists)

    @property
    def is_static(self) -> bool:
        """Whether rank and number of ranks alone decide the plan, so that it never changes."""
        return not self.extents and not self.inputs

    @property
    def is_compact(self) -> bool:
        """Whether a rank holds every segment once, in a row that slots refer to."""
        return self.target.kind == "packed" and self.target.compact

    @property
    def weight(self) -> FieldSpec | None:
        """The input with the weights of a combine."""
        return next(iter(self.buffers.get("weights", ())), None)

    @cached_property
    def addresses(self) -> tuple[str, ...]:
        """The outputs of the relation that say where a source segment is."""
        return tuple(name for name in self.relation.outputs if name.startswith("src_"))

    @cached_property
    def launches(self) -> tuple[LaunchStep, ...]:
        """The steps of both paths that launch kernels."""
        return (*self.dispatch.launches, *(self.combine.launches if self.combine else ()))


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
    """The CUDA kernels of a shuffle, without which it must not run on a GPU if ``required``.

    ``inputs`` are those of the relation, in argument order.
    """

    required: bool
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
    """One compiled shuffle. ``baked``: files of plans made when compiling, by topology.

    Where there are no CUDA kernels, ``cuda`` is None and ``cuda_note`` says why; so do ``node`` and
    ``node_note`` of the Triton kernels for one node.
    """

    name: str
    declared: Declared
    program: Program
    baked: Mapping[str, str] = field(default_factory=dict)
    cuda: CudaSpec | None = None
    cuda_note: str | None = None
    node: NodeSpec | None = None
    node_note: str | None = None


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
