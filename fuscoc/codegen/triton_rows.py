"""The functions that move and add up one shuffle's rows, as Triton text.

A row is taken in parts that fit in a program's registers, each of all fields. The functions are
passed to ``dispatch`` and ``combine`` of ``fuscoc_runtime/kernels/device``, which say what they do.
In the source a row may lie in runs; it arrives, and comes back, in one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from fuscoc.codegen.cuda_types import FLOATS, CudaField, CudaShuffle, row_bytes
from fuscoc.codegen.tiles import Tile
from fuscoc.codegen.triton_expressions import INT32_MAX, in_runs, reach, wrapped
from fuscoc.codegen.triton_tiles import WORDS, PieceSizes, TritonSizes
from fuscoc.lang.dtypes import ITEM_BYTES


@dataclass(frozen=True)
class Runs:
    """Runs of so many words inside nested loops, outermost first; strides may be expressions."""

    words: int
    counts: tuple[int, ...]
    strides: tuple[int | str, ...]

    def place(self, at: str) -> str:
        """Where the lanes ``at`` of a row lie."""
        if reach(self.words, self.counts, self.strides) > INT32_MAX:
            at = f"{at}.to(tl.int64)"  # Triton counts lanes in 32 bits
        return f"({in_runs(at, self.words, self.counts, [str(each) for each in self.strides])})"


@dataclass(frozen=True)
class RowField:
    """A field in the words that move: how many a row has, and a part of it, in ``tiles``; in the
    source it may lie in ``runs``."""

    dtype: str
    word_bytes: int
    row_words: int
    part_words: int
    num_parts: int
    align: int
    tiles: tuple[Tile, ...]
    runs: Runs | None = None

    @property
    def row_bytes(self) -> int:
        return self.row_words * self.word_bytes

    def pieces(self) -> list[tuple[str, str]]:
        """(lanes, mask) of every tile, as expressions; a mask may be empty."""
        start = f"part * {self.part_words} + " if self.num_parts > 1 else ""
        found = []
        for tile in self.tiles:
            offset = f"{tile.start} + " if tile.start else ""
            lanes = f"{offset}tl.arange(0, {tile.size})"
            masks = [f"{lanes} < {tile.limit}"] if tile.masked else []
            if self.part_words * self.num_parts != self.row_words:
                masks.append(f"{start}{lanes} < {self.row_words}")
            mask = " & ".join(f"({each})" for each in masks) if len(masks) > 1 else "".join(masks)
            found.append((start + lanes, mask))
        return found


def row_functions(shuffle: CudaShuffle, sizes: TritonSizes) -> list[str]:
    """``load_source``, ``load_row`` and ``store_row``, then those of a combine, if there is one."""
    leaving = [
        _as_words(field, taken, sizes.row_parts)
        for field, taken in zip(shuffle.leaving, sizes.moved, strict=True)
    ]
    fields = [replace(field, runs=None) for field in leaving]
    sources = [f"source[{i}] + {_first_cell(shuffle, i)}" for i in range(len(fields))]
    rows = [f"base + at[{i}] + slot * {field.row_bytes}" for i, field in enumerate(fields)]
    loads = [*_strides(shuffle), *_loads(leaving, sources)]
    functions = [
        _function("load_source(part, source, cell)", loads),
        _function("load_row(part, base, at, slot)", _loads(fields, rows)),
        _function("store_row(part, base, at, slot, tiles)", _stores(fields, rows)),
    ]
    if shuffle.combine is not None:
        field = leaving[0]
        for taken in sizes.summed:
            field = _as_floats(shuffle.leaving[0], taken, sizes.row_parts)
        functions += _combines(shuffle, field, bool(sizes.summed))
    return functions


def is_strided(shuffle: CudaShuffle) -> bool:
    """Whether the relation says how far runs of a segment lie from each other."""
    return bool(_strides(shuffle))


def _combines(shuffle: CudaShuffle, leaving: RowField, sums: bool) -> list[str]:
    field, kind = replace(leaving, runs=None), "tl.float32" if sums else leaving.dtype
    zeros, lost = (
        as_tuple([f"tl.full(({tile.size},), {value}, {kind})" for tile in field.tiles])
        for value in ("0", 'float("nan")' if sums else "-1")
    )
    *loads, copied = _loads([field], ["row"])
    added = [f"sums[{i}] + tile_{i}.to(tl.float32) * weight" for i in range(len(field.tiles))]
    cast = f".to({field.dtype})" if sums else ""
    functions = [
        _function("zero()", [f"return {zeros}"]),
        _function(
            "add_row(part, row, weight, sums)",
            [*loads, f"return {as_tuple(added)}" if sums else copied],
        ),
        _function("store_sum(part, row, tiles)", _stores([field], ["row"], cast)),
    ]
    if shuffle.places_results:
        place = f"result + {_first_cell(shuffle, 0)}"
        stores = [*_strides(shuffle), *_stores([leaving], [place], cast)]
        functions += [
            _function("store_result(part, result, cell, tiles)", stores),
            _function("lost()", [f"return {lost}"]),
        ]
    return functions


def _first_cell(shuffle: CudaShuffle, position: int) -> str:
    """How many bytes of a field of the source come before a segment."""
    field = shuffle.leaving[position]
    cell = "cell[0]" if is_strided(shuffle) else "cell"
    return f"{cell} * {field.cell_elems * ITEM_BYTES[field.dtype]}"


def _strides(shuffle: CudaShuffle) -> list[str]:
    """Load the strides of runs that are in the columns ``src_stride0`` and so on; see
    ``points.cell_of``."""
    loops = [loop for field in shuffle.leaving for loop in field.loops]
    names = sorted({loop.stride for loop in loops if isinstance(loop.stride, str)})
    places = ["cell[1]", "cell[1] + cell[2]", *(f"cell[1] + {i} * cell[2]" for i in range(2, 10))]
    return [f"{name} = tl.load({places[int(name.removeprefix('src_stride'))]})" for name in names]


def _in_source(field: CudaField, word_bytes: int) -> Runs | None:
    """How a field lies in the source, in words; None if it is contiguous."""
    if not field.loops:
        return None
    item = ITEM_BYTES[field.dtype]
    cell_bytes, strides = field.cell_elems * item, list[int | str]()
    for loop in field.loops:
        if isinstance(loop.stride, int):
            strides.append(loop.stride * cell_bytes // word_bytes)
        elif cell_bytes % word_bytes:
            strides.append(f"({loop.stride} * {cell_bytes} // {word_bytes})")
        else:
            words = cell_bytes // word_bytes
            strides.append(loop.stride if words == 1 else f"({loop.stride} * {words})")
    counts = tuple(loop.count for loop in field.loops)
    return Runs(field.run_elems * item // word_bytes, counts, tuple(strides))


def _as_words(field: CudaField, taken: PieceSizes, parts: int) -> RowField:
    """A field to be copied: words, whatever its type."""
    dtype, word_bytes = WORDS[taken.align_bytes]
    return _cut(field, taken, parts, dtype, word_bytes)


def _as_floats(field: CudaField, taken: PieceSizes, parts: int) -> RowField:
    """A field to be summed: elements."""
    return _cut(field, taken, parts, FLOATS[field.dtype], ITEM_BYTES[field.dtype])


def _cut(field: CudaField, taken: PieceSizes, parts: int, dtype: str, word_bytes: int) -> RowField:
    starts = accumulate(taken.pieces[:-1], initial=0)
    limit = taken.part_elems
    tiles = tuple(Tile(at, size, limit) for at, size in zip(starts, taken.pieces, strict=True))
    row_words = row_bytes(field) // word_bytes
    runs = _in_source(field, word_bytes)
    align = taken.align_bytes
    return RowField(f"tl.{dtype}", word_bytes, row_words, limit, parts, align, tiles, runs)


def _pointers(fields: Sequence[RowField], addresses: Sequence[str]) -> list[str]:
    """A pointer to every field's row, from expressions of their addresses."""
    lines = []
    for i, (field, at) in enumerate(zip(fields, addresses, strict=True)):
        row = f"{at if at.isidentifier() else f'({at})'}.to(tl.pointer_type({field.dtype}))"
        if field.align > field.word_bytes:
            row = f"tl.multiple_of({row}, {field.align})"
        lines.append(f"row_{i} = {row}")
    return lines


def _loads(fields: Sequence[RowField], addresses: Sequence[str]) -> list[str]:
    """Load the part's tiles and return them."""
    lines = _pointers(fields, addresses)
    tiles: list[str] = []
    for i, field in enumerate(fields):
        for lanes, mask in field.pieces():
            masked = f", mask={mask}, other=0" if mask else ""
            if field.runs is not None:
                lines.append(f"at = {lanes}")
                lanes = field.runs.place("at")
            tiles.append(f"tile_{len(tiles)}")
            lines.append(f"{tiles[-1]} = tl.load(row_{i} + {lanes}{masked})")
    return [*lines, f"return {as_tuple(tiles)}"]


def _stores(fields: Sequence[RowField], addresses: Sequence[str], cast: str = "") -> list[str]:
    """Store the part's tiles."""
    lines, number = _pointers(fields, addresses), 0
    for i, field in enumerate(fields):
        for lanes, mask in field.pieces():
            masked = f", mask={mask}" if mask else ""
            if field.runs is not None:
                lines.append(f"at = {lanes}")
                lanes = field.runs.place("at")
            lines.append(f"tl.store(row_{i} + {lanes}, tiles[{number}]{cast}{masked})")
            number += 1
    return lines


def _function(head: str, body: Sequence[str]) -> str:
    lines = [part for line in body for part in wrapped("    ", line)]
    return "\n".join(["@triton.jit", f"def {head}:", *lines]) + "\n"


def as_tuple(items: Sequence[str]) -> str:
    """A tuple of expressions."""
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
