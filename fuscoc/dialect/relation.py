"""What stands inside the regions of a relation, beside ``arith``: leaves and terminators."""

from math import gcd
from typing import Any

from fuscoc.dialect.attrs import Array, Integer, Ref, VerifyError, attributes
from fuscoc.dialect.base import I64, Op, check_role, terminator
from fuscoc.dialect.expressions import Divisors, expression
from fuscoc.dialect.mlir import ext, ir
from fuscoc.lang.dtypes import INTEGERS


class Domain(Op, name="domain", traits=[ir.IsTerminatorTrait]):
    """End of a domain region: every index's extent. In a ragged shuffle ``cells`` has one value,
    the cells of an outer source entry.

    ``"fsc.domain"(%tokens, %topk) : (i64, i64) -> ()``
    """

    cells: ext.Sequence[ext.Operand[I64]]
    extents: ext.Sequence[ext.Operand[I64]]

    @classmethod
    def check(cls, op):
        _check_inside_shuffle(op)


class Relate(Op, name="relate", traits=[ir.IsTerminatorTrait]):
    """End of a relation region: a block of source cells goes to a place on a rank.

    The block begins at ``starts`` and has ``lengths`` cells in each dimension of the source;
    ``dims`` are the extents of all but the outermost one, which no address depends on. ``place`` is
    the key of a packed target, the slot of a dense one. A rank or key of -1 drops the point. A
    segment has the block's cells row-major; with an ``order``, in that of loops over these
    dimensions, outermost first, all those of several cells.

    ``"fsc.relate"(%rank, %key, %t) {lengths = [1 : i64]} : (i64, i64, i64) -> ()``
    """

    attrs = attributes(lengths=Array(Integer(1)), order=Array(Integer(0), optional=True))
    rank: ext.Operand[I64]
    place: ext.Operand[I64]
    starts: ext.Sequence[ext.Operand[I64]]
    dims: ext.Sequence[ext.Operand[I64]]

    @classmethod
    def check(cls, op):
        _check_inside_shuffle(op)
        num = len(op.read("lengths"))
        if len(op.starts) != num or len(op.dims) != num - 1:
            raise VerifyError(f"needs {num} starts, one for each of its lengths, and a dim less")
        order = op.read("order") or ()
        several = [dim for dim, length in enumerate(op.read("lengths")) if length > 1]
        if order and (sorted(order) != several or list(order) == several):
            raise VerifyError("needs an order of its dimensions of several cells, and another one")


class Point(Op, name="point", traits=[ir.IsTerminatorTrait]):
    """End of a relation region after coalesce-segments: an address goes to a place on a rank.

    ``src_offset`` is the first cell of the segment on the source rank; ``src_strides`` are the
    run-time strides, in cells, that the shuffle's ``runs`` call src_stride0, src_stride1, ...

    ``"fsc.point"(%src_offset, %rank, %slot, %width) : (i64, i64, i64, i64) -> ()``
    """

    src_offset: ext.Operand[I64]
    rank: ext.Operand[I64]
    place: ext.Operand[I64]
    src_strides: ext.Sequence[ext.Operand[I64]]

    @classmethod
    def check(cls, op):
        _check_inside_shuffle(op)


def must_be_apart(point: Any) -> bool:
    """Whether a run checks that the segments of a relation, which ends in ``point``, are."""
    return any(isinstance(op, Apart) for op in point.operation.block)


def segment_divisor(relation: Any) -> int:
    """Cells that divide where every segment begins in the source, and strides that only a call
    knows; 0 if all begin there."""
    domain, point = terminator(relation, 0, Domain), terminator(relation, 1, Point)
    divisors = Divisors(tuple(map(expression, domain.extents)), *map(expression, domain.cells))
    ends = point.src_offset, *point.src_strides
    return gcd(*(divisors.of(expression(value)) for value in ends))


def _check_inside_shuffle(op, *more):
    parents = ("fsc.shuffle", "fsc.into", "fsc.node_points", *more)
    if op.operation.parent.name not in parents:
        raise VerifyError(f"must stand inside {', '.join(parents[:-1])} or {parents[-1]}")


def _check_of_relation(op):
    """Whoever reads a domain region asks for nothing but its extents."""
    if any(isinstance(each, Domain) for each in op.operation.block):
        raise VerifyError("must stand in the region of a relation, not in that of its domain")


class Extent(Op, name="extent", traits=[ext.Pure]):
    """The value of a run-time extent on the executing rank.

    ``%tokens = "fsc.extent"() {extent = @spec.tokens} : () -> i64``
    """

    attrs = attributes(extent=Ref("def_extent"))
    result: ext.Result[I64] = ext.infer_result()


class Lookup(Op, name="lookup", traits=[ext.Pure]):
    """The element of an input at a row-major linear offset, widened to i64.

    ``%expert = "fsc.lookup"(%offset) {input = @spec.topk_idx} : (i64) -> i64``
    """

    attrs = attributes(input=Ref("def_input"))
    offset: ext.Operand[I64]
    result: ext.Result[I64] = ext.infer_result()

    @classmethod
    def check(cls, op):
        dtype, _ = op.follow("input").read("type")
        if dtype not in INTEGERS:
            raise VerifyError(f"must read integers, not {dtype}")
        check_role(op, "input", "route", "extent", "into")


class Owner(Op, name="owner", traits=[ext.Pure]):
    """The rank that owns a key; -1 for the key -1.

    ``%rank = "fsc.owner"(%key) {placement = @spec.place} : (i64) -> i64``
    """

    attrs = attributes(placement=Ref("def_placement"))
    key: ext.Operand[I64]
    result: ext.Result[I64] = ext.infer_result()


class ExactDiv(Op, name="exact_div", traits=[ext.Pure]):
    """Quotient of a division that must leave no remainder: one is a run-time error of the input.

    ``%rows = "fsc.exact_div"(%height, %c14) : (i64, i64) -> i64``
    """

    lhs: ext.Operand[I64]
    rhs: ext.Operand[I64]
    result: ext.Result[I64] = ext.infer_result()


class Inside(Op, name="inside", traits=[ext.Pure]):
    """A value of an input that is at least 0 and below a limit: -1 drops the point, and any other
    is a run-time error of the input.

    ``%page = "fsc.inside"(%from, %pages) : (i64, i64) -> i64``
    """

    value: ext.Operand[I64]
    limit: ext.Operand[I64]
    result: ext.Result[I64] = ext.infer_result()


class Drop(Op, name="drop"):
    """The point is dropped where a value that was looked up in a route is -1.

    It stands in a relation region, or in that of a ``fsc.node_pieces``, for every value of a route
    that the point depends on: what is computed of a -1 is of no account. A value counts only if the
    places that it was looked up by exist, as ``fsc.inside`` says. A point that is dropped is no
    error, whatever else it looks up.

    ``"fsc.drop"(%id) : (i64) -> ()``
    """

    value: ext.Operand[I64]

    @classmethod
    def check(cls, op):
        _check_inside_shuffle(op, "fsc.node_pieces")
        _check_of_relation(op)


class Apart(Op, name="apart"):
    """No two segments of a rank may begin with the same source cell, which inputs decide.

    It stands in the relation region of a shuffle that goes back, and then in the kernel of that
    relation, where segments that share a cell begin with the same one: a run sees by the first
    cells of those that move whether any do.

    ``"fsc.apart"() : () -> ()``
    """

    @classmethod
    def check(cls, op):
        parents = ("fsc.shuffle", "fsc.node_points", "fsc.kernel")
        if op.operation.parent.name not in parents:
            raise VerifyError(f"must stand inside {', '.join(parents[:-1])} or {parents[-1]}")
        _check_of_relation(op)


class CellBase(Op, name="cell_base", traits=[ext.Pure]):
    """The first source cell of an outer entry of a ragged shuffle: the cells of those before it.

    ``%base = "fsc.cell_base"(%n) : (i64) -> i64``
    """

    outer: ext.Operand[I64]
    result: ext.Result[I64] = ext.infer_result()
