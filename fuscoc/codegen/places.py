"""Where the segments of a field lie in memory, at both ends of a copy, in the elements that move.

Copies move whole words, whatever the dtype; reductions move elements of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any

from fuscoc.dialect.base import PassError
from fuscoc.dialect.dtypes import num_bytes
from fuscoc.dialect.runs import UNITS

# Every buffer begins at a multiple of so many bytes.
ALIGNMENT = 16
# How a column that counts cells of the source layout ends.
IN_SOURCE = "_offset"


@dataclass(frozen=True)
class Stride:
    """A run-time stride: the entry of ``column``, in cells, ``times`` .. ``over`` .. elements.

    The result is a multiple of ``multiple``.
    """

    column: str
    times: int
    over: int
    multiple: int


@dataclass(frozen=True)
class Place:
    """An array of segments: entries count ``step_bytes``, addresses are multiples of ``align``.

    With ``counts``, a segment is runs of ``run`` elements in nested loops, outermost first, whose
    ``strides`` are in elements.
    """

    step_bytes: int
    align: int
    run: int = 0
    counts: tuple[int, ...] = ()
    strides: tuple[int | Stride, ...] = ()


@dataclass(frozen=True)
class Field:
    """One field's way through a kernel: ``num_elems`` elements, as dtypes in memory and summed."""

    name: str
    num_elems: int
    loaded: str
    summed: str
    stored: str
    src: Place
    dst: Place

    def place(self, side: str) -> Place:
        """The place at the source (``src``) or destination (``dst``)."""
        return self.src if side == "src" else self.dst


def fields_of(shuffle: Any, rows: Iterable[Mapping[str, Any]], src: str, dst: str) -> list[Field]:
    """The fields of a shuffle between two ends, which list columns (``src_offset``) name.

    ``rows`` gives the dtypes of a sum by field; without any, bits are copied.
    """
    sums = {row["name"]: row for row in rows}
    fields = []
    for runs in shuffle.read("runs"):
        seg_bytes = runs["seg_elems"] * num_bytes(runs["dtype"])
        row = sums.get(runs["name"])
        if row is None:
            in_source = src.endswith(IN_SOURCE) or dst.endswith(IN_SOURCE)
            unit = runs["unit_bytes"] if in_source else gcd(seg_bytes, ALIGNMENT)
            word = UNITS[unit]
            loaded = summed = stored = word
            num_elems = seg_bytes // num_bytes(word)
        else:
            loaded, summed, stored = row["src"], row["acc"], row["dst"]
            num_elems = runs["seg_elems"]
        fields.append(
            Field(
                runs["name"],
                num_elems,
                loaded,
                summed,
                stored,
                _place(shuffle, runs, src, loaded, num_elems),
                _place(shuffle, runs, dst, stored, num_elems),
            )
        )
    return fields


def _place(shuffle: Any, runs: Mapping[str, Any], column: str, dtype: str, num_elems: int) -> Place:
    """How segments lie at the end that ``column`` indexes, in elements of ``dtype``."""
    elem_bytes = num_bytes(dtype)
    if not column.endswith(IN_SOURCE):
        step = num_elems * elem_bytes
        return Place(step, gcd(step, ALIGNMENT))
    own_bytes = num_bytes(runs["dtype"])
    cell_bytes = runs["cell_elems"] * own_bytes
    place = Place(cell_bytes, runs["unit_bytes"])
    if not runs["run_dims"]:
        return place
    run = runs["run_elems"] * own_bytes // elem_bytes
    counts = tuple(dim["count"] for dim in runs["run_dims"])
    for position, dim in enumerate(runs["run_dims"]):
        if dim["dst_stride"] != runs["run_elems"] * prod(counts[position + 1 :]):
            raise PassError(shuffle, f"has runs of '{runs['name']}' that change their order")
    side = column.removesuffix(IN_SOURCE)
    strides = tuple(
        _stride(dim["src_stride"], side, cell_bytes, elem_bytes, runs["unit_bytes"])
        for dim in runs["run_dims"]
    )
    return replace(place, run=run, counts=counts, strides=strides)


def _stride(
    cells: int | str, side: str, cell_bytes: int, elem_bytes: int, unit_bytes: int
) -> int | Stride:
    if isinstance(cells, int):
        return cells * cell_bytes // elem_bytes
    common = gcd(cell_bytes, elem_bytes)
    return Stride(
        column=f"{side}{cells.removeprefix('src')}",
        times=cell_bytes // common,
        over=elem_bytes // common,
        multiple=max(unit_bytes // elem_bytes, 1),
    )
