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
class Scales:
    """The ``num`` f32 factors of a field, one for every ``block`` of its elements.

    They are made and stored beside the field if ``made``, else loaded and applied.
    """

    name: str
    num: int
    block: int
    made: bool
    place: Place


@dataclass(frozen=True)
class Field:
    """One field's way through a kernel: ``num_elems`` elements, as dtypes in memory and summed.

    Where no sum is taken, a field that is loaded and stored as different dtypes is cast; one with
    ``factors`` becomes ``(x - shift) * factor``, by channel, before it is, and one with
    ``channels`` by as many numbers of the call.
    """

    name: str
    num_elems: int
    loaded: str
    summed: str
    stored: str
    src: Place
    dst: Place
    scales: Scales | None = None
    shifts: tuple[float, ...] = ()
    factors: tuple[float, ...] = ()
    channels: int | None = None

    @property
    def elem_bytes(self) -> int:
        """Bytes of an element at the end where it is longer."""
        return max(num_bytes(self.loaded), num_bytes(self.stored))

    def place(self, side: str) -> Place:
        """The place at the source (``src``) or destination (``dst``)."""
        return self.src if side == "src" else self.dst


def fields_of(shuffle: Any, rows: Iterable[Mapping[str, Any]], src: str, dst: str) -> list[Field]:
    """The fields of a source's segment between two ends, which list columns (``src_offset``) name.

    ``rows`` gives the dtypes of a sum by field; without any, bits are copied.
    """
    sums = {row["name"]: row for row in rows}
    fields = []
    for runs in shuffle.read("runs"):
        row = sums.get(runs["name"])
        if row is None:
            fields.append(_copied(shuffle, runs, src, dst))
            continue
        loaded, stored, num_elems = row["src"], row["dst"], runs["seg_elems"]
        ends = (
            _place(shuffle, runs, src, loaded, num_elems),
            _place(shuffle, runs, dst, stored, num_elems),
        )
        fields.append(Field(runs["name"], num_elems, loaded, row["acc"], stored, *ends))
    return fields


def target_fields(shuffle: Any) -> list[Field]:
    """The fields of a target's segment between two arrays of rows."""
    return [
        _copied(shuffle, {"name": name, "dtype": dtype, "seg_elems": num_elems}, "", "")
        for name, (dtype, num_elems) in _arriving(shuffle).items()
    ]


def partial_fields(shuffle: Any, dtypes: Mapping[str, str]) -> list[Field]:
    """The fields of partial results, by name in ``dtypes``, between two arrays of rows."""
    return [
        _copied(shuffle, {**runs, "dtype": dtypes[runs["name"]]}, "", "")
        for runs in shuffle.read("runs")
    ]


def cast_fields(shuffle: Any, src: str, dst: str) -> list[Field]:
    """The fields of a target's segment, made from rows of the source's."""
    leaving = {runs["name"]: runs for runs in shuffle.read("runs")}
    casts = {cast["field"]: cast for cast in shuffle.read("casts")}
    arriving = _arriving(shuffle)
    made = {cast["scales"] for cast in casts.values()}
    fields = []
    for name, (stored, num_elems) in arriving.items():
        if name in made:
            continue
        runs, cast = leaving[name], casts.get(name)
        if cast is None:
            fields.append(_copied(shuffle, runs, src, dst))
            continue
        scales = None
        if cast["scales"] is not None:
            is_made, block = cast["scales"] in arriving, cast["block"]
            own = {"name": cast["scales"], "dtype": "f32", "seg_elems": num_elems // block}
            own = leaving.get(cast["scales"], own)
            place = _place(shuffle, own, dst if is_made else src, "f32", own["seg_elems"])
            scales = Scales(own["name"], own["seg_elems"], block, is_made, place)
        loaded = runs["dtype"]
        ends = (
            _place(shuffle, runs, src, loaded, num_elems),
            _place(shuffle, runs, dst, stored, num_elems),
        )
        numbers = cast["shifts"], cast["factors"], cast["channels"]
        fields.append(Field(name, num_elems, loaded, "f32", stored, *ends, scales, *numbers))
    return fields


def _arriving(shuffle: Any) -> dict[str, tuple[str, int]]:
    """The fields of the target's segment: name -> (dtype, elements)."""
    fields = shuffle.follow("segment").read("fields")
    return {field["name"]: (field["type"][0], prod(field["type"][1])) for field in fields}


def _copied(shuffle: Any, runs: Mapping[str, Any], src: str, dst: str) -> Field:
    """A field whose bits move, in words as long as its rows allow."""
    seg_bytes = runs["seg_elems"] * num_bytes(runs["dtype"])
    in_source = src.endswith(IN_SOURCE) or dst.endswith(IN_SOURCE)
    unit = runs["unit_bytes"] if in_source else gcd(seg_bytes, ALIGNMENT)
    word = UNITS[unit]
    num_elems = seg_bytes // num_bytes(word)
    ends = tuple(_place(shuffle, runs, end, word, num_elems) for end in (src, dst))
    return Field(runs["name"], num_elems, word, word, word, ends[0], ends[1])


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
