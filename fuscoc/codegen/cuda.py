"""CUDA text of a shuffle inside one NVLink node: a `Shape`, a `Relation` and the kernels.

The kernels themselves are the readable headers in ``fuscoc_runtime/kernels/include``; what is
printed here only instantiates them. ``Shape`` carries the row layout and the tile sizes chosen
from it, ``Relation`` (``cuda_relation.py``) the spec's expressions.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuscoc.codegen.cuda_casts import print_casts
from fuscoc.codegen.cuda_runs import num_strides, print_runs
from fuscoc.codegen.cuda_tiles import (
    PLACE_BYTES,
    PLAN_THREADS,
    SLOT_BYTES,
    TILES_LISTED,
    WARP,
    CudaSizes,
    CudaTarget,
    PieceSizes,
    planner_bytes,
    planning_bytes,
)
from fuscoc.codegen.cuda_types import (
    COMBINED,
    REDUCED,
    CudaField,
    CudaShuffle,
    choose,
    row_bytes,
)
from fuscoc.lang.dtypes import ITEM_BYTES

REFUSE_THREADS = 256
DISPATCHES = {"dispatch": "Dispatch", "compact": "CompactDispatch", "scatter": "Scatter"}
"""Kinds of dispatch by their header."""


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
    sizes: CudaSizes | PieceSizes


def print_cuda(
    shuffle: CudaShuffle,
    relation: str,
    sizes: CudaSizes,
    target: CudaTarget,
    header: tuple[str, ...] = (),
) -> CudaSource:
    """The shuffle's kernels as CUDA C++, around the functor ``relation``, in ``sizes`` chosen for
    ``target``; ``header`` is comment lines to begin with."""
    launches = _launches(shuffle, sizes, target)
    bodies = _bodies(shuffle, sizes)
    kernels = "\n".join(
        print_kernel(f"{shuffle.name}_{role}", launch.threads, bodies[role])
        for role, launch in launches.items()
    )
    includes = ["cast"] if shuffle.casts else []
    if any(cast.factors for cast in shuffle.casts):
        includes = ["normalise"]
    if sizes.sorted_rows > 1:
        includes += ["sorted", "refuse"]
    else:
        includes += [
            "place" if shuffle.given_slots else "plan",
            _dispatch(shuffle, sizes),
            "refuse",
        ]
    includes += [_combine(sizes)] if shuffle.combine is not None else []
    shared = "PlanShared<Shape>"
    if sizes.sorted_rows > 1:
        shared = "SortOf<Shape, Relation>::Shared"
    check = f"static_assert(sizeof({shared}) <= {_planner_bytes(shuffle, sizes, target)});"
    text = "\n".join(
        [
            *(header or (f"// Shuffle `{shuffle.name}`, printed by fuscoc.",)),
            *(f'#include "{header}.cuh"' for header in includes),
            "",
            "namespace {",
            "using namespace fuscoc;",
            "",
            *([print_shape(shuffle, sizes, "SourceShape"), ""] if shuffle.source_fields else []),
            print_shape(shuffle, sizes),
            "",
            relation,
            *([] if shuffle.given_slots else [check]),
            "}  // namespace",
            "",
            kernels,
            "",
        ]
    )
    named = {f"{shuffle.name}_{role}": launch for role, launch in launches.items()}
    return CudaSource(text, named, tuple(row_bytes(f) for f in shuffle.fields), sizes)


def print_kernel(name: str, threads: int, body: str) -> str:
    """A kernel of CTAs of so many threads, an SM each."""
    return (
        f'extern "C" __global__ void __launch_bounds__({threads}, 1)\n'
        f"{name}(const __grid_constant__ Call call) {{ {body}(call); }}"
    )


def _launches(shuffle: CudaShuffle, sizes: CudaSizes, target: CudaTarget) -> dict[str, Launch]:
    """The kernels of a shuffle, by what they do. There are staged calls only where rows can be
    found before planning has stored their places."""
    row_buffers = sizes.dispatch_warps * sizes.dispatch_rows * sizes.buffer_bytes
    dispatch = Launch(sizes.dispatch_warps * WARP, row_buffers)
    refuse = Launch(REFUSE_THREADS, 0)
    plan_shared = _planner_bytes(shuffle, sizes, target)
    launches = {"plan": Launch(PLAN_THREADS, plan_shared), "dispatch": dispatch}
    if sizes.sorted_rows > 1:
        launches = {"dispatch": Launch(PLAN_THREADS, plan_shared)}
    elif not shuffle.is_placed:
        launches["staged"] = Launch(PLAN_THREADS, max(plan_shared, row_buffers))
    launches["refuse"] = refuse
    for role in _combines(shuffle, sizes):
        places = PLACE_BYTES * sizes.teams * sizes.combine_rows if sizes.combine_rows > 1 else 0
        if _combine(sizes) == "sorted_back":
            places += TILES_LISTED * SLOT_BYTES * sizes.sorted_rows
        launches[role] = Launch(sizes.teams * sizes.team_warps * WARP, places)
    return launches


def _planner_bytes(shuffle: CudaShuffle, sizes: CudaSizes, target: CudaTarget) -> int:
    """Dynamic shared memory of the kernel that plans."""
    if shuffle.given_slots:
        return 0
    if sizes.sorted_rows > 1:
        moves, words = sizes.dispatch_rows > 1, [each.word_bytes for each in sizes.arriving]
        buffers = moves * sizes.dispatch_warps * sizes.dispatch_rows * sizes.buffer_bytes
        row = sum(map(row_bytes, shuffle.fields))
        return planning_bytes(target.arch, words, row, shuffle.num_keys, sizes.sorted_rows, buffers)
    return planner_bytes(shuffle.num_columns)


def _dispatch(shuffle: CudaShuffle, sizes: CudaSizes) -> str:
    """A kind of dispatch of what has been planned, and its header."""
    return "compact" if shuffle.compact else "dispatch" if sizes.dispatch_rows == 1 else "scatter"


def _combine(sizes: CudaSizes) -> str:
    """A kind of way back, and its header."""
    if sizes.combine_rows == 1:
        return "combine"
    return "copy_back" if sizes.sorted_rows == 1 else "sorted_back"


def _combines(shuffle: CudaShuffle, sizes: CudaSizes) -> dict[str, str]:
    """The kernels of a way back, one for every field, and what of the headers each is."""
    if shuffle.combine is None:
        return {}
    kind, result = _combine(sizes), ", InPlace" if shuffle.is_placed else ""
    if len(shuffle.leaving) == 1:
        return {"combine": f"{kind}<Shape::Source{result}>"}
    return {
        f"combine_{number}" if number else "combine": (
            f"{kind}<OfField<Shape::Source, {_element(shuffle.combine, field)}, {number}>{result}>"
        )
        for number, field in enumerate(shuffle.leaving)
    }


def _element(kind: str, field: CudaField) -> str:
    return COMBINED[kind].format(REDUCED.get(field.dtype))


def _bodies(shuffle: CudaShuffle, sizes: CudaSizes) -> dict[str, str]:
    """What of the headers each kernel is."""
    sends = f"dispatch<{DISPATCHES[_dispatch(shuffle, sizes)]}<Shape, Relation>>"
    return {
        "plan": f"{'place' if shuffle.given_slots else 'plan'}<Shape, Relation>",
        "dispatch": "sort<Shape, Relation>" if sizes.sorted_rows > 1 else sends,
        "staged": "staged<Shape, Relation>",
        "refuse": "refuse<Shape>",
        **_combines(shuffle, sizes),
    }


def print_shape(shuffle: CudaShuffle, sizes: CudaSizes, name: str = "Shape") -> str:
    """The traits that the headers are instantiated with: ``SourceShape`` is that of rows as they
    leave, where they arrive as something else."""
    fields, taken = shuffle.fields, sizes.arriving
    leaves = name == "SourceShape" or not shuffle.source_fields
    if name == "SourceShape":
        fields, taken = shuffle.leaving, sizes.leaving
    rows = [row_bytes(f) for f in fields]
    cells = [f.cell_elems * ITEM_BYTES[f.dtype] for f in fields]
    units, offsets, parts = zip(
        *((each.word_bytes, each.buffer_at, each.part_bytes) for each in taken), strict=True
    )
    left_at = tuple(each.buffer_at for each in sizes.leaving)
    constants = {
        "num_fields": len(fields),
        "fanout": shuffle.fanout,
        "num_passes": sizes.num_passes,
    }
    if name == "Shape":
        constants |= {
            "num_keys": shuffle.num_keys,
            "align": shuffle.align,
            "buffer_bytes": sizes.buffer_bytes,
            "dispatch_warps": sizes.dispatch_warps,
            "dispatch_rows": sizes.dispatch_rows,
        }
        if sizes.sorted_rows > 1:
            constants["sorted_rows"] = sizes.sorted_rows
    if leaves and shuffle.is_placed:
        constants["num_strides"] = num_strides(fields)
    if leaves:
        constants |= {
            "teams": sizes.teams,
            "team_warps": sizes.team_warps,
            "team_vectors": sizes.team_vectors,
            "team_batch": sizes.team_batch,
        }
        if sizes.combine_rows > 1:
            constants["combine_rows"] = sizes.combine_rows
    lines = [f"struct {name} {{", f"  using Source = {name if leaves else 'SourceShape'};"]
    if shuffle.combine is not None and leaves and len(fields) == 1:
        lines.append(f"  using Element = {_element(shuffle.combine, fields[0])};")
    traits = [("weighted", shuffle.weighted), ("compact", shuffle.compact)]
    if name == "Shape" and shuffle.by_table:
        traits.append(("by_table", True))
    if leaves and shuffle.is_placed:
        traits.append(("scattered", any(field.loops for field in fields)))
        traits.append(("apart", shuffle.apart))
    for trait, holds in traits:
        lines += [f"  static constexpr bool {trait} = {str(holds).lower()};"]
    lines += [f"  static constexpr int {name} = {value};" for name, value in constants.items()]
    lines += [
        f"  __device__ static constexpr {kind} {name}(int field) {{ return {choose(values)}; }}"
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
        *(print_runs(fields) if leaves and any(field.loops for field in fields) else []),
        *([] if leaves else print_casts(shuffle.casts, shuffle.leaving, fields, offsets, left_at)),
        "};",
    ]
    return "\n".join(lines)
