"""Exact conversions between floats for Triton's interpreter.

A kernel has to give the same bits interpreted as on the GPU. The conversions where the interpreter
does not are replaced while a kernel of ours is interpreted; elsewhere Triton stays as it is.

The interpreter (3.6 to 3.9 at least) truncates f32 to bf16 where the GPU rounds to nearest even,
and widens subnormal bf16 to wrong values. To 8-bit floats it rounds half up, loses the carry into
the exponent and wraps values beyond the range, where a GPU rounds to nearest even and saturates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

# By Triton's name: mantissa bits, exponent of the smallest normal value, largest value, its bits.
FORMATS = {"fp8e4nv": (3, -6, 448.0, 0x7E), "fp8e5": (2, -14, 57344.0, 0x7B)}
NAN = 0x7F


def exact_conversions() -> Iterator[tuple[Any, str, Any]]:
    """An object, a name and the value it is to have: for conversions of bf16 and 8-bit floats."""
    from triton import language as tl
    from triton.runtime.interpreter import TensorHandle, interpreter_builder

    cast_impl, fp_to_fp = interpreter_builder.cast_impl, interpreter_builder.create_fp_to_fp

    def cast(src: Any, dst_type: Any) -> Any:
        pair = src.dtype.scalar.name, dst_type.scalar.name
        if pair == ("fp32", "bf16"):
            return TensorHandle(round_to_bfloat16(src.data), tl.bfloat16)
        if pair == ("bf16", "fp32"):
            return TensorHandle(widen_bfloat16(src.data), tl.float32)
        return cast_impl(src, dst_type)

    def convert(src: Any, dst_type: Any, rounding: Any) -> Any:
        given, wanted = src.dtype.scalar, dst_type.scalar
        if given == tl.float32 and wanted.name in FORMATS:
            return TensorHandle(narrow_float8(src.data, wanted.name), wanted)
        if given.name in FORMATS and wanted == tl.float32:
            return TensorHandle(widen_float8(src.data, given.name), wanted)
        return fp_to_fp(src, dst_type, rounding)

    yield interpreter_builder, "cast_impl", cast
    yield interpreter_builder, "create_fp_to_fp", convert


def round_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The nearest bf16 of each f32, ties to even, as bits."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    tie = (bits >> 16) & 1
    # In 64 bits, so that the largest NaNs cannot carry over into the sign.
    rounded = ((bits.astype(np.uint64) + 0x7FFF + tie) >> 16).astype(np.uint16)
    quiet_nan = ((bits >> 16) | 0x40).astype(np.uint16)
    return np.where(np.isnan(values), quiet_nan, rounded)


def widen_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The f32 that equals each bf16, given as bits."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def narrow_float8(values: NDArray[np.float32], name: str) -> NDArray[np.uint8]:
    """The nearest 8-bit float of each f32, ties to even and saturating, as bits."""
    mantissa_bits, least_exponent, largest, largest_bits = FORMATS[name]
    magnitude = np.fmin(np.abs(values), np.float32(largest))
    exponent = np.where(magnitude < 2.0**least_exponent, least_exponent, np.frexp(magnitude)[1] - 1)
    # Whole steps of the format, counted from the subnormals on: they are its bits.
    steps = np.rint(np.ldexp(magnitude, mantissa_bits - exponent))
    bits = steps.astype(np.int32) + ((exponent - least_exponent) << mantissa_bits)
    signed = np.minimum(bits, largest_bits) + 0x80 * np.signbit(values)
    return np.where(np.isnan(values), NAN, signed).astype(np.uint8)


def widen_float8(bits: NDArray[np.uint8], name: str) -> NDArray[np.float32]:
    """The f32 that equals each 8-bit float, given as bits."""
    mantissa_bits, least_exponent, _, _ = FORMATS[name]
    magnitude = np.asarray(bits).astype(np.int32) & 0x7F
    exponent = magnitude >> mantissa_bits
    mantissa = magnitude & ((1 << mantissa_bits) - 1)
    normal = exponent > 0
    steps = mantissa + normal * (1 << mantissa_bits)
    shift = np.maximum(exponent, 1) - 1 + least_exponent - mantissa_bits
    values = np.ldexp(steps.astype(np.float32), shift)
    if name == "fp8e5":
        values = np.where(magnitude == 0x7C, np.inf, values)
        values = np.where(magnitude > 0x7C, np.nan, values)
    else:
        values = np.where(magnitude == NAN, np.nan, values)
    return np.where(np.asarray(bits) & 0x80, -values, values).astype(np.float32)
