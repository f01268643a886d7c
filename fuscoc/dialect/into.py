"""Memory of the caller's that rows go into, on every rank by itself."""

from fuscoc.dialect.attrs import Ref, Text, VerifyError, attributes
from fuscoc.dialect.base import Op, ops_of, terminator
from fuscoc.dialect.l0 import FIELDS, RELATION, check_relation
from fuscoc.dialect.mlir import ext, ir
from fuscoc.dialect.relation import Relate


class Into(Op, name="into", traits=[ir.IsIsolatedFromAboveTrait]):
    """Where the parts of rows go in the tensors that a call is given as ``argument``.

    A point of the domain is a part of a row, with ``fields``; points are in the order of memory, by
    slot first. The relation has its place among as many parts of the tensors, on the same rank.
    ``kernel`` is the relation as a kernel, which specialise-kernels adds.

    ::

        "fsc.into"() ({
        ^bb0(%s: i64):
          ...
          "fsc.domain"(%cells, %slots, %layers) : (i64, i64, i64) -> ()
        }, {
        ^bb0(%s: i64, %l: i64):
          ...
          "fsc.relate"(%rank, %page, %s, %l, %slots, %layers) {lengths = [1, 1]} : (...) -> ()
        }) {argument = "cache", fanout = 1 : i64, fields = [{name = "x", type =
            tensor<16x2x8x128xbf16>}], indices = ["s", "l"], num_source_dims = 2 : i64,
            ragged = 0 : i64} : () -> ()
    """

    attrs = attributes(
        argument=Text(),
        fields=FIELDS,
        **RELATION,
        kernel=Ref("kernel", optional=True),
    )
    domain: ext.Region
    relation: ext.Region

    @classmethod
    def check(cls, op):
        if len(ops_of(op.operation.parent, Into)) > 1:
            raise VerifyError("must be the only one of its module")
        if op.read("ragged") or op.read("num_source_dims") != len(op.read("indices")):
            raise VerifyError("needs a place for each part of rows that are all alike")

    @classmethod
    def check_regions(cls, op):
        check_relation(op)
        terminator(op, 1, Relate)
