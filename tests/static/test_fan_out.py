"""Segments that go to every rank, or to those that have a place for them, against whole tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuscoc.lang.check import check
from fuscoc.pipeline import compile_to_ir
from fuscoc.planning.points import points_of
from fuscoc.source import SourceFile
from fuscoc.testing.spec import describe
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.topology import Topology
from tests.static import specs
from tests.static.test_uneven import FEW, Exchange, grids, parts_of


@given(grids, st.integers(1, 14))
@example("1x4", 10)
@example("2x2", 3)
@FEW
def test_all_gather(topology: str, total: int) -> None:
    """All tokens are everywhere; what comes back is the sum over the ranks."""
    exchange = Exchange(
        specs.artifact("all_gather.fsc", total=total, width=4), "all_gather", topology
    )
    tokens = torch.randn(total, 4).bfloat16()
    parts = [tokens[part] for part in parts_of(total, 4)]
    found = exchange.there(parts)
    for here in found:
        assert torch.equal(here, tokens)
    back = exchange.back([rows * scale for scale, rows in enumerate(found)])
    for here, part in zip(back, parts, strict=True):
        torch.testing.assert_close(here, part * (0 + 1 + 2 + 3))


def test_a_node_gets_a_token_once() -> None:
    """Each of two nodes of two ranks sends its own tokens over the network once, of 10 in all."""
    exchange = Exchange(specs.artifact("all_gather.fsc", total=10, width=4), "all_gather", "2x2")
    tokens = torch.randn(10, 4).bfloat16()
    exchange.there([tokens[part] for part in parts_of(10, 4)])
    sent = [len(each.plan.lists["net_send"]["src_offset"]) for each in exchange.handles]
    assert sent == [3, 3, 3, 1]


@given(grids, st.integers(1, 14), st.integers(0, 7))
@example("1x4", 13, 2)
@example("2x2", 13, 6)
@example("2x2", 5, 1)
@FEW
def test_halo(topology: str, lines: int, reach: int) -> None:
    """Windows of the padded whole, also those that reach beyond a neighbour; back it is unfold's
    transpose: every line gets what all windows have of it."""
    artifact = specs.artifact("halo.fsc", rows=lines, reach=reach, width=3)
    exchange = Exchange(artifact, "halo", topology)
    whole = torch.randn(lines, 3)
    parts = parts_of(lines, 4)
    found = exchange.there([whole[part] for part in parts])
    wanted = torch.zeros_like(whole)
    made = []
    for rank, here in enumerate(found):
        begin, count = rank * -(-lines // 4), parts[rank].stop - parts[rank].start
        start = min(max(begin - reach, 0), lines)
        seen = slice(start, max(min(begin + count + reach, lines), start))
        first = seen.start - begin + reach
        inside = slice(first, first + seen.stop - seen.start)
        assert len(here) == count + 2 * reach
        assert torch.equal(here[inside], whole[seen])
        made.append(torch.randn_like(here))
        wanted[seen] += made[-1][inside]
    for here, part in zip(exchange.back(made), parts, strict=True):
        torch.testing.assert_close(here, wanted[part])


@dataclass(frozen=True)
class Window:
    """Cells of a grid of ranks, each with what is around its part; not all cells may be there."""

    high: int
    wide: int
    down: int
    across: int
    above: int
    left: int
    below: int
    right: int

    @property
    def text(self) -> str:
        return f"""
shuffle window {{
  const high = {self.high}, wide = {self.wide}, across = {self.across}
  const above = {self.above}, left = {self.left}
  index i : high   index j : wide   index p : ranks
  segment cell {{ x : i32 }}
  layout tile[i, j] of cell
  layout seen[y, x] of cell dense(above + high + {self.below}, left + wide + {self.right})
  dispatch tile[i, j] -> seen[above + (rank / across - p / across) * high + i,
                              left + (rank % across - p % across) * wide + j] on p clip
}}"""

    def cells(self) -> Tensor:
        """int64 [down * high, across * wide]: rank * cells of a rank + cell."""
        size = self.high * self.wide
        number = torch.arange(self.down * self.across * size)
        tiles = number.view(self.down, self.across, self.high, self.wide)
        return tiles.permute(0, 2, 1, 3).reshape(self.down * self.high, -1)


sizes, reaches = st.integers(1, 3), st.integers(0, 4)
windows = st.builds(Window, sizes, sizes, sizes, sizes, reaches, reaches, reaches, reaches)


@given(windows)
@example(Window(2, 3, 2, 2, 1, 1, 1, 1))
@example(Window(1, 1, 3, 3, 4, 0, 0, 4))
@settings(max_examples=15)
def test_windows_of_a_grid(window: Window) -> None:
    """Every slot gets the cell that lies there in the padded whole, and there are no others."""
    ranks = window.down * window.across
    (checked,) = check(SourceFile("window.fsc", window.text))
    module = compile_to_ir(checked, after="coalesce-segments").module
    data = [RankData({}, {}, {}) for _ in range(ranks)]
    points = points_of(module, describe(checked), Topology(1, ranks), data)
    found = set()
    for rank, each in enumerate(points):
        columns = np.stack([each.columns[name] for name in ("rank", "slot", "source")])
        live = columns[:, columns[0] >= 0]
        size = window.high * window.wide
        found |= {(to, slot, rank * size + cell) for to, slot, cell in live.T.tolist()}
    assert found == expected(window)


def expected(window: Window) -> set[tuple[int, int, int]]:
    """Rank, slot and cell of every slot that a cell of the whole lies in."""
    pad = window.left, window.right, window.above, window.below
    whole = torch.nn.functional.pad(window.cells(), pad, value=-1)
    shape = window.above + window.high + window.below, window.left + window.wide + window.right
    places = set()
    for rank in range(window.down * window.across):
        y, x = rank // window.across * window.high, rank % window.across * window.wide
        seen = whole[y : y + shape[0], x : x + shape[1]].flatten()
        places |= {(rank, at, cell) for at, cell in enumerate(seen.tolist()) if cell >= 0}
    return places
