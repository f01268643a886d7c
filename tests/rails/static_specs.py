"""Static shuffles whose ranks have different numbers of rows, some of them none."""

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
