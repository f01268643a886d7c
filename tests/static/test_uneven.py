"""Parts of which some are smaller, against numpy and torch, which have the whole in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuscoc.lang.check import check
from fuscoc.pipeline import compile_to_ir
from fuscoc.planning.points import points_of
from fuscoc.source import SourceFile
from fuscoc.testing.spec import describe
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.topology import Topology
from tests.drawn import at_night
from tests.static import specs

GRIDS = ("1x4", "2x2")
FEW = settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
"""Of sizes that are compiled in, beside those that are written down."""

grids = st.sampled_from(GRIDS)


def parts_of(whole: int, count: int) -> list[slice]:
    """Blocks that are rounded up, as DTensor makes them; the last may be empty."""
    size = -(-whole // count)
    return [slice(min(size * at, whole), min(size * (at + 1), whole)) for at in range(count)]


def dealt_out(whole: int, block: int, count: int) -> list[list[int]]:
    """The numbers below ``whole`` that each of ``count`` has, dealt out in blocks."""
    return [[n for n in range(whole) if n // block % count == at] for at in range(count)]


class Exchange:
    """One shuffle on all ranks; what goes there and comes back, one tensor a rank."""

    def __init__(self, artifact: Artifact, name: str, topology: str) -> None:
        self.shuffle = LockstepShuffle(artifact, name, topology=Topology.parse(topology))

    def there(self, parts: Sequence[Tensor]) -> list[Tensor]:
        done = self.shuffle.dispatch([[part] for part in parts], [{} for _ in parts])
        self.handles = [each.handle for each in done]
        return [next(iter(each.rows.values())).clone() for each in done]

    def back(self, rows: Sequence[Tensor]) -> list[Tensor]:
        results = self.shuffle.combine(rows, self.handles, [{} for _ in rows])
        return [next(iter(result.values())) for result in results]


@given(grids, st.integers(1, 24), st.integers(1, 12), st.integers(1, 5), st.integers(1, 4))
@example("1x4", 13, 7, 2, 3)
@example("2x2", 13, 7, 2, 3)
@FEW
def test_reshard(topology: str, rows: int, columns: int, high: int, wide: int) -> None:
    """Blocks of rows to ScaLAPACK's layout, and back."""
    across = 2
    artifact = specs.artifact("reshard.fsc", rows=rows, columns=columns, high=high, wide=wide)
    exchange = Exchange(artifact, "reshard", topology)
    matrix = torch.randn(rows, columns, 4)
    blocks = [matrix[part] for part in parts_of(rows, 4)]
    held = product(dealt_out(rows, high, 4 // across), dealt_out(columns, wide, across))
    found = exchange.there(blocks)
    for here, (some_rows, some_columns) in zip(found, held, strict=True):
        wanted = matrix[some_rows][:, some_columns]
        assert torch.equal(here.view(wanted.shape), wanted)
    for here, block in zip(exchange.back(found), blocks, strict=True):
        assert torch.equal(here, block)


@given(grids, st.integers(1, 5).map((2).__mul__), st.integers(1, 9), st.integers(1, 7))
@example("1x4", 8, 7, 6)
@example("2x2", 4, 1, 3)
@FEW
def test_fft_of_pencils(topology: str, nx: int, ny: int, nz: int) -> None:
    """A distributed 3-D FFT and its inverse, against the local one."""
    down, across = 2, 2
    artifact = specs.artifact("fft_pencil.fsc", nx=nx, ny=ny, nz=nz)
    x_to_y = Exchange(artifact, "x_to_y", topology)
    y_to_z = Exchange(artifact, "y_to_z", topology)
    grid = torch.randn(nz, ny, nx, dtype=torch.complex64)
    places = list(product(range(down), range(across)))
    some_z, some_y, part_y = parts_of(nz, across), parts_of(ny, down), parts_of(ny, across)

    parts = [grid[some_z[b], some_y[a]] for a, b in places]
    lines = x_to_y.there([transformed(part, 2) for part in parts])
    lines = [each.view(-1, ny, nx // down) for each in lines]
    planes = y_to_z.there([transformed(each, 1) for each in lines])
    planes = [transformed(each.view(-1, nz, nx // down), 1) for each in planes]

    wanted = torch.fft.fftn(grid)
    for (a, b), found in zip(places, planes, strict=True):
        some_x = slice(a * nx // down, (a + 1) * nx // down)
        here = wanted[:, part_y[b], some_x].transpose(0, 1)
        torch.testing.assert_close(found, here, rtol=1e-4, atol=1e-4)

    planes = [transformed(each, 1, inverse=True).flatten(0, 1) for each in planes]
    lines = [transformed(each, 1, inverse=True).flatten(0, 1) for each in y_to_z.back(planes)]
    for part, found in zip(parts, x_to_y.back(lines), strict=True):
        torch.testing.assert_close(transformed(found, 2, inverse=True), part, rtol=1e-4, atol=1e-4)


@given(grids, st.booleans(), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2))
@example("1x4", False, 3, 2, 1)
@example("2x2", True, 3, 2, 1)
@FEW
def test_transpose_of_an_fft(topology: str, is_complex: bool, nx: int, ny: int, nz: int) -> None:
    """Planes of z become planes of y, as pairs of reals or as complex numbers."""
    text = (specs.EXAMPLES / "fft_transpose.fsc").read_text(encoding="utf-8")
    text = text.replace("f32[nx, 2]", "complex64[nx]") if is_complex else text
    artifact = specs.artifact(text, nx=nx, ny=4 * ny, nz=4 * nz)
    exchange = Exchange(artifact, "fft_transpose", topology)
    grid = torch.randn(4 * nz, 4 * ny, nx, dtype=torch.complex64)
    grid = grid if is_complex else torch.view_as_real(grid)
    planes = list(grid.chunk(4))
    found = exchange.there(planes)
    for here, wanted in zip(found, grid.transpose(0, 1).chunk(4), strict=True):
        assert torch.equal(here.view(wanted.shape), wanted)
    for here, plane in zip(exchange.back(found), planes, strict=True):
        assert torch.equal(here, plane)


def transformed(part: Tensor, dim: int, *, inverse: bool = False) -> Tensor:
    """The FFT of a part, which may be empty."""
    if not part.numel():
        return part
    return (torch.fft.ifft if inverse else torch.fft.fft)(part, dim=dim)


@dataclass(frozen=True)
class Dealt:
    """Rows in blocks that are dealt out over the ranks; in one part each without a ``block``."""

    block: int | None

    def of(self, rows: int, ranks: int) -> list[list[int]]:
        """The rows that every rank has, in their order there."""
        return dealt_out(rows, self.block or -(-rows // ranks), ranks)

    def constants(self, name: str) -> str:
        """What a spec calls the size of a block, that of a cycle, and the rows of a rank."""
        lines = [
            f"const {name} = {self.block or 'cdiv(rows, ranks)'}, {name}_cycle = {name} * ranks",
            f"const {name}_rest = max(min(rows % {name}_cycle - rank * {name}, {name}), 0)",
            f"const {name}_rows = rows / {name}_cycle * {name} + {name}_rest",
        ]
        if self.block is None:
            lines[1:] = [f"const {name}_rows = max(min({name}, rows - rank * {name}), 0)"]
        return "\n  ".join(lines)


@dataclass(frozen=True)
class Case:
    """A matrix whose rows are dealt out anew, and maybe become columns."""

    rows: int
    columns: int
    before: Dealt
    after: Dealt
    transposed: bool

    @property
    def text(self) -> str:
        place = "row(i) / b_cycle * b + row(i) % b"
        dims, target = ("b_rows, columns", f"{place}, c + 0")
        if self.transposed:
            dims, target = ("columns, b_rows", f"c + 0, {place}")
        return f"""
shuffle dealt {{
  const rows = {self.rows}, columns = {self.columns}
  {self.before.constants("a")}
  {self.after.constants("b")}
  index i : a_rows
  index c : columns
  segment cell {{ x : u8 }}
  layout  from[i, c] of cell
  layout  to[y, x]   of cell  dense({dims})
  route   row(i) -> y = (i / a * ranks + rank) * a + i % a
  dispatch from[i, c] -> to[{target}] on row(i) / b % ranks
}}"""


def deals() -> st.SearchStrategy[Dealt]:
    return st.builds(Dealt, st.none() | st.integers(1, 9))


cases = st.builds(Case, st.integers(1, 40), st.integers(1, 5), deals(), deals(), st.booleans())


def check_case(case: Case, ranks: int) -> None:
    """Every cell goes to where numpy finds it."""
    (checked,) = check(SourceFile("dealt.fsc", case.text))
    module = compile_to_ir(checked, after="coalesce-segments").module
    spec, topology = describe(checked), Topology(1, ranks)
    points = points_of(module, spec, topology, [RankData({}, {}, {}) for _ in range(ranks)])
    held, wanted = case.before.of(case.rows, ranks), case.after.of(case.rows, ranks)
    place = {row: (at, number) for at, some in enumerate(wanted) for number, row in enumerate(some)}
    for some, found in zip(held, points, strict=True):
        cells = []
        for number, row in enumerate(some):
            rank, y = place[row]
            for c in range(case.columns):
                slot = c * len(wanted[rank]) + y if case.transposed else y * case.columns + c
                cells.append([number * case.columns + c, rank, slot])
        columns = [found.columns[name] for name in ("src_offset", "rank", "slot")]
        assert np.stack(columns, 1).tolist() == cells
    assert [each.target_length for each in points] == [len(some) * case.columns for some in wanted]


@settings(max_examples=at_night(25))
@given(cases, st.integers(1, 6))
@example(Case(10, 2, Dealt(None), Dealt(3), True), 4)
def test_what_is_dealt_out_anew(case: Case, ranks: int) -> None:
    check_case(case, ranks)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@settings(max_examples=1000)
@given(cases, st.integers(1, 6))
def test_what_is_dealt_out_anew_at_night(case: Case, ranks: int) -> None:
    check_case(case, ranks)
