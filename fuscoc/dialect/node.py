"""Kernels of fixed capacity inside one node.

``fsc.node`` stands beside the paths. It does inside one node what their steps do, but in a few
kernels that plan by themselves.
"""

from fuscoc.dialect.attrs import Array, Text, VerifyError, attributes
from fuscoc.dialect.base import Op, entry_block, ops_of
from fuscoc.dialect.fused import (
    NodeAssign,
    NodeCopy,
    NodeCount,
    NodeExchange,
    NodeExpand,
    NodeGiven,
    NodeJoin,
    NodeOp,
    NodePieces,
    NodePoints,
    NodeReduce,
    NodeSignal,
    NodeWait,
)
from fuscoc.dialect.l0 import PRINTERS
from fuscoc.dialect.l2 import Reduce
from fuscoc.dialect.mlir import ext, ir
from fuscoc.dialect.node_tiles import CudaTile, TritonTile
from fuscoc.dialect.path import Path
from fuscoc.dialect.piece_tiles import CudaPieceTile, TritonPieceTile


class Node(Op, name="node", traits=[ir.NoTerminatorTrait]):
    """A dispatch inside one node and, where it comes back, its way back.

    It holds what its kernels do, in order (``fuscoc.dialect.fused``), and the sizes that they are
    made with; where slots follow from pieces, Triton's have both tiles, as rows cross nodes.
    ``printers`` says which kinds of kernels there are, until choose-tiles has done so.

    ::

        "fsc.node"() ({
          %points = "fsc.node_points"() ({...}, {...}) {...} : () -> !fsc.points
          ...
          "fsc.cuda_tile"() {...} : () -> ()
          "fsc.triton_tile"() {...} : () -> ()
        }) : () -> ()
    """

    attrs = attributes(printers=Array(Text(*PRINTERS), distinct=True, optional=True))
    body: ext.Region

    @classmethod
    def check(cls, op):
        if len(ops_of(op.operation.parent, Node)) > 1:
            raise VerifyError("must be the only one of its module")

    @classmethod
    def check_regions(cls, op):
        entry_block(op, 0)
        steps = tuple(type(step) for step in ops_of(op, NodeOp))
        if steps not in STEPS:
            names = ", ".join(step.OPERATION_NAME for step in steps)
            raise VerifyError(f"does not know what to do with: {names}")
        _check_flags(op)
        _check_back(op)
        archs = [tile.read("arch") for tile in ops_of(op, CudaTile, CudaPieceTile)]
        others = ops_of(op, TritonTile, TritonPieceTile)
        several = len({type(tile) for tile in others}) != len(others)
        if len(set(archs)) != len(archs) or several:
            raise VerifyError("must not have two tiles for the same kernels")
        has_pieces = bool(ops_of(op, NodePieces))
        if has_pieces and (ops_of(op, CudaTile) or len(others) == 1):
            raise VerifyError("needs tiles of pieces where slots follow from these")
        if ("printers" in op.attributes) == bool(archs or others):
            raise VerifyError("needs the attribute 'printers' exactly until tiles are chosen")


COUNTED = (NodePoints, NodeCount, NodeExchange, NodeAssign)
GIVEN = (NodePoints, NodeExchange, NodeGiven)
PIECES = (NodePoints, NodeExchange, NodePieces)
COPIED = (NodeCopy, NodeSignal, NodeWait)
BACK = (NodeReduce, NodeSignal, NodeWait, NodeJoin)
STEPS = {
    (*slots, *copied, *back)
    for slots in (COUNTED, GIVEN, PIECES)
    for copied in (COPIED, (*COPIED, NodeExpand))
    for back in ((), BACK)
}
"""What kernels do, in order."""


def _check_flags(op):
    """Slots that refer to rows need no rows of their own: there is nothing to wait for but the end
    of all copies. The way back goes by groups."""
    assigns = ops_of(op, NodeAssign)
    compact = bool(assigns) and assigns[0].read("compact")
    if compact == bool(ops_of(op, NodeExpand)):
        raise VerifyError("needs fsc.node_expand exactly where slots have rows of their own")
    forth, *back = (signal.read("per") for signal in ops_of(op, NodeSignal))
    if forth != ("rank" if compact else "group") or "rank" in back:
        raise VerifyError("must tell of groups, but once for a rank where rows are compact")


def _check_back(op):
    """Rows come back where the path for combine brings them back, and become one as there."""
    paths = ops_of(op.operation.parent, Path)
    back = [path for path in paths if path.read("direction") == "combine"]
    reduces = ops_of(op, NodeReduce)
    if len(reduces) != len(back):
        raise VerifyError("needs a way back exactly where there is a fsc.path for combine")
    for reduce, path in zip(reduces, back, strict=True):
        first = [each for each in ops_of(path, Reduce) if each.reads == "rows"]
        way = reduce.kind, reduce.read("weight")
        if any((each.read("kind"), each.read("weight")) != way for each in first):
            raise VerifyError("must make rows one as the fsc.path for combine does")
