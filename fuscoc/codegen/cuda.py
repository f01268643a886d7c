"""CUDA text of a shuffle inside one NVLink node: a `Shape`, a `Relation` and the kernels.

The kernels themselves are the readable headers in ``fuscoc_runtime/kernels/include``; what is
printed here only instantiates them. ``Shape`` carries the row layout and the tile sizes chosen
from it, ``Relation`` (``cuda_relation.py``) the spec's expressions.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuscoc.codegen.cuda_casts import print_casts
from fuscoc.codegen.cuda_tiles import (
    PLAN_THREADS,
    WARP,
    Tile,
    buffer_layout,
    part_bytes,
    planner_bytes,
)
from fuscoc.codegen.cuda_types import (
    COMBINED,
    SUMMABLE,
    CudaShuffle,
    row_bytes,
    unit_bytes,
)
from fuscoc.lang.dtypes import ITEM_BYTES

REFUSE_THREADS = 256


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


def print_cuda(
    shuffle: CudaShuffle,
    relation: str,
    tile: Tile,
    header: tuple[str, ...] = (),
) -> CudaSource:
    """The shuffle's kernels as CUDA C++, around the functor ``relation``; ``header`` is comment
    lines to begin with."""
    combines = shuffle.combine is not None
    plan_shared = planner_bytes(shuffle.num_columns)
    _, buffer_bytes = buffer_layout(shuffle.fields, shuffle.leaving, tile.num_passes)
    row_buffers = tile.dispatch_warps * buffer_bytes
    launches = {
        f"{shuffle.name}_plan": Launch(PLAN_THREADS, plan_shared),
        f"{shuffle.name}_dispatch": Launch(tile.dispatch_warps * WARP, row_buffers),
        f"{shuffle.name}_staged": Launch(PLAN_THREADS, max(plan_shared, row_buffers)),
        f"{shuffle.name}_refuse": Launch(REFUSE_THREADS, 0),
    }
    kind = "CompactDispatch" if shuffle.compact else "Dispatch"
    bodies = {
        f"{shuffle.name}_plan": "plan<Shape, Relation>",
        f"{shuffle.name}_dispatch": f"dispatch<{kind}<Shape, Relation>>",
        f"{shuffle.name}_staged": "staged<Shape, Relation>",
        f"{shuffle.name}_refuse": "refuse<Shape>",
    }
    if combines:
        launches[f"{shuffle.name}_combine"] = Launch(tile.teams * tile.team_warps * WARP, 0)
        bodies[f"{shuffle.name}_combine"] = "combine<Shape::Source>"
    kernels = "\n".join(
        f'extern "C" __global__ void __launch_bounds__({launches[name].threads}, 1)\n'
        f"{name}(const __grid_constant__ Call call) {{ {body}(call); }}"
        for name, body in bodies.items()
    )
    includes = [*(["cast"] if shuffle.casts else []), "plan"]
    includes += ["compact" if shuffle.compact else "dispatch", "refuse"]
    includes += ["combine"] if combines else []
    text = "\n".join(
        [
            *(header or (f"// Shuffle `{shuffle.name}`, printed by fuscoc.",)),
            *(f'#include "{header}.cuh"' for header in includes),
            "",
            "namespace {",
            "using namespace fuscoc;",
            "",
            *([print_shape(shuffle, tile, "SourceShape"), ""] if shuffle.casts else []),
            print_shape(shuffle, tile),
            "",
            relation,
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
    offsets, buffer_bytes = buffer_layout(shuffle.fields, shuffle.leaving, tile.num_passes)
    fields, casts = shuffle.fields, shuffle.casts
    if name == "SourceShape":
        at = {field.name: offset for field, offset in zip(fields, offsets, strict=True)}
        fields, casts = shuffle.leaving, ()
        offsets = tuple(at[field.name] for field in fields)
    parts = [part_bytes(f, tile.num_passes) for f in fields]
    rows = [row_bytes(f) for f in fields]
    cells = [f.cell_elems * ITEM_BYTES[f.dtype] for f in fields]
    units = [unit_bytes(f) for f in fields]
    constants = {
        "num_fields": len(fields),
        "fanout": shuffle.fanout,
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
    if shuffle.combine is not None and not casts:
        element = COMBINED[shuffle.combine].format(SUMMABLE.get(fields[0].dtype))
        lines.append(f"  using Element = {element};")
    for trait, holds in (("weighted", shuffle.weighted), ("compact", shuffle.compact)):
        lines += [f"  static constexpr bool {trait} = {str(holds).lower()};"]
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
