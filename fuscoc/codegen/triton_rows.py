"""The functions that move and add up one shuffle's rows, as Triton text.

A row is taken in parts that fit in a program's registers, each of all fields. The functions are
passed to ``dispatch`` and ``combine`` of ``fuscoc_runtime/kernels/device``, which say what they do.
In the source a row may lie in runs; it arrives, and comes back, in one piece.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count

from fuscoc.codegen.cuda_types import CudaField, CudaShuffle, row_bytes
from fuscoc.codegen.tiles import ACCESS_BYTES, Tile
from fuscoc.codegen.triton_expressions import (
    AMAX_TEXT,
    INT32_MAX,
    MAX_VALUES,
    MERGES,
    NORMALISED_BY_TEXT,
    NORMALISED_TEXT,
    amax_of,
    cast_to,
    factor_of,
    in_runs,
    normalised,
    normalised_by,
    reach,
    scale_of,
    scaled_by,
    tl,
    wrapped,
)
from fuscoc.codegen.triton_tiles import WORDS, PieceSizes, TritonSizes
from fuscoc.dialect.dtypes import accumulator_dtype, partial_dtype
from fuscoc.lang.dtypes import INTEGERS, ITEM_BYTES
from fuscoc.lang.reductions import REDUCTIONS

WHOLE = frozenset(map(tl, INTEGERS))


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
    """A field in the elements or words ``elem`` that move: how many a row has, and a part of it, in
    ``tiles``; in the source it may lie in ``runs``."""

    name: str
    elem: str
    row_words: int
    part_words: int
    num_parts: int
    align: int
    tiles: tuple[Tile, ...]
    runs: Runs | None = None

    @property
    def dtype(self) -> str:
        """Triton's name of what moves."""
        return tl(self.elem)

    @property
    def word_bytes(self) -> int:
        return ITEM_BYTES[self.elem]

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
    """``load_source``, ``load_row`` and ``store_row``, ``load_landed`` across nodes, then those of
    a combine, if there is one."""
    elements = {cast.field for cast in shuffle.casts} | {cast.scales for cast in shuffle.casts}
    leaving = [
        taken(field, cut, sizes.row_parts, field.name in elements)
        for field, cut in zip(shuffle.leaving, sizes.moved, strict=True)
    ]
    arriving = [replace(field, runs=None) for field in leaving]
    if sizes.arriving:
        arriving = [
            taken(field, cut, sizes.row_parts, field.name in elements)
            for field, cut in zip(shuffle.fields, sizes.arriving, strict=True)
        ]
    sources = [f"source[{i}] + {_first_cell(shuffle, i)}" for i in range(len(leaving))]
    rows = [f"base + at[{i}] + slot * {field.row_bytes}" for i, field in enumerate(arriving)]
    loads, tiles = _loads(leaving, sources)
    lines = [*_strides(shuffle), *loads, *_casts(shuffle, arriving, tiles)]
    found, held = _loads(arriving, rows)
    functions = [
        function("load_source(part, source, cell)", [*lines, _returns(arriving, tiles)]),
        function("load_row(part, base, at, slot)", [*found, _returns(arriving, held)]),
        function("store_row(part, base, at, slot, tiles)", _stores(arriving, rows)),
    ]
    landed = [  # see ``slabs.cell_of``
        "if cell[2]:",
        "    tiles = load_source(part, source[1], cell[3])",
        "else:",
        "    tiles = load_row(part, cell[0], source[0], cell[1])",
        "return tiles",
    ]
    functions.append(function("load_landed(part, source, cell)", landed))
    if any(cast.scales and not cast.applied for cast in shuffle.casts):
        functions.insert(0, AMAX_TEXT)
    if any(cast.factors for cast in shuffle.casts):
        functions.insert(0, NORMALISED_TEXT)
    if given_numbers(shuffle):
        functions.insert(0, NORMALISED_BY_TEXT)
    if shuffle.combine is not None:
        summed = [
            taken(field, cut, sizes.row_parts, True)
            for field, cut in zip(shuffle.leaving, sizes.summed, strict=bool(sizes.summed))
        ]
        functions += _combines(shuffle, summed or leaving)
    return functions


def partial_bytes(shuffle: CudaShuffle) -> tuple[tuple[int, ...], int]:
    """Where the fields of what goes back for a segment begin, and how many bytes that is. Of
    several each begins at a multiple of the widest access."""
    places, size = [], 0
    for field in shuffle.leaving:
        places.append(size)
        dtype = field.dtype if shuffle.combine == "copy" else partial_dtype(field.dtype)
        size += field.elems * ITEM_BYTES[dtype]
        if len(shuffle.leaving) > 1:
            size = -(-size // ACCESS_BYTES) * ACCESS_BYTES
    return tuple(places), size


def is_strided(shuffle: CudaShuffle) -> bool:
    """Whether the relation says how far runs of a segment lie from each other."""
    return bool(_strides(shuffle))


def given_numbers(shuffle: CudaShuffle) -> list[str]:
    """The fields for which a call has numbers, which are passed behind those of the source."""
    return [cast.field for cast in shuffle.casts if cast.channels]


def _casts(
    shuffle: CudaShuffle, arriving: Sequence[RowField], tiles: dict[str, list[str]]
) -> list[str]:
    """Make the tiles of fields that are cast what they arrive as; scales are made, or applied."""
    lines, fields = list[str](), {field.name: field for field in arriving}
    for place, name in enumerate(given_numbers(shuffle), len(shuffle.leaving)):
        lines.append(f"numbers_{name} = source[{place}].to(tl.pointer_type(tl.float32))")
    for cast in shuffle.casts:
        field, scales = fields[cast.field], list[str]()
        for number, (tile, piece) in enumerate(zip(tiles[cast.field], field.tiles, strict=True)):
            wide = f"{tile}.to(tl.float32)"
            if cast.factors or cast.channels:
                lanes, _ = field.pieces()[number]
                made = normalised(wide, lanes, cast.shifts, cast.factors)
                if cast.channels:
                    made = normalised_by(wide, lanes, f"numbers_{cast.field}", cast.channels)
                lines.append(f"{tile} = {made}")
                lines.append(f"{tile} = {cast_to(tile, field.elem)}")
                continue
            if cast.scales is None:
                source = next(each for each in shuffle.leaving if each.name == cast.field)
                # Between short floats by way of f32, which holds all of them.
                value = tile if "f32" in (source.dtype, field.elem) else wide
                lines.append(f"{tile} = {cast_to(value, field.elem)}")
                continue
            assert cast.block is not None
            num_blocks = max(piece.size // cast.block, 1)
            lines.append(f"{tile} = {wide}")
            if cast.applied:
                factors = tiles[cast.scales][number]
            else:
                factors, amax = (tile.replace("tile", name) for name in ("factor", "amax"))
                scales.append(tile.replace("tile", "scale"))
                lines.append(f"{amax} = {amax_of(tile, piece.size // num_blocks)}")
                lines.append(f"{scales[-1]} = {scale_of(amax, field.elem)}")
                lines.append(f"{factors} = {factor_of(amax, field.elem)}")
            lines.append(f"{tile} = {scaled_by(tile, factors, piece.size, num_blocks)}")
            lines.append(f"{tile} = {cast_to(tile, field.elem)}")
        if cast.scales is not None and not cast.applied:
            tiles[cast.scales] = scales
    return lines


def _combines(shuffle: CudaShuffle, fields: Sequence[RowField]) -> list[str]:
    """Those of a combine: rows in slots and what peers send become sums, and those results."""
    assert shuffle.combine is not None
    reduces = shuffle.combine != "copy"
    if not reduces:  # bits: there are no constants of 8-bit floats
        fields = [replace(field, elem=f"i{8 * field.word_bytes}") for field in fields]
    rows = [replace(field, runs=None) for field in fields]
    sums = [tl(accumulator_dtype(field.elem)) if reduces else field.dtype for field in rows]
    partials = [
        replace(field, elem=partial_dtype(field.elem)) if reduces else field for field in rows
    ]
    places, _ = partial_bytes(shuffle)
    slots = [f"rows[{i}] + slot * {field.row_bytes}" for i, field in enumerate(rows)]
    sent = [f"row + {at}" if at else "row" for at in places]
    zeros, lost = (
        as_tuple(
            [
                f"tl.full(({tile.size},), {value(kind)}, {kind})"
                for field, kind in zip(rows, sums, strict=True)
                for tile in field.tiles
            ]
        )
        for value in (lambda _: "0", _lost)
    )
    weight = " * weight" if shuffle.weighted else ""
    casts = [f".to({field.dtype})" if reduces else "" for field in rows]
    narrow = [f".to({field.dtype})" if reduces else "" for field in partials]
    results = [f"result[{i}] + source * {field.row_bytes}" for i, field in enumerate(rows)]
    functions = [
        function("zero()", [f"return {zeros}"]),
        function(
            "add_row(part, rows, slot, weight, has, sums)",
            _adds(shuffle.combine, rows, slots, sums, weight),
        ),
        function(
            "add_partial(part, row, has, sums)", _adds(shuffle.combine, partials, sent, sums, "")
        ),
        function("store_partial(part, row, tiles)", _stores(partials, sent, narrow)),
        function("lost()", [f"return {lost}"]),
    ]
    if shuffle.is_placed:
        at = [f"result[{i}] + {_first_cell(shuffle, i)}" for i in range(len(fields))]
        stores = [*_strides(shuffle), *_stores(fields, at, casts)]
        return [*functions, function("store_result(part, result, cell, tiles)", stores)]
    stored = _stores(rows, results, casts)
    return [*functions, function("store_result(part, result, source, tiles)", stored)]


def _lost(kind: str) -> str:
    """What a sum is that cannot be made: in bits, all ones if the numbers are whole."""
    if kind not in WHOLE:
        return 'float("nan")'
    bits = re.fullmatch(r"tl\.uint(\d+)", kind)
    return str((1 << int(bits[1])) - 1) if bits else "-1"


def _adds(
    kind: str, rows: Sequence[RowField], addresses: Sequence[str], sums: Sequence[str], weight: str
) -> list[str]:
    """Load a row, and return what it makes of the ``sums`` so far, if there ``has`` been one."""
    loads, tiles = _loads(rows, addresses)
    if kind == "copy":
        return [*loads, _returns(rows, tiles)]
    made = list[str]()
    for field, wide in zip(rows, sums, strict=True):
        for tile in tiles[field.name]:
            before, term = f"sums[{len(made)}]", f"{tile}.to({wide}){weight}"
            if REDUCTIONS[kind].sums:
                made.append(MERGES[kind].format(before, term))
                continue
            loads.append(f"{tile} = {term}")
            loads.append(f"more = {MERGES[kind].format(before, tile)}")
            loads.append(f"{tile} = tl.where(has > 0, more, {tile})")
            made.append(tile)
    return [*loads, f"return {as_tuple(made)}"]


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


def taken(field: CudaField, sizes: PieceSizes, parts: int, is_elements: bool) -> RowField:
    """A field in what it is moved in: elements, or words whatever its type."""
    word, word_bytes = WORDS[sizes.align_bytes]
    if is_elements:
        word, word_bytes = field.dtype, ITEM_BYTES[field.dtype]
    starts = accumulate(sizes.pieces[:-1], initial=0)
    limit = sizes.part_elems
    return RowField(
        name=field.name,
        elem=word,
        row_words=row_bytes(field) // word_bytes,
        part_words=limit,
        num_parts=parts,
        align=sizes.align_bytes,
        tiles=tuple(Tile(at, size, limit) for at, size in zip(starts, sizes.pieces, strict=True)),
        runs=_in_source(field, word_bytes),
    )


def _pointers(fields: Sequence[RowField], addresses: Sequence[str]) -> list[str]:
    """A pointer to every field's row, from expressions of their addresses."""
    lines = []
    for i, (field, at) in enumerate(zip(fields, addresses, strict=True)):
        row = f"{at if at.isidentifier() else f'({at})'}.to(tl.pointer_type({field.dtype}))"
        if field.align > field.word_bytes:
            row = f"tl.multiple_of({row}, {field.align})"
        lines.append(f"row_{i} = {row}")
    return lines


def _loads(
    fields: Sequence[RowField], addresses: Sequence[str]
) -> tuple[list[str], dict[str, list[str]]]:
    """Load the part's tiles; their names, by field."""
    lines, number = _pointers(fields, addresses), count()
    tiles: dict[str, list[str]] = {field.name: [] for field in fields}
    for i, field in enumerate(fields):
        # No integer can be made an 8-bit float.
        zero = "0.0" if field.elem in MAX_VALUES else "0"
        for lanes, mask in field.pieces():
            masked = f", mask={mask}, other={zero}" if mask else ""
            if field.runs is not None:
                lines.append(f"at = {lanes}")
                lanes = field.runs.place("at")
            tiles[field.name].append(f"tile_{next(number)}")
            lines.append(f"{tiles[field.name][-1]} = tl.load(row_{i} + {lanes}{masked})")
    return lines, tiles


def _returns(fields: Sequence[RowField], tiles: Mapping[str, Sequence[str]]) -> str:
    return f"return {as_tuple([tile for field in fields for tile in tiles[field.name]])}"


def _stores(
    fields: Sequence[RowField], addresses: Sequence[str], casts: Sequence[str] = ()
) -> list[str]:
    """Store the part's tiles, as ``casts`` make them what the fields are."""
    lines, number = _pointers(fields, addresses), count()
    for i, field in enumerate(fields):
        for lanes, mask in field.pieces():
            masked = f", mask={mask}" if mask else ""
            if field.runs is not None:
                lines.append(f"at = {lanes}")
                lanes = field.runs.place("at")
            cast = casts[i] if casts else ""
            lines.append(f"tl.store(row_{i} + {lanes}, tiles[{next(number)}]{cast}{masked})")
    return lines


def function(head: str, body: Sequence[str]) -> str:
    lines = [part for line in body for part in wrapped("    ", line)]
    return "\n".join(["@triton.jit", f"def {head}:", *lines]) + "\n"


def as_tuple(items: Sequence[str]) -> str:
    """A tuple of expressions."""
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
