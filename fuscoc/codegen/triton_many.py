"""Short rows in Triton, many at once: what ``kernels/device/many.py`` is bound to.

Each function moves a tile of rows, whose addresses are a vector and of which some exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

from fuscoc.codegen.cuda_types import CudaShuffle
from fuscoc.codegen.triton_rows import RowField, as_tuple, function, partial_bytes, taken
from fuscoc.codegen.triton_tiles import TritonSizes
from fuscoc.lang.dtypes import ITEM_BYTES

DISPATCHED = {"load_source": "load_sources", "store_row": "store_rows"}
COMBINED = ("load_rows", "store_sent", "load_back", "store_results")


def many_functions(shuffle: CudaShuffle, sizes: TritonSizes) -> list[str]:
    """``load_sources`` and ``store_rows``, and those of a combine, if there is one."""
    fields = shuffle.fields
    rows = [taken(each, cut, 1, False) for each, cut in zip(fields, sizes.moved, strict=True)]
    cells = [field.cell_elems * ITEM_BYTES[field.dtype] for field in fields]
    sources = [f"source[{i}] + cells * {cell}" for i, cell in enumerate(cells)]
    slots = [f"bases + at[{i}] + slots * {row.row_bytes}" for i, row in enumerate(rows)]
    functions = [
        function("load_sources(source, cells, has)", _loads(rows, sources)),
        function("store_rows(bases, at, slots, has, tiles)", _stores(rows, slots)),
    ]
    if shuffle.combine is None:
        return functions
    here = [f"rows[{i}] + slots * {row.row_bytes}" for i, row in enumerate(rows)]
    sent, to = (
        [f"{begin} + {place}" if place else begin for place in partial_bytes(shuffle)[0]]
        for begin in ("sent", "to")
    )
    back = [f"tl.where(here, {a}, {b})" for a, b in zip(here, sent, strict=True)]
    sizes_at = cells if shuffle.is_placed else [row.row_bytes for row in rows]
    results = [f"result[{i}] + places * {size}" for i, size in enumerate(sizes_at)]
    return [
        *functions,
        function("load_rows(rows, slots, has)", _loads(rows, here)),
        function("store_sent(to, has, tiles)", _stores(rows, to)),
        function("load_back(rows, slots, here, sent, has, lost)", _loads(rows, back, "lost")),
        function("store_results(result, places, has, tiles)", _stores(rows, results)),
    ]


def _loads(rows: Sequence[RowField], addresses: Sequence[str], lost: str = "") -> list[str]:
    """Load every tile; rows that are ``lost`` become what no number is."""
    lines, tiles = list[str](), list[str]()
    for at, mask in _places(rows, addresses, lines):
        tiles.append(f"tile_{len(tiles)}")
        lines.append(f"{tiles[-1]} = tl.load({at}, mask={mask}, other=0)")
        if lost:
            lines.append(f"{tiles[-1]} = tl.where({lost}[:, None], -1, {tiles[-1]})")
    return [*lines, f"return {as_tuple(tiles)}"]


def _stores(rows: Sequence[RowField], addresses: Sequence[str]) -> list[str]:
    lines, number = list[str](), count()
    for at, mask in _places(rows, addresses, lines):
        lines.append(f"tl.store({at}, tiles[{next(number)}], mask={mask})")
    return lines


def _places(
    rows: Sequence[RowField], addresses: Sequence[str], lines: list[str]
) -> Iterator[tuple[str, str]]:
    """Pointers and masks of every tile; what they need is appended to ``lines``."""
    for i, (row, address) in enumerate(zip(rows, addresses, strict=True)):
        at = (
            address if address.isidentifier() or address.startswith("tl.where(") else f"({address})"
        )
        pointers = f"{at}.to(tl.pointer_type({row.dtype}))"
        if row.align > row.word_bytes:
            pointers = f"tl.multiple_of({pointers}, {row.align})"
        lines.append(f"row_{i} = {pointers}")
        for lanes, mask in row.pieces():
            inside = f" & ({mask})[None, :]" if mask else ""
            lanes = f"({lanes})" if "+" in lanes else lanes
            yield f"row_{i}[:, None] + {lanes}[None, :]", f"has[:, None]{inside}"
