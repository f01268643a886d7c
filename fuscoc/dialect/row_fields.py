"""Fields of a row, as the region of a ``fsc.node_copy`` makes them: read, cast, and stored."""

from typing import Any

from fuscoc.dialect.attrs import Integer, Text, VerifyError, attributes
from fuscoc.dialect.base import Op
from fuscoc.dialect.dtypes import DType
from fuscoc.dialect.l3_values import vector_of
from fuscoc.dialect.mlir import ext
from fuscoc.dialect.runs import RUNS


def check_inside(op: Any, parent: str) -> None:
    """Raise VerifyError unless an operation stands directly inside one of that name."""
    if op.operation.parent.name != parent:
        raise VerifyError(f"must stand directly inside {parent}")


class LoadField(Op, name="load_field", traits=[ext.Pure]):
    """A field of a segment, from where it lies in the source: its attributes are those of ``RUNS``.

    ``%x = "fsc.load_field"() {cell_elems = 7168 : i64, copy_dtype = i64, dtype = bf16, field =
    "x", run_elems = 7168 : i64, seg_elems = 7168 : i64, unit_bytes = 16 : i64} : () ->
    vector<7168xbf16>``
    """

    attrs = attributes(
        field=RUNS.fields["name"], **{n: kind for n, kind in RUNS.fields.items() if n != "name"}
    )
    value: ext.Result[Any]

    @property
    def runs(self):
        """How the field lies in the source, as the runs of a shuffle say it."""
        return {"name" if name == "field" else name: self.read(name) for name in self.attrs}

    @classmethod
    def check(cls, op):
        check_inside(op, "fsc.node_copy")
        if vector_of(op.value) != (op.read("dtype"), op.read("seg_elems")):
            raise VerifyError(f"must give what its runs hold, not {op.value.type}")


class Quantise(Op, name="quantise", traits=[ext.Pure]):
    """Floats as 8-bit ones of ``dtype``, and an f32 factor for every ``block`` of them.

    ``%small, %scales = "fsc.quantise"(%x) {block = 128 : i64, dtype = f8E4M3FN} :
    (vector<7168xbf16>) -> (vector<7168xf8E4M3FN>, vector<56xf32>)``
    """

    attrs = attributes(block=Integer(1), dtype=DType())
    value: ext.Operand[Any]
    small: ext.Result[Any]
    scales: ext.Result[Any]

    @classmethod
    def check(cls, op):
        check_inside(op, "fsc.node_copy")
        _, size = vector_of(op.value)
        made = (op.read("dtype"), size), ("f32", size // op.read("block"))
        if (vector_of(op.small), vector_of(op.scales)) != made:
            raise VerifyError("needs as many values, and one f32 for every block of them")


class Dequantise(Op, name="dequantise", traits=[ext.Pure]):
    """8-bit floats, each times the f32 factor of its block, as wider ones.

    ``%x = "fsc.dequantise"(%small, %scales) {block = 128 : i64} : (vector<7168xf8E4M3FN>,
    vector<56xf32>) -> vector<7168xbf16>``
    """

    attrs = attributes(block=Integer(1))
    small: ext.Operand[Any]
    scales: ext.Operand[Any]
    value: ext.Result[Any]

    @classmethod
    def check(cls, op):
        check_inside(op, "fsc.node_copy")
        _, size = vector_of(op.small)
        if vector_of(op.value)[1] != size:
            raise VerifyError("must give as many values as it takes")
        if vector_of(op.scales) != ("f32", size // op.read("block")) or size % op.read("block"):
            raise VerifyError("needs one f32 for every block of values")


class StoreField(Op, name="store_field"):
    """Store a field of a row in its slot, contiguous.

    ``"fsc.store_field"(%x) {field = "x"} : (vector<7168xbf16>) -> ()``
    """

    attrs = attributes(field=Text())
    value: ext.Operand[Any]

    @classmethod
    def check(cls, op):
        check_inside(op, "fsc.node_copy")
        vector_of(op.value)
