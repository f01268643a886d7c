"""Exact 8-bit floats for Triton's interpreter.

The interpreter (3.6 to 3.9 at least) rounds half up, loses the carry into the exponent and wraps
values beyond the range, where a GPU rounds to nearest even and saturates.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# By Triton's name: mantissa bits, exponent of the smallest normal value, largest value, its bits.
FORMATS = {"fp8e4nv": (3, -6, 448.0, 0x7E), "fp8e5": (2, -14, 57344.0, 0x7B)}
NAN = 0x7F


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
