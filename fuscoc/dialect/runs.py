"""Copy shapes: how the bytes of one segment lie in its source, field by field.

A segment row (a target slot, a slice row, a staging row) is contiguous. In the source the same
elements, in the same order, are ``run_dims`` nested loops, outermost first, around contiguous runs
of ``run_elems``. ``coalesce-segments`` computes them; kernels and the manifest repeat them.
"""

from fuscoc.dialect.attrs import Array, Attr, Integer, Record, Text, VerifyError
from fuscoc.dialect.dtypes import DType
from fuscoc.dialect.mlir import ir

UNITS = {16: "i64", 8: "i64", 4: "i32", 2: "i16", 1: "i8"}


class Stride(Attr):
    """A constant number of cells, or the name of the descriptor column that holds it."""

    _constant = Integer(0)
    _column = Text()

    def encode(self, value):
        return self._spec(isinstance(value, str)).encode(value)

    def decode(self, attr):
        return self._spec(isinstance(attr, ir.StringAttr)).decode(attr)

    def check(self, op, attr):
        self._spec(isinstance(attr, ir.StringAttr)).check(op, attr)
        if isinstance(attr, ir.StringAttr) and not attr.value.startswith("src_stride"):
            raise VerifyError(f"must be a number of cells or a src_stride column, not {attr}")

    def _spec(self, is_column):
        return self._column if is_column else self._constant


class Unit(Integer):
    """Bytes that one aligned access may move: 16, 8, 4, 2 or 1."""

    def check(self, op, attr):
        super().check(op, attr)
        if attr.value not in UNITS:
            raise VerifyError(f"must be 16, 8, 4, 2 or 1, not {attr.value}")


# One field of a segment. Lengths and dst_stride count elements, src_stride counts cells.
RUNS = Record(
    {
        "name": Text(),
        "dtype": DType(),
        "cell_elems": Integer(1),
        "seg_elems": Integer(1),
        "run_elems": Integer(1),
        "run_dims": Array(
            Record({"count": Integer(2), "src_stride": Stride(), "dst_stride": Integer(1)}),
            optional=True,
        ),
        "unit_bytes": Unit(1),
        "copy_dtype": DType(frozenset(UNITS.values())),
    }
)
