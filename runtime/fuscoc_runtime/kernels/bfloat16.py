"""Exact bfloat16 for Triton's interpreter.

The interpreter (3.6 to 3.9 at least) truncates f32 to bf16 where the GPU rounds to nearest even,
and widens subnormal bf16 to wrong values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


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
