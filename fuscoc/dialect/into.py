"""Memory of the caller's that rows go into, on every rank by itself."""

from math import prod

from fuscoc.dialect.attrs import Ref, Text, VerifyError, attributes
from fuscoc.dialect.base import Op, ops_of, terminator
from fuscoc.dialect.expressions import Node, expression
from fuscoc.dialect.l0 import FIELDS, RELATION, check_no_regions, check_relation, shuffle_of
from fuscoc.dialect.mlir import ext, ir
from fuscoc.dialect.relation import Domain, Relate


class Into(Op, name="into", traits=[ir.IsIsolatedFromAboveTrait]):
    """Where the parts of rows go in the tensors that a call is given as ``argument``.

    A point of the domain is a part of a row, with the fields ``parts``; points are in the order of
    memory, by slot first. The relation has its place among as many parts of the tensors, on the
    same rank. Parts are copied there, or added in that order to what is there,
    as ``kind`` says. ``kernel`` is the relation as a kernel, which specialise-kernels puts in the
    place of the regions.

    ::

        "fsc.into"() ({
        ^bb0(%s: i64):
          ...
          "fsc.domain"(%slots, %layers) : (i64, i64) -> ()
        }, {
        ^bb0(%s: i64, %l: i64):
          ...
          "fsc.relate"(%rank, %page, %s, %l, %layers) {lengths = [1, 1]} : (...) -> ()
        }) {argument = "cache", fanout = 1 : i64, indices = ["s", "l"],
            kind = "copy", num_source_dims = 2 : i64,
            parts = [{name = "x", type = tensor<16x2x8x128xbf16>}], ragged = 0 : i64} : () -> ()
    """

    attrs = attributes(
        argument=Text(),
        parts=FIELDS,
        kind=Text("copy", "sum"),
        **RELATION,
        kernel=Ref("kernel", optional=True),
    )
    domain: ext.Region
    relation: ext.Region

    @classmethod
    def check(cls, op):
        if len(ops_of(op.operation.parent, Into)) > 1:
            raise VerifyError("must be the only one of its module")
        is_alone = op.read("num_source_dims") == len(op.read("indices")) and op.read("fanout") == 1
        if op.read("ragged") or not is_alone:
            raise VerifyError("needs a place for each part of rows that are all alike")
        shuffle = shuffle_of(op)
        if ("kernel" in op.attributes) != ("relation_kernel" in shuffle.attributes):
            raise VerifyError("needs a kernel exactly where the relation of its shuffle has one")
        rows = shuffle.follow("segment").read("fields")
        parts = {each["name"]: each["type"] for each in op.read("parts")}
        if [(each["name"], each["type"][0]) for each in rows] != [
            (name, dtype) for name, (dtype, _) in parts.items()
        ]:
            raise VerifyError("needs parts of the fields that arrive")
        numbers = {divmod(prod(r["type"][1]), prod(parts[r["name"]][1])) for r in rows}
        if len(numbers) != 1 or numbers.pop()[1]:
            raise VerifyError("must cut all fields of a row into as many parts")

    @classmethod
    def check_regions(cls, op):
        if "kernel" in op.attributes:
            check_no_regions(op)
            return
        check_relation(op)
        relate, (_, *inner) = terminator(op, 1, Relate), terminator(op, 0, Domain).extents
        if set(relate.read("lengths")) != {1}:
            raise VerifyError("needs parts that are the cells of its relation")
        count = len(op.read("indices"))
        wanted = [Node("argument", str(number), ()) for number in range(count)]
        wanted += map(expression, inner)
        if [expression(each) for each in (*relate.starts, *relate.dims)] != wanted:
            raise VerifyError("needs parts in the order of its indices")
