"""Arrays on their way into a page: one block of bytes, compressed, that a browser takes apart."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 8
"""Bytes: typed arrays of a browser begin at a multiple of their elements."""


class Block:
    """Collects arrays; equal ones are kept once.

    What stands for an array in the page's JSON is ``{"at", "type", "shape"}``: a byte offset into
    the block, numpy's name of a little-endian type, and the extents.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._places: dict[bytes, int] = {}
        self._size = 0

    def add(self, array: NDArray[Any], dtype: str) -> dict[str, Any]:
        """Keep ``array`` as ``dtype``: ``f4``, ``u1``, ``u2`` or ``u4``."""
        part = np.ascontiguousarray(array, f"<{dtype}").tobytes()
        if part not in self._places:
            self._places[part] = self._size
            padded = part + bytes(-len(part) % ALIGNMENT)
            self._parts.append(padded)
            self._size += len(padded)
        return {"at": self._places[part], "type": dtype, "shape": list(np.shape(array))}

    def text(self) -> str:
        """The block in base64, compressed with zlib (``DecompressionStream("deflate")``)."""
        return base64.b64encode(zlib.compress(b"".join(self._parts), 9)).decode()
