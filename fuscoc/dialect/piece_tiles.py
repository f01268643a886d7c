"""The sizes of kernels that move pieces, which choose-tiles puts into ``fsc.node``.

Those of others, and what they have in common, stand in ``node_tiles.py``.
"""

from itertools import product

from fuscoc.codegen.cuda_tiles import (
    CARRIED,
    CARRIED_BUFFER,
    CARRIERS,
    LINE_BYTES,
    PIECE_STATIC_SHARED,
    TARGETS,
    TILE_BUFFERS,
    TURN_HELPERS,
    TURN_STATIC_SHARED,
)
from fuscoc.dialect.attrs import Array, Integer, Record, Text, VerifyError, attributes
from fuscoc.dialect.base import Op, ops_of
from fuscoc.dialect.fused import NodeGiven, NodePieces
from fuscoc.dialect.node_tiles import (
    BUFFER_ALIGN,
    MAX_WARPS,
    check_fields,
    check_power,
    check_words,
    row_fields,
    rows_beside,
)
from fuscoc.dialect.runs import Unit


class CudaPieceTile(Op, name="cuda_piece_tile"):
    """CUDA kernels that move pieces, for GPUs from ``arch`` on: CTAs of ``dispatch_warps`` and of
    ``combine_warps`` warps, which read fields in ``words``. Where these are narrow, a CTA has
    buffers of ``tile_bytes`` in shared memory, in which all warps but a few turn tiles; long runs
    are carried by way of ``carried_bytes`` there, or by a few CTAs of ``few_bytes``, beside warps
    that copy. Of short entries that are alike, or rows that are
    given slots, a warp takes ``entry_group`` at once.

    ``"fsc.cuda_piece_tile"() {arch = "sm_80", combine_warps = 24 : i64, dispatch_warps = 28 : i64,
    words = [{field = "x", word_bytes = 16 : i64}]} : () -> ()``
    """

    attrs = attributes(
        arch=Text(*(target.arch for target in TARGETS)),
        dispatch_warps=Integer(1),
        combine_warps=Integer(1),
        tile_bytes=Integer(BUFFER_ALIGN, optional=True),
        carried_bytes=Integer(CARRIED * CARRIED_BUFFER, optional=True),
        few_bytes=Integer(CARRIED * CARRIED_BUFFER, optional=True),
        entry_group=Integer(1, optional=True),
        words=Array(Record({"field": Text(), "word_bytes": Unit(1)})),
    )

    @classmethod
    def check(cls, op):
        loads, _ = rows_beside(op)
        group = op.read("entry_group")
        if not ops_of(op.operation.parent, NodePieces, *([NodeGiven] if group else [])):
            raise VerifyError("must stand beside a fsc.node_pieces")
        warps = max(op.read("dispatch_warps"), op.read("combine_warps"))
        if warps > MAX_WARPS:
            raise VerifyError(f"must not put more than {MAX_WARPS} warps into a CTA")
        check_fields(op.read("words"), "words", row_fields(loads))
        check_words(op.read("words"), "word_bytes", loads)
        narrow = any(each["word_bytes"] < LINE_BYTES for each in op.read("words"))
        narrow &= group is None
        tile_bytes = op.read("tile_bytes")
        if narrow != (tile_bytes is not None):
            raise VerifyError("needs 'tile_bytes' exactly where words of boxes are narrow")
        if tile_bytes is not None:
            if tile_bytes % BUFFER_ALIGN:
                raise VerifyError(f"needs tiles of a multiple of {BUFFER_ALIGN} bytes")
            if any(op.read(leg) <= helpers for leg, helpers in TURN_HELPERS.items()):
                raise VerifyError(f"needs warps that turn tiles, beside {TURN_HELPERS}")
        (target,) = (each for each in TARGETS if each.arch == op.read("arch"))
        carried = [op.read(name) or 0 for name in ("carried_bytes", "few_bytes")]
        if any(carried):
            if tile_bytes is not None or group is not None:
                raise VerifyError("must not carry runs beside 'tile_bytes' or an 'entry_group'")
            if any(nbytes % (CARRIED * CARRIED_BUFFER) for nbytes in carried):
                raise VerifyError(f"needs {CARRIED} buffers of {CARRIED_BUFFER} bytes a warp")
            carriers = carried[0] // (CARRIED * CARRIED_BUFFER)
            beside = ("dispatch_warps", carriers), ("combine_warps", min(carriers, CARRIERS))
            if any(op.read(leg) <= warps for leg, warps in beside):
                raise VerifyError(f"needs a warp beside the {carriers} that carry")
        tiles = TILE_BUFFERS * (tile_bytes or 0)
        needed = tiles + max(carried)
        needed += TURN_STATIC_SHARED if tiles else PIECE_STATIC_SHARED
        if needed > target.shared_bytes:
            room = target.shared_bytes
            raise VerifyError(f"needs {needed} bytes of shared memory, and has {room}")


class TritonPieceTile(Op, name="triton_piece_tile"):
    """Triton kernels that move pieces: programs of ``plan_warps`` warps plan, and programs of
    ``copy_warps`` copy items of ``item_lines`` lines of 16 bytes, ``lines`` of a field at once,
    which they read in words of ``word_bytes``. Of short entries that are alike a program that plans
    takes ``chained`` at once. With ``holding_warps`` programs of dispatch have these, and may hold
    an item before they know whether it is to be stored: words of one field, which are lines, where
    nothing is looked up. Programs of few SMs copy ``few_lines`` at once.

    ``"fsc.triton_piece_tile"() {copy_warps = 4 : i64, fields = [{few_lines = 1024 : i64, field =
    "x", lines = 1024 : i64, word_bytes = 16 : i64}], holding_warps = 8 : i64, item_lines = 1024 :
    i64, plan_warps = 1 : i64} : () -> ()``
    """

    attrs = attributes(
        plan_warps=Integer(1),
        copy_warps=Integer(1),
        holding_warps=Integer(1, optional=True),
        item_lines=Integer(1),
        chained=Integer(1, optional=True),
        fields=Array(
            Record(
                {
                    "field": Text(),
                    "word_bytes": Unit(1),
                    "lines": Integer(1),
                    "few_lines": Integer(1),
                }
            )
        ),
    )

    @classmethod
    def check(cls, op):
        loads, _ = rows_beside(op)
        pieces = ops_of(op.operation.parent, NodePieces)
        if not pieces:
            raise VerifyError("must stand beside a fsc.node_pieces")
        warps = {name: op.read(name) or 1 for name in ("plan_warps", "copy_warps", "holding_warps")}
        for name, each in warps.items():
            check_power(each, f"'{name}'")
        check_power(op.read("chained") or 1, "'chained'")
        if max(warps.values()) > MAX_WARPS:
            raise VerifyError(f"must not put more than {MAX_WARPS} warps into a program")
        check_fields(op.read("fields"), "fields", row_fields(loads))
        check_words(op.read("fields"), "word_bytes", loads)
        words = [each["word_bytes"] for each in op.read("fields")]
        if op.read("holding_warps"):
            if words != [LINE_BYTES] or pieces[0].looks_up():
                raise VerifyError("must not hold looked-up items, or words that are no lines")
            check_power(op.read("item_lines"), "'item_lines' of items that are held")
        for each, name in product(op.read("fields"), ("lines", "few_lines")):
            check_power(each[name], f"'{name}' of '{each['field']}'")
            if op.read("item_lines") % each[name]:
                raise VerifyError(f"needs items of as many lines as '{name}' of '{each['field']}'")
