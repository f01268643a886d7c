"""Targets that have slots without a segment, and may."""

from __future__ import annotations

import pytest

from fuscoc.source import SourceFile
from tests.lang.found import found_in

LEGAL = {
    "on one rank": "dispatch mine[i] -> all[rank * part + i] on 0  partial",
    "padding": "layout more[q] of row dense(part + 4)\n"
    "dispatch mine[i] -> more[4 + i] on (rank + 1) % ranks  partial",
    "into memory": "index m : rows\n layout memory[m] of row\n"
    "dispatch mine[i] -> all[rank * part + i] on 0  into memory[r + 0]",
    "clipped": "dispatch mine[i] -> all[part * (rank + 1) + i] on 0  clip",
    "room that uneven parts leave": "layout some[q] of row dense(part)\n"
    "index j : max(min(part, rows - rank * part), 0)\n layout even[j] of row\n"
    "dispatch even[j] -> some[j] on (rank + 1) % ranks",
    "what an input decides": "route to(i) -> slot = input slots : int64\n"
    "dispatch mine[i] -> all[to(i)] on 0",
}


def text(dispatch: str) -> str:
    return f"""shuffle some {{
  const rows = 24, part = cdiv(rows, ranks)
  index i : part   index r : rows
  segment row {{ x : f32[4] }}
  layout mine[i] of row
  layout all[r] of row
  {dispatch}
}}"""


def codes(dispatch: str) -> set[str]:
    found = found_in(SourceFile("some.fsc", text(dispatch)))
    return {each.code for each in found} - {"FSC090"}  # names that a case does without


@pytest.mark.parametrize("name", LEGAL)
def test_legal(name: str) -> None:
    assert not codes(LEGAL[name])


@pytest.mark.parametrize("name", ["on one rank", "padding"])
def test_only_if_said(name: str) -> None:
    assert codes(LEGAL[name].removesuffix("partial")) == {"FSC037"}
