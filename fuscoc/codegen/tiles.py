"""How the lanes of a kernel share a row: tiles, whose sizes are powers of two, and warps.

A row is cut into a few tiles that together load it whole before anything is stored, so that many
bytes are in flight; a row too long for registers is cut into chunks first.
"""

from __future__ import annotations

from dataclasses import dataclass

LANES = 32
MAX_WARPS = 8
# Bytes that one lane holds at most: seven 16-byte accesses in flight suit a 14 KB row and 4 warps.
BYTES_PER_LANE = 128
ACCESS_BYTES = 16
# More pieces would only shrink the masked remainder.
MAX_TILES = 3


@dataclass(frozen=True)
class Tile:
    """Lanes ``start`` to ``start + size`` of a row, of which those below ``limit`` exist."""

    start: int
    size: int
    limit: int

    @property
    def masked(self) -> bool:
        """Whether some lanes have no element."""
        return self.start + self.size > self.limit


@dataclass(frozen=True)
class Cut:
    """A row of ``num_chunks`` equal chunks of ``chunk`` elements (0: none), then ``tiles``."""

    chunk: int
    num_chunks: int
    tiles: tuple[Tile, ...]


def warps_for(row_bytes: int) -> int:
    """Warps that together hold a row, a power of two."""
    lanes = -(-row_bytes // BYTES_PER_LANE)
    warps = 1
    while warps * LANES < lanes and warps < MAX_WARPS:
        warps *= 2
    return warps


def cut_row(num_elems: int, elem_bytes: int, block: int = 1) -> Cut:
    """Tiles of a row of ``num_elems`` elements, chunks first if it is longer than the registers.

    ``block`` elements stay together: a power of two that divides the row, or all of it.
    """
    if block & (block - 1):
        whole = Tile(0, 1 << (num_elems - 1).bit_length(), num_elems)
        return Cut(0, 0, (whole,))
    chunk = MAX_WARPS * LANES * BYTES_PER_LANE // elem_bytes
    num_chunks = num_elems // chunk if num_elems > chunk else 0
    # One masked tile is as good, if it costs no lane more than one access.
    spare = warps_for(num_elems * elem_bytes) * LANES * ACCESS_BYTES // elem_bytes
    tiles = _tiles(num_chunks * chunk, num_elems, spare)
    return Cut(chunk if num_chunks else 0, num_chunks, tiles)


def _tiles(start: int, limit: int, spare: int) -> tuple[Tile, ...]:
    tiles: list[Tile] = []
    while start < limit:
        left = limit - start
        size = 1 << (left - 1).bit_length()
        if size - left > spare and len(tiles) < MAX_TILES - 1:
            size //= 2
        tiles.append(Tile(start, size, limit))
        start += size
    return tuple(tiles)
