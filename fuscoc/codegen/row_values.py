"""Rows in a kernel that is being built: pieces of them, where they lie, conversions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fuscoc.codegen.arguments import named
from fuscoc.codegen.places import Field, Place
from fuscoc.codegen.tiles import Tile
from fuscoc.dialect.dtypes import FLOATS, to_mlir
from fuscoc.dialect.l3_values import (
    Cast,
    Lanes,
    RowAt,
    RowType,
    Scale,
    cast_to,
    vector_of,
    vector_type,
)


@dataclass(frozen=True)
class Piece:
    """A tile of a field; ``start`` is its first lane as a value."""

    field: Field
    tile: Tile
    start: Any


def lanes_of(piece: Piece) -> Any:
    """The lanes of a piece."""
    with named("at"):
        return Lanes.build(piece.start, vector_type("i64", piece.tile.size)).result


def row_at(base: Any, index: Any, place: Place, dtype: str) -> Any:
    """Entry ``index`` of an array of rows."""
    row_type = RowType.get(to_mlir(dtype))
    return RowAt.build(base, index, row_type, step_bytes=place.step_bytes, align=place.align).row


def access(tile: Tile, place: Place) -> dict[str, Any]:
    """Attributes of a load or store: the mask, and the runs that the row lies in."""
    return {
        "limit": tile.limit if tile.masked else None,
        "run": place.run if place.counts else None,
        "counts": place.counts,
    }


def converted(row: Any, dtype: str) -> Any:
    """A row as ``dtype``: between short floats by way of f32, which holds all of them."""
    found, size = vector_of(row)
    if found not in ("f32", "f64", dtype) and found in FLOATS and dtype != "f32":
        row = Cast.build(row, vector_type("f32", size)).result
    return cast_to(row, vector_type(dtype, size))


def weighted(row: Any, wanted: Any, weight: Any) -> Any:
    """A row as a term of a sum of type ``wanted``."""
    row = cast_to(row, wanted)
    if weight is None:
        return row
    return Scale.build(row, cast_to(weight, wanted.element_type), wanted).result
