"""Wrong specs, each refused with a counterexample that is one: its numbers are put into the spec's
own formulas, written once more in Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product

import pytest

from fuscoc.source import SourceFile
from tests.lang.found import found_in

Case = tuple[str, str, str, str, Callable[..., bool]]
CASES: dict[str, Case] = {}


def case(name: str, code: str, marked: str, note: str, text: str) -> Callable[..., None]:
    """A spec ``text`` that is refused by ``code`` at the words ``marked``, with a ``note`` in which
    every # is a number. What it decorates says whether these are a counterexample."""

    def put(holds: Callable[..., bool]) -> None:
        CASES[name] = (code, marked, note, text, holds)

    return put


TWO = "on # ranks, the segments ({}) = ({}) of rank # and ({}) of rank # both go to [{}] on rank #"


@case(
    "patches that are written twice",
    "FSC059",
    "patches[i]",
    TWO.format("i, run_y", "#, #", "#, #", "#"),
    """
  const p = 4, rows = 3
  index i : rows
  segment patch { x : u8[p, 8] }
  layout sequence[i] of patch
  layout picture[y] of u8[8] dense(rows * p)
  view patches[i] = picture[i * 2 .. i * 2 + p]
  dispatch sequence[i] -> patches[i] on rank""",
)
def patches(ranks: int, *numbers: int) -> bool:
    i, run, source, j, other_run, other, place, _ = numbers
    lines = 2 * i + run, 2 * j + other_run
    return source == other < ranks and i != j and lines == (place, place) and max(i, j) < 3


@case(
    "a transpose that drops a plane",
    "FSC037",
    "of_y[y % (ny / ranks), rank * (nz / ranks) + z]",
    "on # ranks, nothing goes to [#, #] on rank #",
    """
  const ny = 8, nz = 8
  index z : nz / ranks   index y : ny - 1
  segment line { x : c64[4] }
  layout of_z[z, y] of line
  layout of_y[q, r] of line dense(ny / ranks, nz)
  dispatch of_z[z, y] -> of_y[y % (ny / ranks), rank * (nz / ranks) + z] on y / (ny / ranks)""",
)
def planes(ranks: int, q: int, r: int, owner: int) -> bool:
    part = 8 // ranks
    points = product(range(ranks), range(part), range(7))
    reached = {(y % part, rank * part + z, y // part) for rank, z, y in points}
    return q < part and r < 8 and owner < ranks and (q, r, owner) not in reached


@case(
    "a packing that is not injective",
    "FSC059",
    "packed_rows[i * i_stride % rows]",
    TWO.format("i", "#", "#", "#"),
    """
  const rows = 12, i_stride = 8
  index i : rows
  segment row { x : f32 }
  layout mine[i] of row
  layout packed_rows[q] of row dense(rows)
  dispatch mine[i] -> packed_rows[i * i_stride % rows] on rank""",
)
def packing(ranks: int, i: int, source: int, j: int, other: int, slot: int, rank: int) -> bool:
    same = source == other == rank < ranks
    return same and i != j and max(i, j) < 12 and i * 8 % 12 == j * 8 % 12 == slot


@case(
    "a slice out of bounds",
    "FSC034",
    "rank * part + i .. rank * part + i + 2",
    "on rank # of #, where `i` is #, it covers # to #, and there are 0 to #",
    """
  const rows = 37, part = cdiv(rows, ranks)
  index i : part
  segment row { x : f32[2, 8] }
  layout matrix[y] of f32[8] dense(rows)
  view mine[i] = matrix[rank * part + i .. rank * part + i + 2]
  layout there[q] of row dense(part)
  dispatch mine[i] -> there[i] on rank""",
)
def slices(rank: int, ranks: int, i: int, first: int, last: int, most: int) -> bool:
    part = -(-37 // ranks)
    inside = rank < ranks and i < part and most == 36
    return inside and (first, last) == (rank * part + i, rank * part + i + 1) and last > most


@case(
    "a slot that the target does not have",
    "FSC034",
    "there[2 * i]",
    "on # ranks, the segment (i) = (#) of rank # goes to [#] on rank #, and there are 0 to # there",
    """
  const rows = 10
  index i : rows
  segment row { x : f32 }
  layout mine[i] of row
  layout there[q] of row dense(rows)
  dispatch mine[i] -> there[2 * i] on ranks - 1 - rank""",
)
def slots(ranks: int, i: int, source: int, slot: int, rank: int, most: int) -> bool:
    return i < 10 and slot == 2 * i > most == 9 and rank == ranks - 1 - source >= 0


@case(
    "a rank that does not exist",
    "FSC034",
    "on (y + 1) / (ny / ranks)",
    "on # ranks, the segment (z, y) = (#, #) of rank # goes to [#, #] on rank #, "
    "and there are ranks 0 to #",
    """
  const ny = 8, nz = 8
  index z : nz / ranks   index y : ny
  segment line { x : c64[4] }
  layout of_z[z, y] of line
  layout of_y[q, r] of line dense(ny / ranks, nz)
  dispatch of_z[z, y] -> of_y[y % (ny / ranks), rank * (nz / ranks) + z]
    on (y + 1) / (ny / ranks)""",
)
def owners(ranks: int, z: int, y: int, source: int, q: int, r: int, rank: int, most: int) -> bool:
    part = 8 // ranks
    inside = z < part and y < 8 and source < ranks and (q, r) == (y % part, source * part + z)
    return inside and rank == (y + 1) // part > most == ranks - 1


@case(
    "a coordinate of a grid of ranks that is none",
    "FSC034",
    "rank / across",
    "on rank # of #, it is #, and there are 0 to #",
    """
  const down = 2, across = ranks / down
  index i : 8
  segment row { x : c64[4] }
  layout mine[i] of row
  layout theirs[a, j, b] of row dense(8, across, down)
  dispatch mine[i] -> theirs[i, rank % across, rank / across] on 0""",
)
def coordinates(rank: int, ranks: int, found: int, most: int) -> bool:
    return rank < ranks and found == rank // (ranks // 2) > most == 1


@case(
    "a reply of the wrong shape",
    "FSC052",
    "reply sums[t] of pooled",
    "the rows of the points (t, k) = (#, #) and (#, #) both come back to `sums[#]`",
    """
  const bag = 3
  index t : bags   index k : bag   index p : 8
  segment id { row : i64 }
  segment pooled { x : f32[4] }
  layout ids[t, k] of id
  layout by_part[p, s] of id packed(s)
  place p on rank by block
  route part(t, k) -> p = input parts : int64
  dispatch ids[t, k] -> by_part[part(t, k), *]
  reply sums[t] of pooled""",
)
def replies(t: int, k: int, other_t: int, other_k: int, row: int) -> bool:
    return t == other_t == row and k != other_k and max(k, other_k) < 3


@case(
    "an `into` with two rows in one place",
    "FSC059",
    "memory[s / 2]",
    TWO.format("s", "#", "#", "#"),
    """
  index t : 8   index s : 8
  segment row { x : f32 }
  layout mine[t] of row
  layout there[s] of row
  layout memory[m] of row dense(4)
  dispatch mine[t] -> there[t + 0] on rank  into memory[s / 2]""",
)
def kept(ranks: int, s: int, source: int, other_s: int, other: int, place: int, rank: int) -> bool:
    same = source == other == rank < ranks
    return same and s != other_s and max(s, other_s) < 8 and s // 2 == other_s // 2 == place


@case(
    "an `into` that aliases its source",
    "FSC063",
    "into memory[7 - s]",
    "on one rank: the segment (t) = (#) is read at [#], where the row (s) = (#) goes",
    """
  index t : 4   index s : 4
  segment row { x : f32 }
  layout memory[m] of row dense(8)
  layout there[s] of row
  view mine[t] = memory[t * 2]
  dispatch mine[t] -> there[t + 0] on rank  into memory[7 - s]""",
)
def aliases(t: int, cell: int, s: int) -> bool:
    return max(t, s) < 4 and 2 * t == 7 - s == cell


@case(
    "halos that lie on each other",
    "FSC059",
    "padded[reach + i]",
    TWO.format("i, p", "#, #", "#, #", "#"),
    """
  const rows = 64, reach = 2
  index i : rows / ranks   index p : ranks
  segment line { x : f32 }
  layout mine[i] of line
  layout padded[q] of line dense(reach + rows / ranks + reach)
  dispatch mine[i] -> padded[reach + i] on p  clip""",
)
def halos(ranks: int, *numbers: int) -> bool:
    i, p, source, j, other_p, other, slot, rank = numbers
    inside = max(i, j) < 64 // ranks and p == other_p == rank < ranks
    return inside and (source, i) != (other, j) and i == j == slot - 2


@case(
    "a way back into windows that overlap",
    "FSC070",
    "combine reverse",
    "(#, #) and (#, #), where `lines` is #, share a cell",
    """
  index n : lines   index i : 7
  segment window { x : u8[4, 2] }
  layout cells[n, y] of u8[2] dense(16)
  view windows[n, i] = cells[n, 2*i .. 2*i+4]
  layout there[q] of window dense(64)
  route to(n) -> (rank, first) = input to : int64[2]
  dispatch windows[n, i] -> there[to(n).first + i] on to(n).rank
  combine reverse""",
)
def windows(n: int, i: int, other: int, j: int, lines: int) -> bool:
    both = set(range(2 * i, 2 * i + 4)) & set(range(2 * j, 2 * j + 4))
    return n == other < lines and i != j and max(i, j) < 7 and bool(both)


@pytest.mark.parametrize("name", CASES)
def test_the_counterexample_is_one(name: str) -> None:
    code, marked, note, text, holds = CASES[name]
    source = SourceFile("wrong.fsc", f"shuffle wrong {{{text}\n}}\n")
    [found] = found_in(source)
    span = found.primary.span
    assert (found.code, source.text[span.start : span.end]) == (code, marked)
    [words] = found.notes
    numbers = re.fullmatch(re.escape(note).replace(r"\#", r"(-?\d+)"), words)
    assert numbers is not None, words
    assert holds(*map(int, numbers.groups())), words
