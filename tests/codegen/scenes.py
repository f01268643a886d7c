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
    """Sources of one rank: bytes by field, and where segments begin, in cells.

    ``places`` maps a field to [num_segments, seg_bytes], the byte of the source that a byte of a
    segment is.
    """

    source: dict[str, Bytes]
    offset: Int64s
    strides: dict[str, Int64s]
    places: dict[str, Int64s]

    @property
    def num_segments(self) -> int:
        return len(self.offset)

    @property
    def rows(self) -> dict[str, Bytes]:
        """The segments' bytes: [num_segments, seg_bytes] by field."""
        return {field: self.source[field].ravel()[at] for field, at in self.places.items()}

    @property
    def seg_bytes(self) -> dict[str, int]:
        return {field: at.shape[1] for field, at in self.places.items()}

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
    cells = np.arange(num * lengths[0] * int(np.prod(dims, dtype=int)))
    cells = cells.reshape(num * lengths[0], *dims)
    inner = (slice(None), *(slice(0, length) for length in lengths[1:]))
    chosen = [cells[i * lengths[0] : (i + 1) * lengths[0]][inner].ravel() for i in range(num)]
    source, places = {}, {}
    for field in checked.source.fields:
        size = int(np.prod(field.shape, dtype=int)) * ITEM_BYTES[field.dtype]
        places[field.name] = np.stack(
            [(block[:, None] * size + np.arange(size)).ravel() for block in chosen]
        )
        source[field.name] = filled(rng.integers(0, 256, (cells.size, size), np.uint8))
    return Scene(source, int64s([block[0] for block in chosen]), {}, places)


def _pictures(rng: np.random.Generator, p: int, *, nchw: bool) -> Scene:
    """Two pictures of different sizes, cut into patches of ``p`` x ``p``."""
    offset, widths, planes, places = [], [], [], []
    cells = pixels = 0
    for height, width in ((2 * p, p), (p, 3 * p)):
        shape = (3, height, width) if nchw else (height, width, 3)
        picture = pixels + np.arange(3 * height * width).reshape(shape)
        for y in range(0, height, p):
            for x in range(0, width, p):
                cut = slice(y, y + p), slice(x, x + p)
                places.append((picture[(slice(None), *cut)] if nchw else picture[cut]).ravel())
                offset.append(cells + y * width + x)
                widths.append(width)
                planes.append(height * width)
        pixels += picture.size
        cells += picture.size if nchw else height * width
    strides = [planes, widths] if nchw else [widths]
    return Scene(
        {"pixels": filled(rng.integers(0, 256, pixels, np.uint8))},
        int64s(offset),
        {f"src_stride{i}": int64s(column) for i, column in enumerate(strides)},
        {"pixels": np.stack(places)},
    )
