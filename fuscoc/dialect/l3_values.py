"""L3 values: scalars from lists and inputs, and rows, which are vectors that the lanes share.

Lists and inputs do not change while a kernel runs, so reading one is pure. Integer arithmetic on
scalars is ``arith`` over i64.
"""

from math import prod
from typing import Any

from fuscoc.dialect.attrs import Array, Integer, Real, Text, VerifyError, attributes
from fuscoc.dialect.base import I64, Op
from fuscoc.dialect.dtypes import FLOATS, SHORT, DType, from_mlir, to_mlir
from fuscoc.dialect.fsc import Fsc
from fuscoc.dialect.mlir import ext, ir
from fuscoc.lang.dtypes import INTEGERS, NARROW
from fuscoc.lang.reductions import REDUCTIONS


class RowType(Fsc.Type, name="row"):
    """The address of a row of elements: ``!fsc.row<bf16>``."""

    element: Any

    @property
    def dtype(self):
        """The name of the element type."""
        return from_mlir(ir.TypeAttr(self.element).value)


class HeldType(Fsc.Type, name="held_row"):
    """A row in registers that changes: ``!fsc.held_row<vector<1024xf32>>``."""

    vector: Any

    @property
    def row(self):
        """The vector type."""
        return ir.TypeAttr(self.vector).value


def element_of(array: Any) -> Any:
    """The element dtype of the kernel argument that ``array`` is; None for raw memory."""
    block = array.owner
    if not isinstance(block, ir.Block) or block.owner.name != "fsc.kernel":
        raise VerifyError("must read an array that is an argument of its kernel")
    return block.owner.opview.read_item("args", array.arg_number)["element"]


def require(array, dtype, what):
    """Raise VerifyError unless ``array`` is a kernel argument with elements of ``dtype``."""
    if element_of(array) != dtype:
        raise VerifyError(f"needs an array of {dtype} for {what}")


def vector_of(value: Any) -> tuple[str, int]:
    """The element dtype and the number of lanes of a row value, held or not."""
    kind = value.type.row if isinstance(value.type, HeldType) else value.type
    if not isinstance(kind, ir.VectorType) or kind.rank != 1:
        raise VerifyError(f"needs a vector, not {kind}")
    return from_mlir(kind.element_type), kind.get_dim_size(0)


def vector_type(dtype: str, size: int) -> Any:
    """``vector<size x dtype>`` in the current context."""
    return ir.VectorType.get([size], to_mlir(dtype))


class DescField(Op, name="desc_field", traits=[ext.Pure]):
    """The entry of a list's column.

    ``%src = "fsc.desc_field"(%src_offset, %i) : (i64, i64) -> i64``
    """

    column: ext.Operand[I64]
    index: ext.Operand[I64]
    result: ext.Result[I64] = ext.infer_result()

    @classmethod
    def check(cls, op):
        require(op.column, "i64", "its column")


class PeerBase(Op, name="peer_base", traits=[ext.Pure]):
    """The address of a buffer on a peer.

    ``%to = "fsc.peer_base"(%x_dst, %peer) : (i64, i64) -> i64``
    """

    bases: ext.Operand[I64]
    peer: ext.Operand[I64]
    result: ext.Result[I64] = ext.infer_result()

    @classmethod
    def check(cls, op):
        require(op.bases, "i64", "its bases")


class LoadScalar(Op, name="load_scalar", traits=[ext.Pure]):
    """An element of an input: integers widened to i64, floats as they are.

    ``%key = "fsc.load_scalar"(%topk_idx, %at) : (i64, i64) -> i64``
    """

    array: ext.Operand[I64]
    index: ext.Operand[I64]
    result: ext.Result[Any]

    @classmethod
    def check(cls, op):
        dtype = element_of(op.array)
        if dtype is None:
            raise VerifyError("must read an array, not untyped memory")
        if from_mlir(op.result.type) != ("i64" if dtype in INTEGERS else dtype):
            raise VerifyError(f"must not read {dtype} as {op.result.type}")


class StoreScalar(Op, name="store_scalar"):
    """Write an i64 output. ``"fsc.store_scalar"(%rank, %point, %owner) : (i64, i64, i64) -> ()``"""

    array: ext.Operand[I64]
    index: ext.Operand[I64]
    value: ext.Operand[I64]

    @classmethod
    def check(cls, op):
        require(op.array, "i64", "its output")


class RowAt(Op, name="row_at", traits=[ext.Pure]):
    """The row at ``index`` steps behind ``base``, an address that is a multiple of ``align`` bytes.

    ``%from = "fsc.row_at"(%x_src, %src) {align = 16 : i64, step_bytes = 14336 : i64} :
    (i64, i64) -> !fsc.row<i64>``
    """

    attrs = attributes(step_bytes=Integer(1), align=Integer(1))
    base: ext.Operand[I64]
    index: ext.Operand[I64]
    row: ext.Result[RowType]


class Lanes(Op, name="lanes", traits=[ext.Pure]):
    """``start``, ``start + 1``, ...: places in a row, one a lane; a power of two of them.

    ``%at = "fsc.lanes"(%start) : (i64) -> vector<1024xi64>``
    """

    start: ext.Operand[I64]
    result: ext.Result[Any]

    @classmethod
    def check(cls, op):
        dtype, size = vector_of(op.result)
        if dtype != "i64" or size & (size - 1):
            raise VerifyError(f"needs a power of two of i64 lanes, not {op.result.type}")


_ACCESS = {
    "limit": Integer(1, optional=True),
    "run": Integer(1, optional=True),
    "counts": Array(Integer(2), optional=True),
}


def _check_access(op, value):
    dtype, size = vector_of(value)
    if op.row.type.dtype != dtype or vector_of(op.lanes)[1] != size:
        raise VerifyError("needs one element of its row a lane")
    counts, run = op.read("counts"), op.read("run")
    if len(op.strides) != len(counts) or (run is None) != (not counts):
        raise VerifyError("needs a run length, and a stride for each of its counts, or none")
    if counts and op.read("limit") not in (None, run * prod(counts)):
        raise VerifyError("must end where its runs end")


class LoadRow(Op, name="load_row"):
    """Elements of a row, one a lane; lanes from ``limit`` on read nothing and hold 0.

    A row may lie in runs of ``run`` elements, which ``counts`` nested loops place, outermost first,
    ``strides`` elements apart.

    ``%x = "fsc.load_row"(%from, %at, %stride) {counts = [14 : i64], limit = 588 : i64, run = 42 :
    i64} : (!fsc.row<i8>, vector<1024xi64>, i64) -> vector<1024xi8>``
    """

    attrs = attributes(**_ACCESS)
    row: ext.Operand[RowType]
    lanes: ext.Operand[Any]
    strides: ext.Sequence[ext.Operand[I64]]
    result: ext.Result[Any]

    @classmethod
    def check(cls, op):
        _check_access(op, op.result)


class StoreRow(Op, name="store_row"):
    """Write one element a lane below ``limit``; runs as for ``fsc.load_row``.

    ``"fsc.store_row"(%x, %to, %at) : (vector<1024xi64>, !fsc.row<i64>, vector<1024xi64>) -> ()``
    """

    attrs = attributes(**_ACCESS)
    value: ext.Operand[Any]
    row: ext.Operand[RowType]
    lanes: ext.Operand[Any]
    strides: ext.Sequence[ext.Operand[I64]]

    @classmethod
    def check(cls, op):
        _check_access(op, op.value)


class Aligned(Op, name="aligned", traits=[ext.Pure]):
    """A scalar that is known to be a multiple of ``multiple``.

    ``%stride = "fsc.aligned"(%elements) {multiple = 2 : i64} : (i64) -> i64``
    """

    attrs = attributes(multiple=Integer(2))
    value: ext.Operand[I64]
    result: ext.Result[I64] = ext.infer_result()


class Hold(Op, name="hold"):
    """A row in registers that changes while a kernel runs; zeros at first.

    ``%sum = "fsc.hold"() : () -> !fsc.held_row<vector<1024xf32>>``
    """

    result: ext.Result[HeldType]

    @classmethod
    def check(cls, op):
        vector_of(op.result)


class Accumulate(Op, name="accumulate"):
    """Add a row to a held one.

    ``"fsc.accumulate"(%sum, %x) : (!fsc.held_row<vector<8xf32>>, vector<8xf32>) -> ()``
    """

    held: ext.Operand[HeldType]
    value: ext.Operand[Any]

    @classmethod
    def check(cls, op):
        _check_held(op)


class Replace(Op, name="replace"):
    """Put a row in the place of a held one.

    ``"fsc.replace"(%row, %x) : (!fsc.held_row<vector<8xi64>>, vector<8xi64>) -> ()``
    """

    held: ext.Operand[HeldType]
    value: ext.Operand[Any]

    @classmethod
    def check(cls, op):
        _check_held(op)


class Held(Op, name="held"):
    """A held row as it is now.

    ``%total = "fsc.held"(%sum) : (!fsc.held_row<vector<8xf32>>) -> vector<8xf32>``
    """

    held: ext.Operand[HeldType]
    value: ext.Result[Any]

    @classmethod
    def check(cls, op):
        _check_held(op)


def _check_held(op):
    if op.held.type.row != op.value.type:
        raise VerifyError(f"must not mix {op.held.type.row} and {op.value.type}")


class Cast(Op, name="cast", traits=[ext.Pure]):
    """Floats to another width, rounded to nearest even; 8-bit floats saturate. Short integers
    become f32, which holds them all.

    ``%wide = "fsc.cast"(%x) : (vector<1024xbf16>) -> vector<1024xf32>``
    """

    value: ext.Operand[Any]
    result: ext.Result[Any]

    @classmethod
    def check(cls, op):
        kinds = [
            str(vector_of(value)[0] if isinstance(value.type, ir.VectorType) else value.type)
            for value in (op.value, op.result)
        ]
        if kinds[0] in SHORT and kinds[1] == "f32":
            return
        for dtype in kinds:
            if dtype not in FLOATS:
                raise VerifyError(f"must convert between floats, not {dtype}")


def cast_to(value: Any, wanted: Any) -> Any:
    """A value as another type of floats, by an ``fsc.cast`` if it needs one."""
    return value if value.type == wanted else Cast.build(value, wanted).result


class Scale(Op, name="scale", traits=[ext.Pure]):
    """A row times a number of its element type, or times one for every block of its elements.

    ``%y = "fsc.scale"(%x, %weight) : (vector<1024xf32>, f32) -> vector<1024xf32>``
    """

    value: ext.Operand[Any]
    factor: ext.Operand[Any]
    result: ext.Result[Any]

    @classmethod
    def check(cls, op):
        dtype, size = vector_of(op.value)
        factors = (str(op.factor.type), 1)
        if isinstance(op.factor.type, ir.VectorType):
            factors = vector_of(op.factor)
        if op.value.type != op.result.type or factors[0] != dtype or size % factors[1]:
            raise VerifyError("needs a row and factors of one element type")


def check_channels(shifts, factors):
    """Raise VerifyError unless every channel has a shift and a factor."""
    if len(shifts) != len(factors):
        raise VerifyError(f"needs a shift for every factor, not {len(shifts)} for {len(factors)}")


class Normalise(Op, name="normalise", traits=[ext.Pure]):
    """``(x - shift) * factor`` of every element, both operations rounded to nearest even.

    There is one of each for all elements, or one for every channel: those lie side by side in a
    row. ``lanes`` are the places of the elements there, unless they are all of it. With
    ``channels`` the numbers are a call's, for so many: outside of kernels, which have
    ``fsc.normalise_by``.

    ``%y = "fsc.normalise"(%x, %at) {factors = [0.5 : f32], shifts = [3.0 : f32]} :
    (vector<8xf32>, vector<8xi64>) -> vector<8xf32>``
    """

    attrs = attributes(
        shifts=Array(Real(), optional=True),
        factors=Array(Real(), optional=True),
        channels=Integer(1, optional=True),
    )
    value: ext.Operand[Any]
    lanes: ext.Sequence[ext.Operand[Any]]
    result: ext.Result[Any]

    @classmethod
    def check(cls, op):
        check_channels(op.read("shifts"), op.read("factors"))
        if bool(op.read("factors")) == bool(op.read("channels")):
            raise VerifyError("needs numbers of its own or of a call, and not both")
        dtype, size = vector_of(op.value)
        lanes = [vector_of(each) for each in op.lanes]
        if dtype != "f32" or op.result.type != op.value.type or lanes not in ([], [("i64", size)]):
            raise VerifyError("needs f32, gives as many, and knows as many lanes if any")


class NormaliseBy(Op, name="normalise_by", traits=[ext.Pure]):
    """``fsc.normalise`` by ``numbers``, an array of f32: a shift for every one of ``channels``, and
    behind these a factor for each.

    ``%y = "fsc.normalise_by"(%x, %at, %numbers) {channels = 3 : i64} : (vector<8xf32>,
    vector<8xi64>, i64) -> vector<8xf32>``
    """

    attrs = attributes(channels=Integer(1))
    value: ext.Operand[Any]
    lanes: ext.Operand[Any]
    numbers: ext.Operand[I64]
    result: ext.Result[Any]

    @classmethod
    def check(cls, op):
        require(op.numbers, "f32", "its numbers")
        dtype, size = vector_of(op.value)
        if (
            dtype != "f32"
            or op.result.type != op.value.type
            or vector_of(op.lanes) != ("i64", size)
        ):
            raise VerifyError("needs f32 and as many lanes, and gives as many")


class Merge(Op, name="merge", traits=[ext.Pure]):
    """Two rows as one, element by element: for reductions that begin with their first term.

    ``max`` is the larger element, or NaN if one is.

    ``%z = "fsc.merge"(%x, %y) {kind = "max"} : (vector<8xf32>, vector<8xf32>) -> vector<8xf32>``
    """

    attrs = attributes(kind=Text(*REDUCTIONS))
    lhs: ext.Operand[Any]
    rhs: ext.Operand[Any]
    result: ext.Result[Any]

    @classmethod
    def check(cls, op):
        vector_of(op.lhs)
        if op.lhs.type != op.rhs.type or op.lhs.type != op.result.type:
            raise VerifyError(f"must not mix {op.lhs.type} and {op.rhs.type}")


class Amax(Op, name="amax", traits=[ext.Pure]):
    """The largest finite magnitude of every ``block`` elements, a power of two of them.

    At least 2^-100, so that it can be divided by.

    ``%amax = "fsc.amax"(%x) {block = 128 : i64} : (vector<1024xf32>) -> vector<8xf32>``
    """

    attrs = attributes(block=Integer(1))
    value: ext.Operand[Any]
    result: ext.Result[Any]

    @classmethod
    def check(cls, op):
        (dtype, size), blocks = vector_of(op.value), vector_of(op.result)
        if dtype != "f32" or blocks != ("f32", size // op.read("block")):
            raise VerifyError(f"needs one f32 for every {op.read('block')} f32")


def _check_like(op):
    if op.amax.type != op.result.type or vector_of(op.amax)[0] != "f32":
        raise VerifyError("needs f32 and gives as many")


class ScaleOf(Op, name="scale_of", traits=[ext.Pure]):
    """What the largest value of the 8-bit ``dtype`` has to be multiplied by to give ``amax``.

    ``%scales = "fsc.scale_of"(%amax) {dtype = f8E4M3FN} : (vector<8xf32>) -> vector<8xf32>``
    """

    attrs = attributes(dtype=DType(NARROW))
    amax: ext.Operand[Any]
    result: ext.Result[Any]

    @classmethod
    def check(cls, op):
        _check_like(op)


class FactorOf(Op, name="factor_of", traits=[ext.Pure]):
    """The largest value of the 8-bit ``dtype`` divided by ``amax``, rounded to nearest even.

    ``%factors = "fsc.factor_of"(%amax) {dtype = f8E4M3FN} : (vector<8xf32>) -> vector<8xf32>``
    """

    attrs = attributes(dtype=DType(NARROW))
    amax: ext.Operand[Any]
    result: ext.Result[Any]

    @classmethod
    def check(cls, op):
        _check_like(op)
