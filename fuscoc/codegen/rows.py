"""Kernels that walk a descriptor list and copy, or reduce, the rows that it names.

The columns of the list say where rows lie: ``src_offset`` or ``dst_offset`` is an end in the source
layout, any other ``src_*`` or ``dst_*`` a dense array of segment rows; ``dst_peer`` puts the
destination into a peer's memory; ``term_begin`` makes the kernel a reduction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuscoc.codegen.arguments import (
    SIGNALS,
    Argument,
    Values,
    array,
    body_of,
    column,
    constant,
    kernel,
    memory,
    named,
    scalar,
    waits,
)
from fuscoc.codegen.places import (
    Field,
    Place,
    Stride,
    cast_fields,
    fields_of,
    partial_fields,
    target_fields,
)
from fuscoc.codegen.row_casts import load_scales, normalised, numbers_of, scaled
from fuscoc.codegen.row_values import Piece, access, converted, lanes_of, row_at, weighted
from fuscoc.codegen.tiles import Tile, cut_row, warps_for
from fuscoc.dialect.base import terminator
from fuscoc.dialect.dtypes import to_mlir
from fuscoc.dialect.expressions import expression, nodes
from fuscoc.dialect.l2 import ENDS
from fuscoc.dialect.l3 import ForChunks, ForEachDescriptor, ForTerms, Signal, Wait
from fuscoc.dialect.l3_values import (
    Accumulate,
    Aligned,
    DescField,
    Held,
    HeldType,
    Hold,
    LoadRow,
    LoadScalar,
    Merge,
    PeerBase,
    Replace,
    StoreRow,
    cast_to,
    vector_type,
)
from fuscoc.dialect.mlir import arith, ir
from fuscoc.dialect.relation import Inside, Point
from fuscoc.lang.reductions import REDUCTIONS


@dataclass(frozen=True)
class RowKernel:
    """What a step wants of its kernel.

    ``rows`` gives the dtypes of a reduction's source rows, accumulator and result, by field; it is
    empty where ``kind`` is ``copy``. ``weight`` is the dtype of the terms' weights, if there are
    any. ``moves`` says what kind of rows a copy moves, where fields are cast: see
    ``fuscoc.dialect.l2.MOVES``; ``partials`` the dtypes by field where it moves partial results.
    """

    name: str
    columns: tuple[str, ...]
    terms: tuple[str, ...] = ()
    rows: tuple[Mapping[str, Any], ...] = ()
    kind: str = "copy"
    weight: str | None = None
    signals: bool = False
    wait: tuple[int, ...] = ()
    moves: str | None = None
    partials: Mapping[str, str] | None = None

    @property
    def reduces(self) -> bool:
        """Whether an entry of the list has terms."""
        return "term_begin" in self.columns

    def end(self, side: str) -> str:
        """The column that places rows at the source (``src``) or destination (``dst``).

        Empty for the source of a reduction, whose terms place them.
        """
        return next((f"{side}_{end}" for end in ENDS if f"{side}_{end}" in self.columns), "")

    def fields(self, shuffle: Any) -> list[Field]:
        """The fields that the kernel reads, or makes from others."""
        ends = self.end("src"), self.end("dst")
        if self.moves == "cast":
            return cast_fields(shuffle, *ends)
        if self.moves == "target":
            return target_fields(shuffle)
        if self.partials is not None:
            return partial_fields(shuffle, self.partials)
        return fields_of(shuffle, self.rows, *ends)


def build_row_kernel(wanted: RowKernel, shuffle: Any) -> None:
    """Build the kernel at the insertion point."""
    fields = wanted.fields(shuffle)
    row_bytes = sum(field.num_elems * field.elem_bytes for field in fields)
    arguments = _arguments(wanted, fields)
    with kernel(wanted.name, arguments, warps_for(row_bytes)) as values:
        count = values["num_descriptors"]
        for slot in wanted.wait:
            waited = ("wait_base", "num_peers", f"expected_{slot}", "abort", "late")
            count = Wait.build(*(values[name] for name in waited), count, slot=slot).result
        loop = ForEachDescriptor.build(count)
        block = body_of(loop, "i")
        with ir.InsertionPoint(block):
            _Rows(wanted, values, block.arguments[0], _leaves_out(wanted, shuffle)).move(fields)
        if wanted.signals:
            Signal.build(*(values[argument.name] for argument in SIGNALS))


def _leaves_out(wanted: RowKernel, shuffle: Any) -> bool:
    """Whether a source without rows may have no place in the result: an input that is -1 drops its
    points, and would have said the place."""
    if not wanted.reduces or "dst_offset" not in wanted.columns:
        return False
    place = expression(terminator(shuffle, 1, Point).src_offset)
    return any(node.op == Inside.OPERATION_NAME for node in nodes(place))


def _arguments(wanted: RowKernel, fields: Iterable[Field]) -> list[Argument]:
    destination = array if "dst_peer" in wanted.columns else memory
    arguments = [scalar("num_descriptors"), *map(column, (*wanted.columns, *wanted.terms))]
    if wanted.weight is not None:
        arguments.append(array("weights", wanted.weight))
    for field in fields:
        arguments += [memory(f"{field.name}_src"), destination(f"{field.name}_dst")]
        if field.scales is not None:
            name, made = field.scales.name, field.scales.made
            arguments.append(destination(f"{name}_dst") if made else memory(f"{name}_src"))
        if field.channels is not None:
            arguments.append(array(numbers_of(field.name), "f32"))
    if wanted.signals:
        arguments += SIGNALS
    return list(dict.fromkeys([*arguments, *waits(wanted.wait)]))


class _Rows:
    """Builds the body for one descriptor."""

    def __init__(self, wanted: RowKernel, values: Values, index: Any, leaves_out: bool) -> None:
        self.wanted, self.leaves_out = wanted, leaves_out
        self.values = values
        self.entry = {}
        for name in wanted.columns:
            with named(_short(name)):
                self.entry[name] = DescField.build(values[name], index).result

    def end(self, side: str) -> Any:
        """Where this entry's rows are at the source (``src``) or destination (``dst``)."""
        return self.entry[self.wanted.end(side)]

    def move(self, fields: Sequence[Field]) -> None:
        """Move the segment: long fields chunk by chunk, then all that fits at once."""
        together: list[Piece] = []
        for field in fields:
            together_elems = field.scales.block if field.scales is not None else 1
            cut = cut_row(field.num_elems, field.elem_bytes, together_elems)
            if cut.num_chunks:
                loop = ForChunks.build(limit=cut.num_chunks * cut.chunk, step=cut.chunk)
                tile = Tile(0, cut.chunk, cut.chunk)
                block = body_of(loop, "start")
                with ir.InsertionPoint(block):
                    self.pieces([Piece(field, tile, block.arguments[0])])
            together += [Piece(field, tile, constant(tile.start)) for tile in cut.tiles]
        if together:
            self.pieces(together)

    def pieces(self, pieces: Sequence[Piece]) -> None:
        """Load everything, then store everything."""
        lanes = {}
        for piece in pieces:
            key = piece.tile.start, piece.tile.size
            if key not in lanes:
                lanes[key] = lanes_of(piece)
        at = [lanes[piece.tile.start, piece.tile.size] for piece in pieces]
        if self.wanted.reduces:
            rows = self.reduced(pieces, at)
        else:
            rows = self.loaded(pieces, at, self.end("src"), self.strides(pieces, "src"))
        scales = [load_scales(self, piece) for piece in pieces]
        strides = self.strides(pieces, "dst")
        to = {
            field: self.destination(field.name, field.dst, field.stored)
            for field in _fields(pieces)
        }
        if not self.leaves_out:
            self.stored(pieces, at, rows, scales, to, strides)
            return
        begin, end = (self.entry[f"term_{name}"] for name in ("begin", "end"))
        there = arith.cmpi(arith.CmpIPredicate.slt, begin, end)
        once = ForTerms.build(constant(0), arith.select(there, constant(1), constant(0)))
        with ir.InsertionPoint(body_of(once, "once")):
            self.stored(pieces, at, rows, scales, to, strides)

    def stored(
        self,
        pieces: Sequence[Piece],
        at: Sequence[Any],
        rows: Sequence[Any],
        scales: Sequence[Any],
        to: Mapping[Field, Any],
        strides: Mapping[Field, Sequence[Any]],
    ) -> None:
        """Store a row a piece."""
        for piece, lane, row, factors in zip(pieces, at, rows, scales, strict=True):
            field = piece.field
            if field.scales is not None:
                row = scaled(self, piece, row, factors)
            if field.factors or field.channels is not None:
                row = normalised(piece, row, lane, self.values)
            StoreRow.build(
                converted(row, field.stored),
                to[field],
                lane,
                strides[field],
                **access(piece.tile, field.dst),
            )

    def reduced(self, pieces: Sequence[Piece], at: Sequence[Any]) -> list[Any]:
        """The reduction of an entry's terms, a row a piece."""
        held = []
        for piece in pieces:
            with named(self.held_name(piece.field)):
                row_type = vector_type(piece.field.summed, piece.tile.size)
                held.append(Hold.build(HeldType.get(row_type)).result)
        loop = ForTerms.build(self.entry["term_begin"], self.entry["term_end"])
        block = body_of(loop, "term")
        with ir.InsertionPoint(block):
            (term,) = block.arguments
            rows = self.loaded(pieces, at, self.term_row(term), {})
            weight = self.weight(term)
            for total, row in zip(held, rows, strict=True):
                if not self.wanted.rows:
                    Replace.build(total, row)
                elif REDUCTIONS[self.wanted.kind].sums:
                    Accumulate.build(total, weighted(row, total.type.row, weight))
                else:
                    self.merge(total, row, term)
        return [Held.build(total, total.type.row).value for total in held]

    def held_name(self, field: Field) -> str:
        if not self.wanted.rows:
            return field.name
        return f"{field.name}_{self.wanted.kind}"

    def merge(self, total: Any, row: Any, term: Any) -> None:
        """The first term as it is: no value leaves all others as they are."""
        row = cast_to(row, total.type.row)
        before = Held.build(total, total.type.row).value
        merged = Merge.build(before, row, total.type.row, kind=self.wanted.kind).result
        with named("first"):
            first = arith.cmpi(arith.CmpIPredicate.eq, term, self.entry["term_begin"])
        Replace.build(total, arith.select(first, row, merged))

    def term_row(self, term: Any) -> Any:
        """The row of a term: in a column, or else the terms are the rows."""
        for name in self.wanted.terms:
            if name != "term_point":
                with named("src"):
                    return DescField.build(self.values[name], term).result
        return term

    def weight(self, term: Any) -> Any:
        if self.wanted.weight is None:
            return None
        with named("point"):
            point = DescField.build(self.values["term_point"], term).result
        with named("weight"):
            return LoadScalar.build(
                self.values["weights"], point, to_mlir(self.wanted.weight)
            ).result

    def loaded(
        self,
        pieces: Sequence[Piece],
        at: Sequence[Any],
        index: Any,
        strides: Mapping[Field, Sequence[Any]],
    ) -> list[Any]:
        rows = {}
        for field in _fields(pieces):
            with named(f"{field.name}_from"):
                base = self.values[f"{field.name}_src"]
                rows[field] = row_at(base, index, field.src, field.loaded)
        values = []
        for piece, lane in zip(pieces, at, strict=True):
            field = piece.field
            with named(field.name):
                load = LoadRow.build(
                    rows[field],
                    lane,
                    strides.get(field, ()),
                    vector_type(field.loaded, piece.tile.size),
                    **access(piece.tile, field.src),
                )
            values.append(load.result)
        return values

    def destination(self, name: str, place: Place, dtype: str) -> Any:
        base = self.values[f"{name}_dst"]
        if "dst_peer" in self.entry:
            with named(f"{name}_peer"):
                base = PeerBase.build(base, self.entry["dst_peer"]).result
        with named(f"{name}_to"):
            return row_at(base, self.end("dst"), place, dtype)

    def strides(self, pieces: Sequence[Piece], side: str) -> dict[Field, list[Any]]:
        """The strides of every field's runs, in its elements."""
        return {
            field: [self.stride(stride) for stride in field.place(side).strides]
            for field in _fields(pieces)
        }

    def stride(self, stride: int | Stride) -> Any:
        if isinstance(stride, int):
            return constant(stride)
        elems = self.entry[stride.column]
        if stride.times != 1:
            elems = arith.muli(elems, constant(stride.times))
        if stride.over != 1:
            elems = arith.divsi(elems, constant(stride.over))
        if stride.multiple != 1:
            elems = Aligned.build(elems, multiple=stride.multiple).result
        return elems


def _short(name: str) -> str:
    """A variable for a column's entry: src_offset -> src, dst_peer -> peer, term_begin -> begin."""
    side, _, rest = name.partition("_")
    return side if rest in ENDS else rest


def _fields(pieces: Iterable[Piece]) -> list[Field]:
    return list(dict.fromkeys(piece.field for piece in pieces))
