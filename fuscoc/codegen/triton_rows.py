"""The functions that move and add up one shuffle's rows, as Triton text.

A row is taken in parts that fit in a program's registers, each of all fields. The functions are
passed to ``dispatch`` and ``combine`` of ``fuscoc_runtime/kernels/device``, which say what they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuscoc.codegen.cuda_types import FLOATS, CudaField, CudaShuffle, row_bytes, unit_bytes
from fuscoc.codegen.tiles import Tile, cut_row
from fuscoc.codegen.triton_expressions import wrapped
from fuscoc.lang.dtypes import ITEM_BYTES

WORDS = {16: ("int64", 8), 8: ("int64", 8), 4: ("int32", 4), 2: ("int16", 2), 1: ("int8", 1)}


@dataclass(frozen=True)
class RowField:
    """A field in the words that move: how many a row has, and a part of it, in ``tiles``."""

    dtype: str
    word_bytes: int
    row_words: int
    part_words: int
    num_parts: int
    align: int
    tiles: tuple[Tile, ...]

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


def row_functions(shuffle: CudaShuffle, parts: int) -> list[str]:
    """``load_source``, ``load_row`` and ``store_row``, then those of a sum, if there is one."""
    fields = [_as_words(field, parts) for field in shuffle.fields]
    cells = [field.cell_elems * ITEM_BYTES[field.dtype] for field in shuffle.fields]
    sources = [f"source[{i}] + cell * {cell}" for i, cell in enumerate(cells)]
    rows = [f"base + at[{i}] + slot * {field.row_bytes}" for i, field in enumerate(fields)]
    functions = [
        _function("load_source(part, source, cell)", _loads(fields, sources)),
        _function("load_row(part, base, at, slot)", _loads(fields, rows)),
        _function("store_row(part, base, at, slot, tiles)", _stores(fields, rows)),
    ]
    if shuffle.combine == "sum":
        functions += _sums(_as_floats(shuffle.fields[0], parts))
    return functions


def _sums(field: RowField) -> list[str]:
    zeros = [f"tl.full(({tile.size},), 0, tl.float32)" for tile in field.tiles]
    added = [f"sums[{i}] + tile_{i}.to(tl.float32) * weight" for i in range(len(zeros))]
    *loads, _ = _loads([field], ["row"])
    stores = _stores([field], ["row"], cast=f".to({field.dtype})")
    return [
        _function("zero()", [f"return {as_tuple(zeros)}"]),
        _function("add_row(part, row, weight, sums)", [*loads, f"return {as_tuple(added)}"]),
        _function("store_sum(part, row, tiles)", stores),
    ]


def _as_words(field: CudaField, parts: int) -> RowField:
    """A field to be copied: words, whatever its type."""
    dtype, word_bytes = WORDS[unit_bytes(field)]
    return _cut(field, parts, dtype, word_bytes)


def _as_floats(field: CudaField, parts: int) -> RowField:
    """A field to be summed: elements."""
    return _cut(field, parts, FLOATS[field.dtype], ITEM_BYTES[field.dtype])


def _cut(field: CudaField, parts: int, dtype: str, word_bytes: int) -> RowField:
    # Parts begin at multiples of the unit, so that accesses stay as wide.
    unit = unit_bytes(field)
    step = max(unit // word_bytes, 1)
    row_words = row_bytes(field) // word_bytes
    part_words = -(-row_words // (parts * step)) * step
    tiles = cut_row(part_words, word_bytes).tiles
    return RowField(f"tl.{dtype}", word_bytes, row_words, part_words, parts, unit, tiles)


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
            tiles.append(f"tile_{len(tiles)}")
            lines.append(f"{tiles[-1]} = tl.load(row_{i} + {lanes}{masked})")
    return [*lines, f"return {as_tuple(tiles)}"]


def _stores(fields: Sequence[RowField], addresses: Sequence[str], cast: str = "") -> list[str]:
    """Store the part's tiles."""
    lines, number = _pointers(fields, addresses), 0
    for i, field in enumerate(fields):
        for lanes, mask in field.pieces():
            masked = f", mask={mask}" if mask else ""
            lines.append(f"tl.store(row_{i} + {lanes}, tiles[{number}]{cast}{masked})")
            number += 1
    return lines


def _function(head: str, body: Sequence[str]) -> str:
    lines = [part for line in body for part in wrapped("    ", line)]
    return "\n".join(["@triton.jit", f"def {head}:", *lines]) + "\n"


def as_tuple(items: Sequence[str]) -> str:
    """A tuple of expressions."""
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
