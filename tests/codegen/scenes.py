"""Source tensors with their segments cut out by numpy: what copies have to reproduce."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fuscoc.lang.checked import Const
from tests.codegen.memory import Int64s, filled, int64s
from tests.codegen.specs import ITEM_BYTES, SPECS

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Scene:
    """Sources of one rank: bytes by field, where segments begin in cells, and their bytes in order.

    ``rows`` maps a field to [num_segments, seg_bytes].
    """

    source: dict[str, Bytes]
    offset: Int64s
    strides: dict[str, Int64s]
    rows: dict[str, Bytes]

    @property
    def num_segments(self) -> int:
        return len(self.offset)

    def columns(self, side: str, segments: Int64s) -> dict[str, Int64s]:
        """The list's columns for an end in the source layout."""
        strides = {name.replace("src", side): column for name, column in self.strides.items()}
        columns = {f"{side}_offset": self.offset, **strides}
        return {name: int64s(column[segments]) for name, column in columns.items()}


def scene(name: str, rng: np.random.Generator) -> Scene:
    """Random sources of the spec of that name."""
    if name.startswith("vit"):
        return _pictures(rng, 2 if name == "vit" else 4, nchw=name == "vit_nchw")
    return _blocks(name, rng)


def _blocks(name: str, rng: np.random.Generator, num: int = 4) -> Scene:
    checked = SPECS[name]()
    lengths = [subscript.length or 1 for subscript in checked.source.subscripts]
    dims = [dim.value for dim in checked.source.dims[1:] if isinstance(dim, Const)]
    shape = (num * lengths[0], *dims)
    cells = np.arange(np.prod(shape)).reshape(shape)
    inner = tuple(slice(0, length) for length in lengths[1:])
    chosen = [
        cells[i * lengths[0] : (i + 1) * lengths[0]][(slice(None), *inner)] for i in range(num)
    ]
    source, rows = {}, {}
    for field in checked.source.fields:
        cell_bytes = int(np.prod(field.shape, dtype=int)) * ITEM_BYTES[field.dtype]
        data = rng.integers(0, 256, (cells.size, cell_bytes), dtype=np.uint8)
        source[field.name] = filled(data)
        rows[field.name] = np.stack([data[block.ravel()].ravel() for block in chosen])
    return Scene(source, int64s([block.flat[0] for block in chosen]), {}, rows)


def _pictures(rng: np.random.Generator, p: int, *, nchw: bool) -> Scene:
    """Two pictures of different sizes, cut into patches of ``p`` x ``p``."""
    data, offset, widths, planes, rows = [], [], [], [], []
    before = 0
    for height, width in ((2 * p, p), (p, 3 * p)):
        picture = rng.integers(0, 256, (3, height, width) if nchw else (height, width, 3), np.uint8)
        data.append(picture.ravel())
        for y in range(0, height, p):
            for x in range(0, width, p):
                cut = slice(y, y + p), slice(x, x + p)
                rows.append((picture[(slice(None), *cut)] if nchw else picture[cut]).ravel())
                offset.append(before + y * width + x)
                widths.append(width)
                planes.append(height * width)
        before += height * width * (3 if nchw else 1)
    strides = [planes, widths] if nchw else [widths]
    return Scene(
        {"pixels": filled(np.concatenate(data))},
        int64s(offset),
        {f"src_stride{i}": int64s(column) for i, column in enumerate(strides)},
        {"pixels": np.stack(rows)},
    )
