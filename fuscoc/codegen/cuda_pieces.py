"""CUDA kernels of a shuffle whose slots follow from pieces: a ``Shape`` and a ``Relation`` for the
headers ``pieces.cuh``, ``move.cuh``, ``give_back.cuh`` and ``give_lent.cuh``, or for
``entries.cuh`` and ``entries_back.cuh``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fuscoc.codegen.cuda import REFUSE_THREADS, CudaSource, Launch, print_kernel
from fuscoc.codegen.cuda_destination import row_relation
from fuscoc.codegen.cuda_entries import AlikeEntries, alike_entries, number
from fuscoc.codegen.cuda_relation import CudaText, fused_relation
from fuscoc.codegen.cuda_runs import num_strides
from fuscoc.codegen.cuda_tiles import (
    CARRIED,
    CARRIED_BUFFER,
    CARRIERS,
    TILE_BUFFERS,
    WARP,
    PieceSizes,
)
from fuscoc.codegen.cuda_types import REDUCED, CudaShuffle, choose, row_bytes, run_bytes
from fuscoc.codegen.regions import Region
from fuscoc.dialect.base import ops_of, terminator
from fuscoc.dialect.fused import NodePieces
from fuscoc.dialect.node import Node
from fuscoc.dialect.pieces import Piece
from fuscoc.dialect.relation import Domain
from fuscoc.lang.dtypes import ITEM_BYTES

PIECE_PLAN_THREADS = 512
ENTRY_BYTES, SLOT_BYTES = 8, 4  # an entry's rank and slot, and what its rank is told
MOST = 2**31
"""Sizes that inputs say, and points of an entry, are below it, and below its square."""


@dataclass(frozen=True)
class PieceLayout:
    """What kernels keep: an entry has ``per_entry`` pieces, and so many boxes of ``box_bytes`` a
    field and marks of ``mark_bytes``. There is one entry, or one for all values of ``outer``
    indices. Rows of the first field are copied in lines, ``line_parts`` of them at most for 16
    bytes. Of short entries that are alike, with ``entry_points`` each, a word is kept instead of
    boxes; with 0 there are boxes."""

    per_entry: int
    box_bytes: int
    mark_bytes: int
    line_parts: int
    outer: int
    entry_points: int = 0


def print_pieces(
    module: Any, shuffle: CudaShuffle, sizes: PieceSizes, header: tuple[str, ...]
) -> tuple[CudaSource, PieceLayout]:
    """The kernels of a module, from choose-tiles on; ``header`` is comment lines to begin with."""
    with module.context:
        (node,) = ops_of(module, Node)
        op = next(iter(ops_of(node, NodePieces)), None)
        pieces = [] if op is None else [e for e in op.entry.blocks[0] if isinstance(e, Piece)]
        num_loops = max((len(piece.counts) for piece in pieces), default=0)
        num_steps = num_loops + max(len(field.loops) for field in shuffle.leaving)
        run = run_bytes(shuffle.leaving[0])
        alike = None if sizes.entry_group is None else alike_entries(node, shuffle)
        layout = PieceLayout(
            per_entry=max(len(pieces), 1),
            box_bytes=ENTRY_BYTES if alike else -(-(216 + 36 * (num_steps + 1)) // 8) * 8,
            mark_bytes=SLOT_BYTES if alike else 32 + 16 * (num_loops + 1),
            line_parts=1 if sizes.words[0].word_bytes == 16 else 1 + -(-32 // run),
            outer=1 if op is None else len(op.read("outer")),
            entry_points=alike.points if alike else 0,
        )
        text = [
            *(header or (f"// Shuffle `{shuffle.name}`, printed by fuscoc.",)),
            *(f'#include "{each}.cuh"' for each in _headers(shuffle, alike)),
            "",
            "namespace {",
            "using namespace fuscoc;",
            "",
            *_shape(shuffle, op, num_loops, sizes, alike, layout),
            *(_sizes_of_boxes(layout) if alike is None else []),
            "",
            *(_few(sizes.few_bytes) if sizes.few_bytes else []),
            *_relation(module, shuffle, op, pieces),
            "}  // namespace",
            "",
        ]

    def launch(warps: int, carried_bytes: int) -> Launch:
        return Launch(warps * WARP, TILE_BUFFERS * (sizes.tile_bytes or 0) + carried_bytes)

    carried_bytes = sizes.carried_bytes or 0
    back_bytes = min(carried_bytes, CARRIERS * CARRIED * CARRIED_BUFFER)

    plan, there, back = "place_pieces<Shape, Relation>", "move<Shape, Relation>", "give_back<Shape>"
    if alike is not None:
        plan, there = "place_entries<Shape, Relation>", "move_entries<Shape>"
        back = "give_entries<Shape>"
    kernels = {
        "plan": (Launch(PIECE_PLAN_THREADS, 0), plan),
        "dispatch": (launch(sizes.dispatch_warps, carried_bytes), there),
        "refuse": (Launch(REFUSE_THREADS, 0), "refuse<Shape>"),
    }
    if shuffle.combine is not None:
        kernels["combine"] = launch(sizes.combine_warps, back_bytes), back
        if alike is None:
            kernels["lend"] = kernels["dispatch"][0], "give_lent<Shape>"
    if sizes.few_bytes:
        few = launch(sizes.dispatch_warps, sizes.few_bytes)
        kernels["dispatch_few"] = few, "move<Few, Relation>"
        if shuffle.combine is not None:
            kernels["lend_few"] = few, "give_lent<Few>"
    launches = {}
    for role, (sizes_of, body) in kernels.items():
        name = f"{shuffle.name}_{role}"
        launches[name] = sizes_of
        text.append(print_kernel(name, sizes_of.threads, body))
    rows = tuple(row_bytes(field) for field in shuffle.leaving)
    return CudaSource("\n".join([*text, ""]), launches, rows, sizes), layout


def _headers(shuffle: CudaShuffle, alike: AlikeEntries | None) -> list[str]:
    there, back = ("move", "give_lent") if alike is None else ("entries", "entries_back")
    return [there, "refuse", *([back] if shuffle.combine is not None else [])]


def _few(nbytes: int) -> Iterator[str]:
    yield "struct Few : Shape {"
    yield "  static constexpr bool few = true;"
    yield f"  static constexpr int carried_bytes = {nbytes};"
    yield "};"
    yield ""


def _sizes_of_boxes(layout: PieceLayout) -> Iterator[str]:
    yield f"static_assert(sizeof(BoxOf<Shape>) == {layout.box_bytes});"
    yield f"static_assert(sizeof(Marks<Shape::num_loops>) == {layout.mark_bytes});"


def _shape(
    shuffle: CudaShuffle,
    op: Any,
    num_loops: int,
    sizes: PieceSizes,
    alike: AlikeEntries | None,
    layout: PieceLayout,
) -> Iterator[str]:
    fields = shuffle.leaving
    runs = [field.loops for field in fields]
    traits = {
        "compact": False,
        "ragged": shuffle.ragged,
        "looks_up": bool(shuffle.inputs) if op is None else op.looks_up(),
        "comes_back": shuffle.combine is not None,
        "disjoint": op is None or bool(op.read("disjoint")),
        "apart": shuffle.apart,
        "every_rank": shuffle.every_rank,
        "few": False,
    }
    constants: dict[str, int | None] = {
        "num_fields": len(fields),
        "fanout": shuffle.fanout,
        "num_keys": 0,
        "num_boxes": 0 if op is None or layout.outer else layout.per_entry,  # 0: as inputs say
        "num_loops": num_loops,
        "num_run_loops": max(map(len, runs)),
        "num_strides": num_strides(fields),
        "tile_bytes": sizes.tile_bytes or 0,
        "carried_bytes": sizes.carried_bytes or 0,
    }
    if alike is not None:
        constants |= {"entry_group": sizes.entry_group, "entry_points": alike.points}
    yield "struct Shape {"
    for name, holds in traits.items():
        yield f"  static constexpr bool {name} = {str(holds).lower()};"
    if alike is not None and shuffle.combine == "sum":
        yield f"  using Element = {REDUCED[fields[0].dtype]};"
    for name, value in constants.items():
        yield f"  static constexpr int {name} = {value};"
    bytes_of = [ITEM_BYTES[field.dtype] for field in fields]
    cells = [field.cell_elems * size for field, size in zip(fields, bytes_of, strict=True)]
    for kind, name, values in (
        ("i64", "row_bytes", [row_bytes(field) for field in fields]),
        ("i64", "cell_bytes", cells),
        ("int", "unit_bytes", [each.word_bytes for each in sizes.words]),
        ("i64", "run_bytes", [run_bytes(field) for field in fields]),
        ("int", "num_runs", [len(loops) for loops in runs]),
    ):
        body = f"return {choose(values)};"
        yield f"  __device__ static constexpr {kind} {name}(int field) {{ {body} }}"
    counts, strides = [], []
    for field, cell in zip(fields, cells, strict=True):
        given = iter(range(len(field.loops)))
        counts.append(_nth([loop.count for loop in field.loops]))
        strides.append(
            _nth(
                [
                    f"{cell} * strides[{next(given)}]"
                    if isinstance(loop.stride, str)
                    else str(cell * loop.stride)
                    for loop in field.loops
                ]
            )
        )
    yield "  __device__ static constexpr i64 run_count(int field, int loop) {"
    yield f"    return {choose(counts)};"
    yield "  }"
    yield "  __device__ static i64 run_stride(int field, int loop, const i64* strides) {"
    yield f"    return {choose(strides)};"
    yield "  }"
    if alike is not None:
        for name, of_loops in (
            ("entry_count", alike.counts),
            ("entry_src_step", alike.src_steps),
            ("entry_slot_step", alike.slot_steps),
        ):
            body = f"return {_nth(list(of_loops))};"
            yield f"  __device__ static constexpr i64 {name}(int loop) {{ {body} }}"
    yield "};"


def _nth(values: list[Any]) -> str:
    """``values[loop]``."""
    if not values:
        return "1"
    head = "".join(f"loop == {i} ? {value} : " for i, value in enumerate(values[:-1]))
    return f"({head}{values[-1]})"


def _relation(module: Any, shuffle: CudaShuffle, op: Any, pieces: list[Piece]) -> Iterator[str]:
    if op is None:
        yield from row_relation(module, shuffle)
        return
    _, points, _ = fused_relation(module)
    names, outer = points.read("indices"), op.read("outer")
    domain = terminator(points, 0, Domain)
    extents = list(domain.extents)
    yield "struct Relation {"
    yield "  const Call& call;"
    yield f"  static constexpr int num_pieces = {len(pieces)};"
    text = CudaText(shuffle)
    sizes = [Region(text, {}).value(extents[index]) for index in outer]
    number = " * ".join(sizes) or "1"
    yield from _function(text, "i64 num_entries()", number)
    if shuffle.ragged:
        yield from _sizes(shuffle, points, domain, outer)
    yield "  template <int kPiece>"
    yield "  __device__ __forceinline__ void piece(i64 entry, PieceOf<Shape>& piece) const {"
    for position, piece in enumerate(pieces):
        yield f"    if constexpr (kPiece == {position}) {{"
        text = CudaText(shuffle)
        steps = [Region(text, {}).value(extents[index]) for index in outer[1:]]
        indices = Region(text, {}).row_major("entry", [names[i] for i in outer], steps)
        arguments = op.entry.blocks[0].arguments
        region = Region(text, dict(zip(arguments, indices, strict=True)))
        values = list(_members(region, piece))
        for line in text.declarations(" ".join(value for _, value in values)):
            yield f"  {line}"
        for name, value in values:
            yield f"      piece.{name} = {value};"
        yield "    }"
    yield "  }"
    yield "};"


def _members(region: Region[str], piece: Piece) -> Iterator[tuple[str, str]]:
    rank, slot = ends(region, piece, "i64(call.num_ranks)")
    yield "src", region.value(piece.src_offset)
    yield "rank", rank
    yield "slot", slot
    yield "num_loops", str(len(piece.counts))
    groups = {
        "count": piece.counts,
        "src_step": piece.src_steps,
        "rank_step": piece.rank_steps,
        "slot_step": piece.place_steps,
        "strides": piece.src_strides,
    }
    for name, values in groups.items():
        for i, value in enumerate(values):
            yield f"{name}[{i}]", region.value(value)


def moving_loop(piece: Any) -> int | None:
    """The loop of a piece that moves the rank."""
    found = [i for i, step in enumerate(piece.rank_steps) if number(step) != 0]
    return found[0] if found else None


def ends(region: Region[str], piece: Any, num_ranks: str) -> tuple[str, str]:
    """Rank and slot of the first point of a piece."""
    for value in (piece.src_offset, *piece.src_strides):  # which may look something up
        region.value(value)
    if moving_loop(piece) is not None:
        return region.value(piece.rank), region.value(piece.place)
    return region.destination(piece, num_ranks, packed=False)


def _sizes(shuffle: CudaShuffle, points: Any, domain: Domain, outer: Any) -> Iterator[str]:
    """How many points and cells an entry of a ragged source has, if that is possible."""
    text = CudaText(shuffle)
    (argument,) = points.domain.blocks[0].arguments
    region = Region(text, {argument: "entry"})
    inner = [value for i, value in enumerate(domain.extents) if i not in outer]
    extents = [region.value(value) for value in inner]
    (cells,) = map(region.value, domain.cells)
    tests = [f"u64({value}) < u64({MOST})" for value in extents]
    tests += [f"{lhs} % {rhs} == 0" for lhs, rhs in region.exact]
    product = " * ".join(extents) or "1"
    wide = " * ".join(f"double({value})" for value in extents) or "1"
    tests += [f"{wide} < {float(MOST) ** 2}", f"{cells} >= 0"]
    ok = " && ".join(tests)
    yield from _function(text, "Sizes sizes(i64 entry)", f"{{{product}, {cells}, {ok}}}")


def _function(text: CudaText, head: str, returned: str) -> Iterator[str]:
    yield f"  __device__ __forceinline__ {head} const {{"
    yield from text.declarations(returned)
    yield f"    return {returned};"
    yield "  }"
