"""What travels between two ranks, divided among communicators that carry it side by side.

Both ends of a pair of ranks know the bytes that pass between them, and nothing else counts: so they
divide alike, though ranks may send each of the others something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from fuscoc_runtime.comm.requests import Crossing, Rows

if TYPE_CHECKING:
    from torch import Tensor

LEAST_LANES = 2
"""Lanes that carry what one does not fill: with two, one fills the wire while the other starts."""

LANE_BYTES = 4_000_000
"""About what a lane carries to a rank at least: several small messages at a time take longer than a
large one."""

ALIGNMENT = 512
"""Of parts, in bytes, behind each other: messages begin where copies are fast."""


def lanes_of(num_bytes: int, most: int) -> int:
    """Lanes among which so many bytes for a rank are divided, where there are ``most``."""
    return max(1, min(most, num_bytes // LANE_BYTES))


def divided(what: Crossing, most: int) -> list[Crossing]:
    """An exchange of bytes, uint8 [n] each, as what every lane carries of it: of a pair of ranks
    about equal parts, on the first lanes. Together they are all of it, in its order."""
    sides = [[_parts(rows, most) for rows in side] for side in (what.sends, what.receives)]
    num_lanes = max((len(parts) for side in sides for parts in side), default=1)
    return [
        Crossing(*(tuple(parts[lane] for parts in side if lane < len(parts)) for side in sides))
        for lane in range(num_lanes)
    ]


def _parts(rows: Rows, most: int) -> list[Rows]:
    num_bytes = sum(map(len, rows.fields))
    count = lanes_of(num_bytes, most)
    cuts = [number * num_bytes // count // ALIGNMENT * ALIGNMENT for number in range(count)]
    return [
        Rows(rows.peer, tuple(_within(rows.fields, range(*each))))
        for each in pairwise([*cuts, num_bytes])
    ]


def _within(fields: Sequence[Tensor], part: range) -> Iterator[Tensor]:
    """What lies in a part of these, one behind the other."""
    begin = 0
    for field in fields:
        here = field[max(0, part.start - begin) : max(0, part.stop - begin)]
        begin += len(field)
        if len(here):
            yield here
