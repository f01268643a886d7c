"""What a kernel that copies rows computes of a piece: scales of 8-bit floats are applied to it, or
made from it; or it is normalised."""

from __future__ import annotations

from typing import Any, Protocol

from fuscoc.codegen.arguments import Values, constant, named
from fuscoc.codegen.places import Place, Stride
from fuscoc.codegen.row_values import Piece, access, row_at
from fuscoc.codegen.tiles import Tile
from fuscoc.dialect.l3_values import (
    Amax,
    FactorOf,
    Lanes,
    LoadRow,
    Normalise,
    NormaliseBy,
    Scale,
    ScaleOf,
    StoreRow,
    cast_to,
    vector_type,
)
from fuscoc.dialect.mlir import arith, ir


class Entry(Protocol):
    """One descriptor of the list: where its rows are."""

    values: Values

    def end(self, side: str) -> Any: ...

    def destination(self, name: str, place: Place, dtype: str) -> Any: ...

    def stride(self, stride: int | Stride) -> Any: ...


def load_scales(entry: Entry, piece: Piece) -> Any:
    """The scales of a piece that its rows came with; None without any."""
    scales = piece.field.scales
    if scales is None or scales.made:
        return None
    tile, start = _blocks(piece)
    with named(f"{scales.name}_from"):
        row = row_at(entry.values[f"{scales.name}_src"], entry.end("src"), scales.place, "f32")
    with named(scales.name):
        return LoadRow.build(
            row,
            Lanes.build(start, vector_type("i64", tile.size)).result,
            [entry.stride(stride) for stride in scales.place.strides],
            vector_type("f32", tile.size),
            **access(tile, scales.place),
        ).result


def scaled(entry: Entry, piece: Piece, row: Any, factors: Any) -> Any:
    """A piece times the scales that it came with, or over those that are made and stored for it."""
    name, wide = piece.field.name, vector_type("f32", piece.tile.size)
    with named(f"{name}_wide"):
        row = cast_to(row, wide)
    if factors is None:
        factors = _make_scales(entry, piece, row)
    with named(f"{name}_scaled"):
        return Scale.build(row, factors, wide).result


def normalised(piece: Piece, row: Any, lanes: Any, values: Values) -> Any:
    """A piece as its field is normalised."""
    field, wide = piece.field, vector_type("f32", piece.tile.size)
    with named(f"{field.name}_wide"):
        row = cast_to(row, wide)
    with named(f"{field.name}_normalised"):
        if field.channels is not None:
            given = values[numbers_of(field.name)]
            return NormaliseBy.build(row, lanes, given, wide, channels=field.channels).result
        numbers = {"shifts": field.shifts, "factors": field.factors}
        return Normalise.build(row, [lanes], wide, **numbers).result


def numbers_of(field: str) -> str:
    """The argument with the numbers by which a call normalises a field."""
    return f"{field}_numbers"


def _make_scales(entry: Entry, piece: Piece, row: Any) -> Any:
    """Store the scales of a piece; what its elements are multiplied by."""
    field, scales = piece.field, piece.field.scales
    assert scales is not None
    tile, start = _blocks(piece)
    blocks = vector_type("f32", tile.size)
    with named(f"{field.name}_amax"):
        amax = Amax.build(row, blocks, block=piece.tile.size // tile.size).result
    StoreRow.build(
        ScaleOf.build(amax, blocks, dtype=field.stored).result,
        entry.destination(scales.name, scales.place, "f32"),
        Lanes.build(start, vector_type("i64", tile.size)).result,
        (),
        **access(tile, scales.place),
    )
    with named(f"{field.name}_factor"):
        return FactorOf.build(amax, blocks, dtype=field.stored).result


def _blocks(piece: Piece) -> tuple[Tile, Any]:
    """The tile of a piece's scales, and its first lane as a value."""
    scales, tile = piece.field.scales, piece.tile
    assert scales is not None
    if scales.num == 1:
        return Tile(0, 1, 1), constant(0)
    blocks = Tile(tile.start // scales.block, tile.size // scales.block, scales.num)
    if isinstance(piece.start.owner, ir.Block):  # the variable of a loop over chunks
        chunk = Tile(0, blocks.size, blocks.size)
        return chunk, arith.divsi(piece.start, constant(scales.block))
    return blocks, constant(blocks.start)
