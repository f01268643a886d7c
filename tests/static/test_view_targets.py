"""Segments that arrive as runs of a larger tensor, against assignments to slices in numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.topology import Topology
from tests.static import specs
from tests.static.test_uneven import grids

RANKS = 4


@dataclass(frozen=True)
class Tiles:
    """Tiles of ``p`` x ``q`` cells at (i * p + dy, j * q + dx) of a grid, or strips of one row or
    one column if only ``x`` or ``y`` are ranges. ``sliced``: the source is a view, too. There are
    ``more`` cells behind the last tiles."""

    p: int
    q: int
    dy: int
    dx: int
    ranged: str
    sliced: bool
    more: int
    seed: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The cells of a segment."""
        return tuple({"y": self.p, "x": self.q}[each] for each in self.ranged)

    @property
    def grid(self) -> tuple[int, int]:
        return 3 * self.p + self.dy + self.more, 2 * self.q + self.dx + self.more

    @property
    def text(self) -> str:
        y = f"i*{self.p}+{self.dy}" + f" .. i*{self.p}+{self.dy + self.p}" * ("y" in self.ranged)
        x = f"j*{self.q}+{self.dx}" + f" .. j*{self.q}+{self.dx + self.q}" * ("x" in self.ranged)
        shape = ", ".join(map(str, (*self.shape, 2)))
        source = "layout list[s] of tile"
        if self.sliced:
            first = self.shape[0]
            rest = [f"0 .. {length}" for length in self.shape[1:]]
            dims = ", ".join(["a", "b"][: len(self.shape)])
            given = ", ".join([f"tiles * {first}", *map(str, self.shape[1:])])
            runs = ", ".join([f"s*{first} .. s*{first}+{first}", *rest])
            source = f"layout table[{dims}] of i16[2] dense({given})\n view list[s] = table[{runs}]"
        return f"""
shuffle tiles {{
  index s : tiles   index n : 2   index i : 3   index j : 2
  segment tile {{ x : i16[{shape}] }}
  {source}
  layout grid[n, y, x] of i16[2] dense({self.grid[0]}, {self.grid[1]})
  view   there[n, i, j] = grid[n, {y}, {x}]
  route  to(s) -> (rank, n, i, j) = input places : int64[4]
  dispatch list[s] -> there[to(s).n, to(s).i, to(s).j] on to(s).rank
  combine reverse
}}"""

    def at(self, n: int, i: int, j: int) -> tuple[int, slice | int, slice | int]:
        y, x = i * self.p + self.dy, j * self.q + self.dx
        rows = slice(y, y + self.p) if "y" in self.ranged else y
        columns = slice(x, x + self.q) if "x" in self.ranged else x
        return n, rows, columns


small = st.integers(1, 3)
tiles = st.builds(
    Tiles, small, small, st.integers(0, 2), st.integers(0, 2), st.sampled_from(["yx", "y", "x"]),
    st.booleans(), st.integers(0, 2), st.integers(0, 99),
)  # fmt: skip


@given(tiles)
@example(Tiles(3, 2, 0, 0, "yx", False, 0, 1))
@example(Tiles(2, 2, 1, 1, "yx", False, 1, 3))  # whole runs, each amid two slots
@example(Tiles(2, 3, 1, 1, "yx", True, 2, 2))
@settings(max_examples=4, suppress_health_check=list(HealthCheck), deadline=None)
def test_tiles_of_a_grid(case: Tiles) -> None:
    shuffle = LockstepShuffle(specs.artifact(case.text), topology=Topology.parse("2x2"))
    random = np.random.default_rng(case.seed)
    places = [(r, n, i, j) for r in range(RANKS) for n in (0, 1) for i in range(3) for j in (0, 1)]
    chosen = random.permutation(np.array(places))[: 5 * RANKS]
    chosen[::7, 0] = -1
    shape = 2, *case.grid, 2
    wanted = np.zeros((RANKS, *shape), np.int16)
    written = np.zeros((RANKS, *shape), bool)
    sources = random.integers(-99, 99, (len(chosen), *case.shape, 2)).astype(np.int16)
    for (rank, n, i, j), values in zip(chosen.tolist(), sources, strict=True):
        if rank >= 0:
            wanted[rank][case.at(n, i, j)] = values
            written[rank][case.at(n, i, j)] = True
    given = [torch.from_numpy(each) for each in np.split(sources, RANKS)]
    if case.sliced:
        given = [each.flatten(0, 1) for each in given]
    inputs = [{"places": torch.from_numpy(each)} for each in np.split(chosen, RANKS)]
    done = shuffle.dispatch([[each] for each in given], inputs)
    for each, here, mask in zip(done, wanted, written, strict=True):
        found = each.rows["x"].reshape(here.shape).numpy()
        assert np.array_equal(found[mask], here[mask])
    rows, handles = [each.rows["x"] for each in done], [each.handle for each in done]
    back = shuffle.combine(rows, handles, [{}] * RANKS)
    for result, there, data in zip(back, given, np.split(chosen, RANKS), strict=True):
        live = torch.from_numpy(data[:, 0] >= 0)
        values = result["x"].view(len(live), -1)
        assert torch.equal(values[live], there.reshape(len(live), -1)[live])
        assert not values[~live].any()


OF_THE_RECEIVER = """
shuffle strips {
  const p = 3
  index i : ranks
  index j : ranks
  segment strip { x : i16[p] }
  layout mine[i] of strip
  layout wide[y] of i16 dense(ranks * p + rank)
  view   at[j] = wide[j*p + rank .. j*p + rank + p]
  dispatch mine[i] -> at[rank] on i  partial
}"""


def test_rank_in_a_view_is_that_of_the_receiver() -> None:
    shuffle = LockstepShuffle(specs.artifact(OF_THE_RECEIVER), topology=Topology.parse("2x2"))
    strips = torch.arange(RANKS * RANKS * 3, dtype=torch.int16).view(RANKS, RANKS, 3)
    done = shuffle.dispatch([[each] for each in strips], [{}] * RANKS)
    for rank, each in enumerate(done):
        assert len(each.rows["x"]) == RANKS * 3 + rank
        assert torch.equal(each.rows["x"][rank:].flatten(), strips[:, rank].flatten())


def unpack(topology: str, places: Tensor, patches: Tensor, images: int) -> list[Tensor]:
    """What four ranks have of the pictures of 3 x 2 patches of 2 x 2, [images, 6, 4, 3] each."""
    artifact = specs.artifact("vit_unpack.fsc", p=2, rows=3, columns=2)
    shuffle = LockstepShuffle(artifact, topology=Topology.parse(topology))
    named = [{"places": part, "images": images} for part in places.chunk(RANKS)]
    done = shuffle.dispatch([[part] for part in patches.chunk(RANKS)], named)
    return [each.rows["pixels"].reshape(images, 6, 4, 3) for each in done]


@given(grids, st.integers(1, 3), st.integers(0, 99), st.floats(0, 1))
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
def test_vit_unpack(topology: str, images: int, seed: int, kept: float) -> None:
    """It is the inverse of unfold, as ``fold`` has it, on whichever rank; some patches are for
    nobody."""
    random = torch.Generator().manual_seed(seed)
    order = torch.randperm(RANKS * images * 6, generator=random)
    rank, n, i, j = (
        each.flatten()[order]
        for each in torch.meshgrid(*map(torch.arange, (RANKS, images, 3, 2)), indexing="ij")
    )
    pictures = torch.randint(256, (RANKS, images, 6, 4, 3), dtype=torch.uint8, generator=random)
    patches = pictures.unfold(2, 2, 2).unfold(3, 2, 2)[rank, n, i, j].permute(0, 2, 3, 1)
    goes = torch.rand(len(order), generator=random) < kept
    places = torch.where(goes[:, None], torch.stack([rank, n, i, j], 1), -1)
    found = torch.stack(unpack(topology, places, patches.contiguous(), images))
    there = found.unfold(2, 2, 2).unfold(3, 2, 2)[rank[goes], n[goes], i[goes], j[goes]]
    assert torch.equal(there.permute(0, 2, 3, 1), patches[goes])


@pytest.mark.parametrize(
    ("place", "code"),
    [((0, 2, 0, 0), "FSR013"), ((0, 0, 3, 0), "FSR010"), ((0, 1, 0, 1), "FSR012")],
    ids=["no such picture", "no such row", "two patches in one place"],
)
def test_places_are_checked(place: tuple[int, ...], code: str) -> None:
    places = torch.full((RANKS, 4), -1)
    places[0], places[1] = torch.tensor(place), torch.tensor((0, 1, 0, 1))
    patches = torch.zeros(RANKS, 2, 2, 3, dtype=torch.uint8)
    with pytest.raises(FuscoRuntimeError) as refused:
        unpack("1x4", places, patches, images=2)
    assert refused.value.code == code
