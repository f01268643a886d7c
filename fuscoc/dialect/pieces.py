"""Slots as pieces: boxes of points whose places are sums of strides."""

from fuscoc.dialect.attrs import VerifyError
from fuscoc.dialect.base import I64, Op
from fuscoc.dialect.mlir import ext


class Piece(Op, name="piece"):
    """Points of an entry of a ``fsc.node_pieces``: one for all numbers below ``counts``.

    The point of some numbers has its segment at ``src_offset`` and the sum of the numbers times
    ``src_steps``, in cells; so has it its rank and its slot, if those exist. ``src_strides`` are as
    in ``fsc.point``. One number at most moves the rank. A count below 1 is no point.

    ``"fsc.piece"(%first, %rank, %slot, %rows, %width, %c0, %slots) : ...``
    """

    src_offset: ext.Operand[I64]
    rank: ext.Operand[I64]
    place: ext.Operand[I64]
    counts: ext.Sequence[ext.Operand[I64]]
    src_steps: ext.Sequence[ext.Operand[I64]]
    rank_steps: ext.Sequence[ext.Operand[I64]]
    place_steps: ext.Sequence[ext.Operand[I64]]
    src_strides: ext.Sequence[ext.Operand[I64]]

    @classmethod
    def check(cls, op):
        if op.operation.parent.name != "fsc.node_pieces":
            raise VerifyError("must stand directly inside fsc.node_pieces")
        steps = op.src_steps, op.rank_steps, op.place_steps
        if any(len(each) != len(op.counts) for each in steps):
            raise VerifyError("needs a step of source, rank and slot for each of its counts")
