"""Static shuffles whose ranks have different numbers of rows, some of them none, to some ranks or
to all."""

from __future__ import annotations

UNEVEN = """
shuffle uneven {{
  const total = {total}, columns = {columns}, part = cdiv(total, ranks)
  index i : max(min(part, total - rank * part), 0)
  index c : columns
  {fanout}
  segment row {{ x : {dtype}[{width}] }}
  layout mine[i, c] of row
  layout theirs[s] of row dense({length})
  {weights}
  dispatch mine[i, c] -> theirs[{slot}] on {rank} partial
  combine reverse {reduce}
}}
"""
AT = "rank * part + i"
ENDS = {
    "cyclic": (f"({AT}) / ranks * columns + c", f"({AT}) % ranks", "cdiv(total, ranks) * columns"),
    "next": ("i * columns + c", "(rank + 1) % ranks", "part * columns"),
    "first": (f"({AT}) * columns + c", "0 * rank", "total * columns"),
    "column": (AT, "min(c, ranks - 1)", "total"),
    "every": ("k * part * columns + i * columns + c", "(rank + k) % ranks", "3 * part * columns"),
}
"""Slot, rank and number of slots of rows that are dealt out, that all go to the next rank, to the
first one, that stay together by columns, and that go to three ranks each, of which sums come
back."""


def uneven(
    kind: str, total: int, columns: int, dtype: str, width: int, is_weighted: bool = False
) -> str:
    """``total`` rows of some ``columns``; columns that stay together are at most the ranks. Sums
    may be weighted by `w`."""
    slot, rank, length = ENDS[kind]
    sums = kind == "every"
    return UNEVEN.format(
        total=total,
        columns=columns,
        fanout="index k : 3" if sums else "",
        dtype=dtype,
        width=width,
        length=length,
        slot=slot,
        rank=rank,
        weights="weight w(i, c, k) : f32 = input w" if is_weighted else "",
        reduce=f"reduce sum{'(w)' * is_weighted}" if sums else "",
    )


EVERYWHERE = """
shuffle everywhere {{
  const total = {total}, part = cdiv(total, ranks)
  index i : max(min(part, total - rank * part), 0)
  index k : 2
  index p : ranks
  segment row {{ x : {dtype}[{width}] }}
  layout mine[i] of row
  layout theirs[s] of row dense({length})
  dispatch mine[i] -> theirs[{slot}] on {rank} {which}
  combine reverse reduce sum
}}
"""
EVERY_RANK = {
    "gathered": (f"({AT}) * 2 + k", "p", "total * 2", "partial"),
    "turned": (f"({AT}) * 2 + k", "(rank + p) % ranks", "total * 2", "partial"),
    "halved": (f"(({AT}) * 2 + k) * 2 + p % 2", "p / 2", "total * 4", "partial"),
    "halo": (f"({{reach}} + {AT} - p * part) * 2 + k", "p", "(part + 2 * {reach}) * 2", "clip"),
}
"""Two copies of every row on every rank; from the next rank on; four of them on the first half of
the ranks; and on those that have a place for it."""


def everywhere(kind: str, total: int, reach: int, dtype: str, width: int) -> str:
    """``total`` rows to every rank or to those whose part is within ``reach``, and their sums."""
    slot, rank, length, which = (each.format(reach=reach) for each in EVERY_RANK[kind])
    return EVERYWHERE.format(
        total=total, dtype=dtype, width=width, length=length, slot=slot, rank=rank, which=which
    )
