"""CUDA text of a shuffle inside one NVLink node: a `Shape`, a `Relation` and the kernels.

The kernels themselves are the readable headers in ``fuscoc_runtime/kernels/include``; what is
printed here only instantiates them. ``Shape`` carries the row layout and the tile sizes chosen
from it, ``Relation`` the spec's expressions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from fuscoc.codegen.cuda_casts import CudaCast, cast_problem, print_casts

DTYPE_BYTES = {
    "bool": 1, "u8": 1, "i8": 1, "f8e4m3": 1, "f8e5m2": 1, "i16": 2, "u16": 2, "f16": 2, "bf16": 2,
    "i32": 4, "u32": 4, "f32": 4, "i64": 8, "u64": 8, "f64": 8,
}  # fmt: skip
C_TYPES = {"i32": "int", "i64": "i64"}
BUILTIN_EXTENTS = {"rank": "i64(call.rank)", "ranks": "i64(call.num_ranks)"}
SUMMABLE = {"bf16": "Bf16", "f16": "F16", "f32": "F32"}

WARP = 32
MAX_FANOUT = 32  # a warp looks at whole groups of segments, a lane a point
MAX_FIELDS = 8
MAX_INPUTS = 8
PLAN_THREADS = 1024
STATIC_SHARED = 512  # what the headers declare beside a CTA's dynamic shared memory, at most
COMBINE_WARPS = 28  # 72 registers a thread: four vectors in flight and no spills

# The manifest's scalar expressions: an int, {"index": …}, {"extent": …}, {"load": …, "at": […]},
# {"op": …, "args": [a, b]}.
Scalar: TypeAlias = "int | dict[str, object]"


class Unsupported(Exception):
    """The CUDA backend has no kernels for this shuffle; another backend has."""


@dataclass(frozen=True)
class CudaField:
    """A field of a segment: ``elems`` elements in a segment, ``cell_elems`` in a source cell."""

    name: str
    dtype: str
    elems: int
    cell_elems: int


@dataclass(frozen=True)
class CudaInput:
    """An input tensor of the relation; ``shape`` gives the strides of its subscripts."""

    name: str
    dtype: str
    shape: tuple[Scalar, ...]


@dataclass(frozen=True)
class CudaShuffle:
    """What the backend needs to know of a shuffle whose segments are contiguous rows.

    ``domain`` lists (index, extent), outermost first; the first ``num_source_dims`` enumerate
    source segments. ``source_cell`` is the segment's first cell. ``placement`` is ``block``,
    ``cyclic`` or the name of the int64 input tensor [num_keys] that maps keys to ranks. ``fields``
    are those of a row that arrives; where ``casts`` make them, ``source_fields`` leave.
    """

    name: str
    spec: str
    fields: tuple[CudaField, ...]
    extents: tuple[str, ...]
    inputs: tuple[CudaInput, ...]
    domain: tuple[tuple[str, Scalar], ...]
    num_source_dims: int
    source_cell: Scalar
    key: Scalar
    num_keys: int
    align: int
    placement: str
    combine: Literal["none", "sum", "max", "copy"]
    weighted: bool
    casts: tuple[CudaCast, ...] = ()
    source_fields: tuple[CudaField, ...] = ()

    @property
    def leaving(self) -> tuple[CudaField, ...]:
        """The fields of a row that leaves the source, and of one that combine sums."""
        return self.source_fields or self.fields


@dataclass(frozen=True)
class CudaTarget:
    """A GPU generation: its name for the compiler and the shared memory of one CTA, in bytes."""

    arch: str = "sm_90"
    shared_bytes: int = 227 * 1024


@dataclass(frozen=True)
class Tile:
    """Sizes chosen for a row.

    Dispatch: CTAs of ``dispatch_warps`` warps, each with a row buffer, rows moved in
    ``num_passes`` parts. Combine: CTAs of ``teams`` teams of ``team_warps`` warps; a thread keeps
    ``team_vectors`` vectors of the sum and loads those of ``team_batch`` rows at once.
    """

    dispatch_warps: int
    num_passes: int
    teams: int
    team_warps: int
    team_vectors: int
    team_batch: int


@dataclass(frozen=True)
class Launch:
    """Threads and dynamic shared bytes of one CTA."""

    threads: int
    shared_bytes: int


@dataclass(frozen=True)
class CudaSource:
    """One translation unit; ``launches`` maps a kernel's name to its CTA."""

    text: str
    launches: dict[str, Launch]
    row_bytes: tuple[int, ...]
    tile: Tile


def fanout(shuffle: CudaShuffle) -> int:
    """Destinations of one source segment: the constant extents after the source dimensions."""
    product = 1
    for name, extent in shuffle.domain[shuffle.num_source_dims :]:
        if not isinstance(extent, int):
            raise Unsupported(f"the extent of `{name}` is not a constant")
        product *= extent
    return product


def row_bytes(field: CudaField) -> int:
    return field.elems * DTYPE_BYTES[field.dtype]


def unit_bytes(field: CudaField) -> int:
    """Widest unit, up to 16 bytes, that divides the field's rows and source cells."""
    cell = field.cell_elems * DTYPE_BYTES[field.dtype]
    return next(u for u in (16, 8, 4, 2, 1) if row_bytes(field) % u == 0 and cell % u == 0)


def part_bytes(field: CudaField, num_passes: int) -> int:
    unit = unit_bytes(field)
    return -(-row_bytes(field) // (num_passes * unit)) * unit


def buffer_layout(shuffle: CudaShuffle, num_passes: int) -> tuple[tuple[int, ...], int]:
    """Offset of each field's part in a warp's row buffer, and the buffer's bytes.

    A field that is cast in the buffer has room for what it was.
    """
    leaving = {field.name: field for field in shuffle.leaving}
    offsets, end = [], 0
    for field in shuffle.fields:
        forms = (field, leaving.get(field.name, field))
        offsets.append(end)
        end += -(-max(part_bytes(form, num_passes) for form in forms) // 128) * 128
    return tuple(offsets), end


def choose_tile(shuffle: CudaShuffle, target: CudaTarget) -> Tile:
    """Tile sizes for the row: enough rows in flight to cover the latency of HBM and NVLink."""
    num_passes = 1
    room = target.shared_bytes - STATIC_SHARED
    while buffer_layout(shuffle, num_passes)[1] * 4 > room:
        num_passes += 1
    warps = min(24, room // buffer_layout(shuffle, num_passes)[1])
    vectors = -(-row_bytes(shuffle.leaving[0]) // unit_bytes(shuffle.leaving[0]))

    def preference(size: tuple[int, int]) -> tuple[int, int, int]:
        team_warps, team_vectors = size
        columns = team_warps * WARP * team_vectors
        idle_lanes = -(-vectors // columns) * columns - vectors
        return idle_lanes, -(COMBINE_WARPS // team_warps * team_warps), -columns

    sizes = [(warps, 1) for warps in range(1, 9)]
    # Two vectors a thread only where no lane is idle: an idle one repeats the last vector.
    sizes += [(warps, 2) for warps in range(1, 9) if vectors % (warps * WARP * 2) == 0]
    team_warps, team_vectors = min(sizes, key=preference)
    return Tile(
        dispatch_warps=warps,
        num_passes=num_passes,
        teams=min(15, COMBINE_WARPS // team_warps),
        team_warps=team_warps,
        team_vectors=team_vectors,
        team_batch=4 // team_vectors,
    )


def print_cuda(
    shuffle: CudaShuffle,
    target: CudaTarget | None = None,
    tile: Tile | None = None,
    header: tuple[str, ...] = (),
) -> CudaSource:
    """The shuffle's kernels as CUDA C++; ``header`` is comment lines to begin with.

    Raises:
        Unsupported: the fan-out, the number of fields, inputs or extents, or an input's type is
            beyond the headers' limits.
    """
    target = target or CudaTarget()
    if not 1 <= fanout(shuffle) <= MAX_FANOUT:
        raise Unsupported(f"a segment has {fanout(shuffle)} destinations, more than {MAX_FANOUT}")
    if max(len(shuffle.fields), len(shuffle.leaving)) > MAX_FIELDS:
        raise Unsupported(f"a segment has {len(shuffle.fields)} fields, more than {MAX_FIELDS}")
    if max(len(shuffle.inputs), len(shuffle.extents)) > MAX_INPUTS:
        raise Unsupported(f"it has more than {MAX_INPUTS} inputs or extents")
    tile = tile or choose_tile(shuffle, target)
    combines = shuffle.combine != "none"
    if combines and len(shuffle.leaving) != 1:
        raise Unsupported("its combine takes back several fields; only of one field it has kernels")
    if shuffle.combine in ("sum", "max") and shuffle.leaving[0].dtype not in SUMMABLE:
        raise Unsupported(f"a {shuffle.combine} needs a field of bf16, f16 or f32")
    if shuffle.combine == "copy" and fanout(shuffle) > 1:
        raise Unsupported("its combine copies, but segments have several destinations")
    problem = cast_problem(shuffle.casts, shuffle.leaving, shuffle.fields)
    if problem is not None:
        raise Unsupported(problem)
    if shuffle.casts and tile.num_passes > 1:
        raise Unsupported("a row that is cast is too long for shared memory")

    plan_shared = PLAN_THREADS // WARP * shuffle.num_keys * 2 + 13 * shuffle.num_keys + 64
    if plan_shared > target.shared_bytes - STATIC_SHARED:
        raise Unsupported(f"{shuffle.num_keys} keys do not fit in the planner's shared memory")
    row_buffers = tile.dispatch_warps * buffer_layout(shuffle, tile.num_passes)[1]
    launches = {
        f"{shuffle.name}_plan": Launch(PLAN_THREADS, plan_shared),
        f"{shuffle.name}_dispatch": Launch(tile.dispatch_warps * WARP, row_buffers),
        f"{shuffle.name}_staged": Launch(PLAN_THREADS, max(plan_shared, row_buffers)),
    }
    bodies = {
        f"{shuffle.name}_plan": "plan<Shape, Relation>",
        f"{shuffle.name}_dispatch": "dispatch<Shape, Relation>",
        f"{shuffle.name}_staged": "staged<Shape, Relation>",
    }
    if combines:
        launches[f"{shuffle.name}_combine"] = Launch(tile.teams * tile.team_warps * WARP, 0)
        bodies[f"{shuffle.name}_combine"] = "combine<Shape::Source>"
    kernels = "\n".join(
        f'extern "C" __global__ void __launch_bounds__({launches[name].threads}, 1)\n'
        f"{name}(const __grid_constant__ Call call) {{ {body}(call); }}"
        for name, body in bodies.items()
    )
    includes = [*(["cast"] if shuffle.casts else []), "plan", "dispatch", "staged"]
    includes += ["combine"] if combines else []
    text = "\n".join(
        [
            *(header or (f"// Shuffle `{shuffle.name}` of {shuffle.spec}, printed by fuscoc.",)),
            *(f'#include "{header}.cuh"' for header in includes),
            "",
            "namespace {",
            "using namespace fuscoc;",
            "",
            *([print_shape(shuffle, tile, "SourceShape"), ""] if shuffle.casts else []),
            print_shape(shuffle, tile),
            "",
            print_relation(shuffle),
            f"static_assert(sizeof(PlanShared<Shape>) <= {plan_shared});",
            "}  // namespace",
            "",
            kernels,
            "",
        ]
    )
    return CudaSource(text, launches, tuple(row_bytes(f) for f in shuffle.fields), tile)


def print_shape(shuffle: CudaShuffle, tile: Tile, name: str = "Shape") -> str:
    """The traits that the headers are instantiated with: ``SourceShape`` is that before casts."""
    offsets, buffer_bytes = buffer_layout(shuffle, tile.num_passes)
    fields, casts = shuffle.fields, shuffle.casts
    if name == "SourceShape":
        at = {field.name: offset for field, offset in zip(fields, offsets, strict=True)}
        fields, casts = shuffle.leaving, ()
        offsets = tuple(at[field.name] for field in fields)
    parts = [part_bytes(f, tile.num_passes) for f in fields]
    rows = [row_bytes(f) for f in fields]
    cells = [f.cell_elems * DTYPE_BYTES[f.dtype] for f in fields]
    units = [unit_bytes(f) for f in fields]
    constants = {
        "num_fields": len(fields),
        "fanout": fanout(shuffle),
        "num_passes": tile.num_passes,
    }
    if name == "Shape":
        constants |= {
            "num_keys": shuffle.num_keys,
            "align": shuffle.align,
            "buffer_bytes": buffer_bytes,
            "dispatch_warps": tile.dispatch_warps,
        }
    if not casts:
        constants |= {
            "teams": tile.teams,
            "team_warps": tile.team_warps,
            "team_vectors": tile.team_vectors,
            "team_batch": tile.team_batch,
        }
    lines = [f"struct {name} {{", f"  using Source = {'SourceShape' if casts else name};"]
    if shuffle.combine != "none" and not casts:
        element = SUMMABLE.get(fields[0].dtype, "Raw")
        element = {"sum": element, "max": f"Largest<{element}>", "copy": "Raw"}[shuffle.combine]
        lines.append(f"  using Element = {element};")
    lines.append(f"  static constexpr bool weighted = {str(shuffle.weighted).lower()};")
    lines += [f"  static constexpr int {name} = {value};" for name, value in constants.items()]
    lines += [
        f"  __device__ static constexpr {kind} {name}(int field) {{ return {_choose(values)}; }}"
        for kind, name, values in (
            ("i64", "row_bytes", rows),
            ("i64", "cell_bytes", cells),
            ("int", "unit_bytes", units),
            ("int", "buffer_offset", offsets),
            ("int", "part_size", parts),
        )
    ]
    lines += [
        "  __device__ static constexpr int part_offset(int field, int pass) {",
        "    return part_size(field) * pass;",
        "  }",
        "  __device__ static constexpr int part_bytes(int field, int pass) {",
        "    if (num_passes == 1) return part_size(field);",
        "    const int left = int(row_bytes(field)) - part_offset(field, pass);",
        "    return left <= 0 ? 0 : left < part_size(field) ? left : part_size(field);",
        "  }",
        *(print_casts(casts, shuffle.leaving, fields, offsets) if casts else []),
        "};",
    ]
    return "\n".join(lines)


def _choose(values: list[int] | tuple[int, ...]) -> str:
    """``values[field]`` as an expression that folds to a constant."""
    head = "".join(f"field == {i} ? {value} : " for i, value in enumerate(values[:-1]))
    return f"{head}{values[-1]}"


def print_relation(shuffle: CudaShuffle) -> str:
    """The functor with the spec's key, placement and source expressions."""
    per_rank = "(num_keys + call.num_ranks - 1) / call.num_ranks"
    place = {"block": f"key / ({per_rank})", "cyclic": "key % call.num_ranks"}.get(
        shuffle.placement
    ) or _load(shuffle, shuffle.placement, "key")
    source_domain = shuffle.domain[: shuffle.num_source_dims]
    return "\n".join(
        [
            "struct Relation {",
            "  const Call& call;",
            f"  static constexpr int num_keys = {shuffle.num_keys};",
            "  __device__ __forceinline__ i64 key(i64 point) const {",
            *_indices(shuffle, shuffle.domain, "point", shuffle.key),
            f"    return {_scalar(shuffle, shuffle.key)};",
            "  }",
            "  __device__ __forceinline__ int place(int key) const {",
            f"    return int({place});",
            "  }",
            "  __device__ __forceinline__ i64 source_cell(i64 source) const {",
            *_indices(shuffle, source_domain, "source", shuffle.source_cell),
            f"    return {_scalar(shuffle, shuffle.source_cell)};",
            "  }",
            "};",
        ]
    )


def _indices(
    shuffle: CudaShuffle, domain: tuple[tuple[str, Scalar], ...], linear: str, used_by: Scalar
) -> list[str]:
    """Declarations of the indices that an expression uses, from a row-major linear index."""
    used = _names(used_by)
    lines, rest = [], linear
    for position, (name, extent) in reversed(list(enumerate(domain))):
        size = _scalar(shuffle, extent)
        if name in used:
            value = f"({rest}) % ({size})" if position > 0 else rest
            lines.append(f"    const i64 index_{name} = {value};")
        rest = f"({rest}) / ({size})"
    return lines


def _names(scalar: Scalar) -> set[str]:
    if isinstance(scalar, int):
        return set()
    if "index" in scalar:
        return {str(scalar["index"])}
    children = scalar.get("at", scalar.get("args", ()))
    assert isinstance(children, (list, tuple))
    return set().union(*(_names(child) for child in children))


def _load(shuffle: CudaShuffle, name: str, offset: str) -> str:
    position, tensor = next((i, t) for i, t in enumerate(shuffle.inputs) if t.name == name)
    if tensor.dtype not in C_TYPES:
        raise Unsupported(f"input `{name}` is {tensor.dtype}, neither i32 nor i64")
    return f"static_cast<const {C_TYPES[tensor.dtype]}*>(call.inputs[{position}])[{offset}]"


def _scalar(shuffle: CudaShuffle, scalar: Scalar) -> str:
    """A scalar expression of the manifest as a C++ expression of type i64."""
    if isinstance(scalar, int):
        return f"i64({scalar})"
    if "index" in scalar:
        return f"index_{scalar['index']}"
    if "extent" in scalar:
        name = str(scalar["extent"])
        if name not in shuffle.extents:
            return BUILTIN_EXTENTS[name]
        return f"call.extents[{shuffle.extents.index(name)}]"
    if "load" in scalar:
        at = scalar["at"]
        assert isinstance(at, (list, tuple))
        name = str(scalar["load"])
        shape = next(t.shape for t in shuffle.inputs if t.name == name)
        offset = "i64(0)"
        for subscript, size in zip(at, shape, strict=True):
            step = _scalar(shuffle, subscript)
            offset = (
                step if offset == "i64(0)" else f"({offset}) * {_scalar(shuffle, size)} + {step}"
            )
        return _load(shuffle, name, offset)
    args = scalar["args"]
    assert isinstance(args, (list, tuple))
    lhs, rhs = (_scalar(shuffle, arg) for arg in args)
    return f"({lhs} {scalar['op']} {rhs})"
