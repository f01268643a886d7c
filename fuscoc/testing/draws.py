"""Many small numbers from one hypothesis draw."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from fuscoc.testing.arrays import Ints


def digits(draw: st.DrawFn, count: int, bound: int) -> Ints:
    """int64 [count], each in 0 .. bound - 1; shrinks to zeros.

    One draw whatever the count, so that tensors for dozens of ranks are cheap to generate.
    """
    if count == 0 or bound <= 1:
        return np.zeros(count, np.int64)
    width = 1 if bound <= 128 else 2
    drawn = draw(st.binary(min_size=count * width, max_size=count * width))
    return np.frombuffer(drawn, f">u{width}").astype(np.int64) % bound
