"""Random specs and the arithmetic to judge them by, written without the checker's help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import strategies as st

from fuscoc.lang.checked import BinaryOp, Const, ExtentRef, IndexRef, Load, Scalar

DTYPES = ["bf16", "f16", "f32", "f64", "f8e4m3", "f8e5m2", "i8", "i16", "i32", "i64", "u8"]

sizes = st.integers(1, 64)
fields = st.lists(
    st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(1, 9), max_size=3)),
    min_size=1,
    max_size=4,
)


@dataclass(frozen=True)
class KeyedSpec:
    """Segments sent to several keys each, packed by key: what the text says, as data."""

    num_outer: int  # source dimensions
    fan_out: int
    num_keys: int
    align: int | None
    capacity: int | None
    placement: str
    fields: list[tuple[str, list[int]]] = field(default_factory=list)

    @property
    def text(self) -> str:
        outer = [f"o{i}" for i in range(self.num_outer)]
        listed = ", ".join(
            f"f{i} : {dtype}[{', '.join(map(str, shape))}]" if shape else f"f{i} : {dtype}"
            for i, (dtype, shape) in enumerate(self.fields)
        )
        align = "" if self.align is None else f" align {self.align}"
        capacity = "capacity exact" if self.capacity is None else f"capacity max {self.capacity}"
        by = "table owner" if self.placement == "table" else self.placement
        return f"""
        shuffle keyed {{
          {" ".join(f"index {name} : extent_{name}" for name in outer)}
          index k : {self.fan_out}
          index e : num_keys
          const num_keys = {self.num_keys}
          segment item {{ {listed} }}
          layout source[{", ".join(outer)}] of item
          layout target[e, s] of item packed(s){align} {capacity}
          place e on rank by {by}
          route r({", ".join(outer)}, k) -> e = input keys : i64
          dispatch source[{", ".join(outer)}] -> target[r({", ".join(outer)}, k), *]
        }}"""


keyed_specs = st.builds(
    KeyedSpec,
    num_outer=st.integers(1, 3),
    fan_out=st.integers(1, 16),
    num_keys=st.integers(1, 512),
    align=st.none() | sizes,
    capacity=st.none() | st.integers(1, 10**6),
    placement=st.sampled_from(["block", "cyclic", "table"]),
    fields=fields,
)


@dataclass(frozen=True)
class TiledSpec:
    """Tiles of a ragged image, moved to slots that the caller names, and back."""

    tile: tuple[int, int]
    channels: int
    dtype: str
    constant_image: bool

    @property
    def text(self) -> str:
        h, w = self.tile
        extents = f"{4 * h}, {3 * w}" if self.constant_image else "height(n), width(n)"
        rows, columns = ("4", "3") if self.constant_image else ("height(n) / h", "width(n) / w")
        return f"""
        shuffle tiled {{
          const h = {h}, w = {w}, c = {self.channels}
          index n : images   index i : {rows}   index j : {columns}
          segment tile {{ pixels : {self.dtype}[h, w, c] }}
          layout image[n, y, x] of {self.dtype}[c] dense({extents})
          view tiles[n, i, j] = image[n, i*h .. (i+1)*h, w*j .. w + j*w]
          layout slots[s] of tile dense(4096)
          route where(n) -> (first, rank) = input packing : int32[2]
          dispatch tiles[n, i, j] -> slots[where(n).first + 7*i + j] on where(n).rank
          combine reverse
        }}"""


tiled_specs = st.builds(
    TiledSpec,
    tile=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    channels=st.integers(1, 4),
    dtype=st.sampled_from(DTYPES),
    constant_image=st.booleans(),
)


def evaluate(scalar: Scalar, values: Mapping[Scalar, int]) -> int:
    """The value of a scalar, given those of its indices, extents and loads."""
    match scalar:
        case Const(value=value):
            return value
        case BinaryOp(op=op, lhs=lhs, rhs=rhs):
            return arithmetic(op, evaluate(lhs, values), evaluate(rhs, values))
        case IndexRef() | ExtentRef() | Load():
            return values[scalar]


def arithmetic(op: str, lhs: int, rhs: int) -> int:
    return {
        "+": int.__add__,
        "-": int.__sub__,
        "*": int.__mul__,
        "/": int.__floordiv__,
        "//": int.__floordiv__,
        "%": int.__mod__,
        "min": min,
        "max": max,
        "cdiv": lambda dividend, divisor: -(-dividend // divisor),
    }[op](lhs, rhs)
