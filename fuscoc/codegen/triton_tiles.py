"""Tile sizes of the Triton kernels inside one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fuscoc.codegen.cuda_types import CudaField, CudaShuffle, row_bytes, unit_bytes
from fuscoc.codegen.tiles import BYTES_PER_LANE, LANES, MAX_WARPS, cut_row, warps_for
from fuscoc.lang.dtypes import ITEM_BYTES

LINE_BYTES = 16
LINES_PER_LANE = 8
"""Lines that a lane copies at once: as many as registers hold, of wide words."""
FEW_WORDS, FEW_TIMES = (2, 4), 2
"""Programs of few SMs need more loads in flight: twice as many lines, of words for which there are
registers."""
COPY_WARPS, HOLDING_WARPS = 4, 8
"""Of programs that copy lines, and of those that compute where all lines of an item lie before they
know whether they may store these: for small calls, which that holds up."""
TILE_ROW_BYTES, MAX_TILE_ROWS = 1024, 512
"""The longest row that is moved with others at once, and how many that are at most."""
SORTED_ROWS, SORTED_KEYS = 256, 512
"""Short rows that a program sorts by key at once, for so many keys at most."""
COUNTED_POINTS, COUNT_WARPS, COUNTED_KEYS = 512, 8, 2
"""Then: points whose keys a program counts at once, its warps, and keys whose counts one exchanges.
"""
PLACE_WARPS = 1  # pieces are single numbers, which more warps would not compute faster
CHAINED = LANES * 4
"""Entries that a program looks at at once, to find those that follow each other."""
PART_BYTES = MAX_WARPS * LANES * BYTES_PER_LANE
PLAN_POINTS, PLAN_WARPS, PLAN_KEYS = 128, 4, 8
GIVEN_BYTES, LEAST_GIVEN = 2 << 20, 2
"""Where slots are given, a program plans so many bytes of rows, or segments: slabs between nodes
have places for whole tiles, and nothing is compared."""
PLAN_COUNTS = 4096
"""Counts of keys that a program holds in registers, and that tiles of one program share memory for
if there are more."""
PLAN_BLOCKS = 512
"""Blocks of keys, at most: each has a flag, of every rank."""

# Elements of copies, by the bytes that an access is aligned to.
WORDS = {16: ("i64", 8), 8: ("i64", 8), 4: ("i32", 4), 2: ("i16", 2), 1: ("i8", 1)}


@dataclass(frozen=True)
class PieceSizes:
    """How a field of a row is taken: parts of ``part_elems`` elements that move, each in ``pieces``
    of so many lanes, whose last may have fewer elements; accesses are aligned to ``align_bytes``.
    """

    field: str
    align_bytes: int
    part_elems: int
    pieces: tuple[int, ...]


@dataclass(frozen=True)
class TritonSizes:
    """Sizes chosen for a shuffle: see ``fuscoc.dialect.node.TritonTile``."""

    plan_points: int
    plan_warps: int
    plan_keys: int
    plan_tiles: int
    plan_block: int
    row_parts: int
    row_warps: int
    tile_rows: int
    sorted_rows: int
    moved: tuple[PieceSizes, ...]
    arriving: tuple[PieceSizes, ...]
    summed: tuple[PieceSizes, ...]


@dataclass(frozen=True)
class LineSizes:
    """How a field of a piece is copied: read in words of ``word_bytes``, ``lines`` at once, and
    ``few_lines`` by programs of few SMs."""

    field: str
    word_bytes: int
    lines: int
    few_lines: int


@dataclass(frozen=True)
class TritonPieceSizes:
    """Sizes of kernels that move pieces: see ``fuscoc.dialect.piece_tiles.TritonPieceTile``."""

    plan_warps: int
    copy_warps: int
    holding_warps: int | None
    item_lines: int
    chained: int | None
    fields: tuple[LineSizes, ...]


def choose_triton_piece_sizes(
    shuffle: CudaShuffle, *, are_alike: bool, looks_up: bool
) -> TritonPieceSizes:
    """A lane has eight lines in flight, or fewer of narrow words: 16 loads. An item of as many
    lines as a program has at most at once makes a small call one of many. Entries that
    ``are_alike`` are planned by groups; where inputs are not looked up, a program holds an item of
    words that are lines."""
    lanes = COPY_WARPS * LANES
    fields = tuple(
        LineSizes(field.name, unit, lines, lines * (FEW_TIMES if unit in FEW_WORDS else 1))
        for field in shuffle.leaving
        for unit in (unit_bytes(field),)
        for lines in (lanes * min(unit, LINES_PER_LANE),)
    )
    holds = not looks_up and [field.word_bytes for field in fields] == [LINE_BYTES]
    return TritonPieceSizes(
        plan_warps=PLACE_WARPS,
        copy_warps=COPY_WARPS,
        holding_warps=HOLDING_WARPS if holds else None,
        item_lines=lanes * LINES_PER_LANE,
        chained=CHAINED if are_alike else None,
        fields=fields,
    )


def power_of_two(least: int) -> int:
    """The smallest power of two that is as large."""
    return 1 << (least - 1).bit_length()


def choose_triton_sizes(shuffle: CudaShuffle, *, one_by_one: bool = False) -> TritonSizes:
    """A program of the planner compares all points of its tile with each other; one that moves rows
    holds a part of all fields in registers: words of a copy, elements of a cast or of a sum. Rows
    may have to move ``one_by_one``, however short they are."""
    blocks = {cast.field: cast.block or 1 for cast in shuffle.casts}
    keys = power_of_two(shuffle.num_columns)
    whole = max(sum(map(row_bytes, fields)) for fields in (shuffle.fields, shuffle.leaving))
    parts = -(-whole // PART_BYTES)
    summed = shuffle.leaving if shuffle.combine not in ("copy", None) else ()
    leaving, arriving = (
        {field.name: field for field in fields} for fields in (shuffle.leaving, shuffle.fields)
    )
    cuts = {
        name: _cut_cast(field, arriving[name], parts, blocks[name])
        for name, field in leaving.items()
        if name in blocks
    }
    cuts |= {
        cast.scales: _scales_of(cuts[cast.field], cast.block)
        for cast in shuffle.casts
        if cast.scales and cast.block
    }
    moved = _moved(leaving, cuts, parts)
    tile_rows = 1 if one_by_one else rows_at_once(shuffle, moved)
    is_sorted = sorts(shuffle, tile_rows)
    points, warps, exchanged = PLAN_POINTS, PLAN_WARPS, PLAN_KEYS
    if shuffle.given_slots:
        points = min(points, max(power_of_two(GIVEN_BYTES // whole + 1) // 2, LEAST_GIVEN))
    points = max(points, power_of_two(shuffle.fanout))
    if is_sorted:
        points, warps, exchanged = COUNTED_POINTS, COUNT_WARPS, COUNTED_KEYS
    return TritonSizes(
        plan_points=points,
        plan_warps=warps,
        plan_keys=min(max(exchanged, keys // PLAN_BLOCKS), keys),
        plan_tiles=max(1, keys // PLAN_COUNTS),
        plan_block=min(keys, PLAN_COUNTS),
        row_parts=parts,
        row_warps=COPY_WARPS if tile_rows > 1 else warps_for(whole // parts),
        tile_rows=tile_rows,
        sorted_rows=SORTED_ROWS if is_sorted else 1,
        moved=moved,
        arriving=_moved(arriving, cuts, parts) if cuts else (),
        summed=tuple(_pieces(field, parts, ITEM_BYTES[field.dtype]) for field in summed),
    )


def rows_at_once(shuffle: CudaShuffle, moved: Sequence[PieceSizes]) -> int:
    """How many short rows a program moves at once: those of segments that have one each, which
    leaves and comes back as it is. As many words as a copy of pieces has in flight."""
    as_it_is = not shuffle.source_fields and shuffle.combine in ("copy", None)
    one_each = shuffle.fanout == 1 and not shuffle.compact and not shuffle.every_rank
    if not (as_it_is and one_each and sum(map(row_bytes, shuffle.fields)) <= TILE_ROW_BYTES):
        return 1
    words = COPY_WARPS * LANES * 2 * LINES_PER_LANE
    fitting = words // sum(sum(each.pieces) for each in moved)
    return min(power_of_two(fitting + 1) // 2, MAX_TILE_ROWS)


def sorts(shuffle: CudaShuffle, tile_rows: int) -> bool:
    """Whether short rows are sorted by key as they are moved. The kernel that counts them evaluates
    the relation, of as many points as there are segments."""
    plans = not (shuffle.given_slots or shuffle.ragged)
    return tile_rows > 1 and plans and shuffle.num_keys <= SORTED_KEYS


Cut = tuple[int, tuple[int, ...]]
"""Elements of a part of a field, and the lanes of its pieces."""


def _moved(
    fields: Mapping[str, CudaField], cuts: Mapping[str, Cut], parts: int
) -> tuple[PieceSizes, ...]:
    """Fields as they are loaded, or stored: as words, unless they are ``cuts`` of elements."""
    return tuple(
        PieceSizes(name, unit_bytes(field), *cuts[name])
        if name in cuts
        else _pieces(field, parts, WORDS[unit_bytes(field)][1])
        for name, field in fields.items()
    )


def _pieces(field: CudaField, parts: int, elem_bytes: int) -> PieceSizes:
    """Parts begin at multiples of what an access is aligned to, so that accesses stay as wide."""
    unit = unit_bytes(field)
    step = max(unit // elem_bytes, 1)
    return PieceSizes(
        field.name, unit, *_cut(row_bytes(field) // elem_bytes, elem_bytes, parts, step)
    )


def _cut_cast(leaving: CudaField, arriving: CudaField, parts: int, block: int) -> Cut:
    """Parts of a field that is cast: accesses at both ends stay as wide, and a block of elements
    that have a scale stays whole."""
    ends = [unit_bytes(field) // ITEM_BYTES[field.dtype] for field in (leaving, arriving)]
    step = block if block > 1 else max(*ends, 1)
    item = max(ITEM_BYTES[leaving.dtype], ITEM_BYTES[arriving.dtype])
    return _cut(leaving.elems, item, parts, step, block)


def _scales_of(cut: Cut, block: int) -> Cut:
    """The scales of blocks: as many pieces, of a lane a block."""
    part_elems, pieces = cut
    return part_elems // block, tuple(max(piece // block, 1) for piece in pieces)


def _cut(num_elems: int, elem_bytes: int, parts: int, step: int, block: int = 1) -> Cut:
    part_elems = -(-num_elems // (parts * step)) * step
    return part_elems, tuple(tile.size for tile in cut_row(part_elems, elem_bytes, block).tiles)
