"""The manifest of an artifact, as frozen dataclasses: ``docs/abi.md``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from fuscoc_runtime.manifest.declared import CastSpec, Declared, FieldSpec, InputSpec
from fuscoc_runtime.manifest.program import Program
from fuscoc_runtime.room import lanes_for, segments_of
from fuscoc_runtime.scalar import Scalar


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
class PiecesSpec:
    """What kernels keep where slots follow from pieces: an entry has ``per_entry`` of them, each
    with a box of ``box_bytes`` for every field and marks of ``mark_bytes``. There is one entry, or
    one for all values of the ``outer`` indices that inputs are looked up by. Rows of the first
    field are copied in lines, ``line_parts`` of them at most for 16 bytes. Entries that all have
    ``entry_points``, if that is not 0, have a word of ``box_bytes`` instead.
    """

    per_entry: int
    box_bytes: int
    mark_bytes: int
    line_parts: int
    outer: int
    entry_points: int = 0


@dataclass(frozen=True)
class CudaSpec:
    """The CUDA kernels of a shuffle, without which it must not run on a GPU if ``required``.

    ``inputs`` are those of the relation, in argument order; ``pieces`` is None where planning
    looks at every point. ``places_results`` as of a `NodeSpec`.
    """

    required: bool
    inputs: tuple[str, ...]
    weighted: bool
    places_results: bool
    row_bytes: tuple[int, ...]
    variants: tuple[CudaVariant, ...]
    pieces: PiecesSpec | None = None


@dataclass(frozen=True)
class NodeSpec:
    """The Triton kernels of a shuffle inside one node.

    ``kernels``: names by role, ``count``, ``exchange``, ``assign``, or of short rows ``count``,
    ``exchange``, ``sort``, which also moves them, or of a dense target ``exchange``, ``place``,
    then ``dispatch`` and ``combine``, if there is one; of ``pieces`` ``place``, ``dispatch`` and,
    before ``combine``, ``clear``. Between nodes ``pack`` and ``forward`` are in the stead of
    ``dispatch``, ``collect`` and ``finish`` in that of ``combine``; where there are ``pieces``,
    ``between`` has the kernels, which move rows one by one. A program of the
    planner takes ``tile_sources`` segments, or that many at once; keys are padded to
    ``padded_keys`` and exchanged by ``key_block``. A rank sends ``partial_bytes`` back for a
    segment. With ``places_results`` what combine makes of a segment goes where the segment lies,
    into a result that is 0 before.
    ``tile``: the sizes that the text was made with.
    """

    kernels: Mapping[str, str]
    tile_sources: int
    padded_keys: int
    key_block: int
    partial_bytes: int
    places_results: bool
    tile: Mapping[str, int]
    pieces: PiecesSpec | None = None
    between: NodeSpec | None = None

    @property
    def combines(self) -> bool:
        """Whether rows come back."""
        return not self.kernels.keys().isdisjoint({"combine", "collect"})

    @property
    def all_kernels(self) -> tuple[str, ...]:
        """The names of all, those between nodes too."""
        others = () if self.between is None else self.between.all_kernels
        return *self.kernels.values(), *others

    def with_destinations(self, count: int) -> NodeSpec:
        """The same where the printed text is told that every segment has so many points."""
        segments = segments_of(self.tile["plan_points"], lanes_for(count)) * self.tile["plan_tiles"]
        return replace(self, tile_sources=segments)

    def point_bytes(self, num_nodes: int) -> int:
        """Bytes that ranks of a node, of so many, tell each other of a point: its slot code and
        weight, or the code alone where rows are moved many at once, which have no weights."""
        return 4 if num_nodes == 1 and self.tile.get("tile_rows", 1) > 1 else 8


@dataclass(frozen=True)
class IntoSpec:
    """Memory of the caller's that the rows of a dispatch go into, on every rank by itself.

    A call is given it by the name ``argument``: a tensor [*dims, *cell shape] for each of
    ``fields``. Nothing else depends on ``inputs`` and ``extents``. ``kernel``, ``block`` points a
    program, says for every part of a row, with the fields ``parts``, in which of as many parts of
    that memory it goes. ``declared`` says the same: a point of its domain is a part of a row, by
    slot first, and its slots are the parts of the memory. Parts of rows of ``kind`` ``sum`` are
    added to what is there, in this order.
    """

    argument: str
    kind: Literal["copy", "sum"]
    dims: tuple[Scalar, ...]
    fields: tuple[FieldSpec, ...]
    declared: Declared
    inputs: tuple[str, ...]
    extents: tuple[str, ...]
    parts: tuple[FieldSpec, ...]
    kernel: str
    block: int


@dataclass(frozen=True)
class ShuffleSpec:
    """One compiled shuffle. ``baked``: files of plans made when compiling, by topology; ``into``:
    where rows go on from their slots, if they do.

    Where there are no CUDA kernels, ``cuda`` is None and ``cuda_note`` says why; so do ``node`` and
    ``node_note`` of the Triton kernels for one node.

    With a ``reply`` the way back is the combine of that shuffle, whose points and slots are these,
    and whose source are the rows that come back. What this one then ``declared`` as its combine
    takes gradients back to what was sent, and no user calls it. A reply that ``shares_plan`` has a
    row for every segment of the other: one plan is right for both.
    """

    name: str
    declared: Declared
    program: Program
    into: IntoSpec | None = None
    baked: Mapping[str, str] = field(default_factory=dict)
    cuda: CudaSpec | None = None
    cuda_note: str | None = None
    node: NodeSpec | None = None
    node_note: str | None = None
    reply: ShuffleSpec | None = None
    shares_plan: bool = False

    def among(self, num_ranks: int) -> ShuffleSpec:
        """The shuffle of so many ranks: where segments go to every rank, they have a number of
        destinations there."""
        if not self.program.every_rank:
            return self
        program, node = self.program.among(num_ranks), self.node
        node = node and node.with_destinations(program.fanout)
        reply = self.reply and self.reply.among(num_ranks)
        return replace(self, program=program, node=node, reply=reply)

    @property
    def back(self) -> ShuffleSpec:
        """The shuffle whose combine is the way back: its reply, or itself."""
        return self.reply or self

    @property
    def segments_answered(self) -> int:
        """How many segments a row of the reply answers; 1 where there is none."""
        return self.back.program.fanout // self.program.fanout

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """Everything that calls are given beside rows: the weights of a reply are not declared by
        what it answers."""
        own = self.declared.inputs
        return (*own, *(each for each in self.back.declared.inputs if each not in own))

    @property
    def sends_differentiably(self) -> bool:
        """Whether what is dispatched gets gradients: dispatch's transpose is combine, if that
        copies or sums, and a cast without scales is a line. A rank's own numbers multiply what has
        come back, whose last dimension their channels must be."""
        combine = self.declared.combine
        is_line = all(map(self._is_line, self.declared.casts))
        return combine is not None and combine.is_linear and is_line

    def _is_line(self, cast: CastSpec) -> bool:
        line = cast.normalise
        if line is None or not line.is_given or line.channels == 1:
            return cast.scales is None
        return any(each.name == cast.field and each.shape for each in self.declared.source.fields)

    @property
    def is_differentiable(self) -> bool:
        """Whether what comes back has gradients, too: dispatch takes them out, and must not cast
        them."""
        return self.sends_differentiably and len(self.declared.casts) == 0  # as dynamo reads it


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
class KernelCubin:
    """Machine code of a Triton kernel: the function ``symbol`` in ``file``, a program of which has
    so many threads and bytes of shared memory. If it ``follows``, it waits by itself for what its
    stream has before it."""

    file: str
    symbol: str
    threads: int
    shared_bytes: int
    follows: bool


@dataclass(frozen=True)
class KernelCubins:
    """Machine code of Triton kernels for the GPU ``arch``, with room for up to 8 ranks of a node,
    made with the device functions of that digest: of ``kernels`` by name, and of the ``own`` ones
    of the runtime, ``module.name``."""

    arch: str
    device: str
    kernels: Mapping[str, KernelCubin]
    own: Mapping[str, KernelCubin]

    @property
    def files(self) -> tuple[str, ...]:
        """Of all kernels."""
        return tuple(each.file for each in (*self.kernels.values(), *self.own.values()))


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
    shuffles: tuple[ShuffleSpec, ...]
    kernels: tuple[KernelSpec, ...]
    cubins: tuple[KernelCubins, ...]

    @property
    def parts(self) -> tuple[ShuffleSpec, ...]:
        """The shuffles, each with its reply behind it."""
        return tuple(part for each in self.shuffles for part in (each, each.reply) if part)
