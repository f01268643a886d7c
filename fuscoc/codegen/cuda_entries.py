"""Entries of pieces that are so short and so alike that CUDA kernels keep no box for any; and short
rows that the relation gives slots one by one, which are such entries, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from fuscoc.codegen.cuda_tiles import LINE_BYTES, LINES_IN_FLIGHT, WARP
from fuscoc.codegen.cuda_types import CudaShuffle, row_bytes, unit_bytes
from fuscoc.dialect.affine import NotAffine, Relation
from fuscoc.dialect.base import ops_of, terminator
from fuscoc.dialect.expressions import Node, expression
from fuscoc.dialect.fused import NodePieces, NodePoints
from fuscoc.dialect.mlir import arith, ir
from fuscoc.dialect.pieces import Piece
from fuscoc.dialect.polynomials import Polynomial
from fuscoc.dialect.relation import Domain

BOX_BYTES = 16384  # entries from so many bytes on are worth a box each
ROW_BYTES = 1024  # rows up to so many bytes are better moved by many at once
GROUP_BYTES, MOST_OF_GROUP = 16384, 32  # that a warp takes at once, a lane an entry
FULL_GROUP_BYTES = 4096  # where each of them goes to all ranks, and sums wait for all


@dataclass(frozen=True)
class AlikeEntries:
    """Loops of one piece, which all entries have: counts, and steps in source cells and slots. In
    the source entries lie one behind the other, each in one part."""

    counts: tuple[int, ...]
    src_steps: tuple[int, ...]
    slot_steps: tuple[int, ...]

    @property
    def is_row(self) -> bool:
        return not self.counts

    @property
    def points(self) -> int:
        return prod(self.counts)

    @property
    def slots_together(self) -> int:
        """Slots of an entry that are one range, after which the next one of a chain goes on."""
        together = 1
        for step, count in sorted(zip(self.slot_steps, self.counts, strict=True)):
            if step == together:
                together *= count
        return together


def alike_entries(node: Any, shuffle: CudaShuffle) -> AlikeEntries | None:
    """What is the same of all short entries of a ``fsc.node``; None if kernels need boxes."""
    if not ops_of(node, NodePieces):
        return _rows(shuffle)
    (op,), (points,) = ops_of(node, NodePieces), ops_of(node, NodePoints)
    pieces = [each for each in op.entry.blocks[0] if isinstance(each, Piece)]
    outer = op.read("outer")
    if not outer or shuffle.ragged or shuffle.fanout > 1 or len(pieces) > 1:
        return None
    if len(shuffle.leaving) > 1 or shuffle.leaving[0].loops:
        return None
    (piece,), row = pieces, row_bytes(shuffle.leaving[0])
    numbers = [
        [number(value) for value in values]
        for values in (piece.counts, piece.src_steps, piece.place_steps, piece.rank_steps)
    ]
    known = [tuple(each for each in values if each is not None) for values in numbers]
    if any(len(each) != len(piece.counts) for each in known) or any(known[3]):
        return None
    found = AlikeEntries(*known[:3])
    if any(count < 1 for count in found.counts) or found.points * row >= BOX_BYTES:
        return None
    cells = shuffle.leaving[0].elems // shuffle.leaving[0].cell_elems
    extents = [expression(terminator(points, 0, Domain).extents[index]) for index in outer]
    length = _length(found, cells)
    return found if length and _in_order(expression(piece.src_offset), extents, length) else None


def _rows(shuffle: CudaShuffle) -> AlikeEntries | None:
    """Rows of whole words, one behind the other in the source, which arrive and come back so, or as
    sums of what every rank has."""
    if not shuffle.given_slots or not shuffle.in_order or shuffle.source_fields:
        return None
    if shuffle.ragged or shuffle.fanout > 1 or shuffle.weighted or len(shuffle.fields) > 1:
        return None
    (field,) = shuffle.fields
    long = row_bytes(field) > ROW_BYTES and not shuffle.every_rank
    if shuffle.combine not in (None, "sum" if shuffle.every_rank else "copy") or long:
        return None
    return AlikeEntries((), (), ()) if unit_bytes(field) == LINE_BYTES else None


def _length(entries: AlikeEntries, cells: int) -> int | None:
    """Cells of an entry, if it has all from its first to its last one once."""
    for step, count in sorted(zip(entries.src_steps, entries.counts, strict=True)):
        if step != cells and count > 1:
            return None
        cells *= count
    return cells


def _in_order(first: Any, extents: Sequence[Any], length: int) -> bool:
    """Whether an entry begins where the one before it ends."""
    try:
        relation = Relation([], frozenset(range(len(extents))))
        number = Polynomial(())
        for at, extent in enumerate(extents):
            number = number * relation.polynomial(extent, {})
            number += relation.polynomial(Node("argument", str(at), ()), {})
        return relation.polynomial(first, {}) == number * length
    except NotAffine:
        return False


def entry_group(entries: AlikeEntries, shuffle: CudaShuffle) -> int:
    """Entries that a warp takes at once, a power of two: of rows of whole words so many that each
    lane has words of several in flight."""
    entry_bytes = entries.points * row_bytes(shuffle.leaving[0])
    words = entry_bytes // LINE_BYTES
    has_whole_words = unit_bytes(shuffle.leaving[0]) == LINE_BYTES
    if entries.is_row and has_whole_words and words <= LINES_IN_FLIGHT:
        return WARP << (LINES_IN_FLIGHT // words).bit_length() - 1
    most_bytes = FULL_GROUP_BYTES if shuffle.everywhere else GROUP_BYTES
    fitting = max(1, most_bytes // entry_bytes)
    return min(MOST_OF_GROUP, 1 << fitting.bit_length() - 1)


def number(value: Any) -> int | None:
    """That of a constant."""
    owner = getattr(value.owner, "opview", None)
    return ir.IntegerAttr(owner.value).value if isinstance(owner, arith.ConstantOp) else None
