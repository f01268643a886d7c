"""Element types by their names in specs and manifests, and as MLIR types."""

from typing import Any

from fuscoc.dialect.attrs import Attr, VerifyError
from fuscoc.dialect.mlir import ir
from fuscoc.lang.dtypes import INTEGERS, ITEM_BYTES

_MLIR = {
    **{name: name for name in ("i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64")},
    "u8": "ui8",
    "f8e4m3": "f8E4M3FN",
    "f8e5m2": "f8E5M2",
}
_NAMES = {mlir: name for name, mlir in _MLIR.items()}

FLOATS = frozenset(_MLIR) - INTEGERS
# Integers that f32 holds exactly.
SHORT = frozenset({"i8", "i16", "u8"})


def num_bytes(name: str) -> int:
    """Bytes of one element."""
    return ITEM_BYTES[name]


def to_mlir(name: str) -> Any:
    """The MLIR type of a dtype name, in the current context."""
    return ir.Type.parse(_MLIR[name])


def from_mlir(mlir_type: Any) -> str:
    """The dtype name of an MLIR type; raises VerifyError for one that no tensor can have."""
    name = _NAMES.get(str(mlir_type))
    if name is None:
        raise VerifyError(f"is not an element type: {mlir_type}")
    return name


def accumulator_dtype(name: str) -> str:
    """What floats are reduced in, and kept in where that loses nothing; integers stay."""
    if name in INTEGERS:
        return name
    return "f64" if name == "f64" else "f32"


def partial_dtype(name: str) -> str:
    """What rows of one rank, or of one node, go back to the source in: as narrow as is safe.

    A partial sum may be too large for f16 where the whole sum is not.
    """
    return "f32" if name == "f16" else name


class DType(Attr):
    """An element type, e.g. ``bf16``; ``choices`` narrows it."""

    def __init__(self, choices=frozenset(_MLIR), *, optional=False):
        super().__init__(optional=optional)
        self.choices = choices

    def encode(self, value):
        return ir.TypeAttr.get(to_mlir(value))

    def decode(self, attr):
        return from_mlir(ir.TypeAttr(attr).value)

    def check(self, op, attr):
        if not isinstance(attr, ir.TypeAttr):
            raise VerifyError(f"must be an element type, not {attr}")
        if from_mlir(attr.value) not in self.choices:
            raise VerifyError(f"must be one of {', '.join(sorted(self.choices))}, not {attr}")


class TensorType(Attr):
    """A ranked tensor type; reads as ``(dtype name, shape)`` with None for a run-time extent."""

    def encode(self, value):
        dtype, shape = value
        dynamic = ir.ShapedType.get_dynamic_size()
        sizes = [dynamic if size is None else size for size in shape]
        tensor = ir.RankedTensorType.get(sizes, to_mlir(dtype), loc=ir.Location.unknown())
        return ir.TypeAttr.get(tensor)

    def decode(self, attr):
        tensor = ir.RankedTensorType(ir.TypeAttr(attr).value)
        shape = tuple(
            None if tensor.is_dynamic_dim(i) else tensor.get_dim_size(i) for i in range(tensor.rank)
        )
        return from_mlir(tensor.element_type), shape

    def check(self, op, attr):
        if not isinstance(attr, ir.TypeAttr) or not isinstance(attr.value, ir.RankedTensorType):
            raise VerifyError(f"must be a ranked tensor type, not {attr}")
        _, shape = self.decode(attr)
        if 0 in shape:
            raise VerifyError(f"must have positive extents, not {attr}")
