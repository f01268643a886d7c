"""The example of patches: its packing against the best one, its shuffle against unfold, its model
against one that is given every picture by itself."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import unfold

import fuscoc
from examples.vit_patches import SIDES, Autoencoder, P, Size, pack, verify
from examples.vit_pictures import Shown, digits, draw
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.examples import vit_work
from tests.forked import run_program
from tests.gpus import torchrun

EXAMPLES = Path(__file__).parents[2] / "examples"
DECODED: list[list[Size]] = [[(3, 5), (1, 1), (4, 2), (2, 2)], [(2, 3)]]


pool = pool_of(2)


def patches(picture: Any) -> Any:
    """By torch: u8 [rows * columns, p, p, 3]."""
    channels = torch.from_numpy(picture).permute(2, 0, 1).float()
    columns = unfold(channels[None], P, stride=P)[0]
    return columns.T.reshape(-1, 3, P, P).permute(0, 2, 3, 1).to(torch.uint8).numpy()


sides = st.integers(SIDES.start, SIDES.stop - 1)


@given(st.lists(st.lists(st.tuples(sides, sides), max_size=3), min_size=1, max_size=3))
def test_packing(decoded: list[list[Size]]) -> None:
    packing, num_ranks = pack(decoded), len(decoded)
    assert list(packing.sizes) == [size for each in decoded for size in each]
    assert packing.loads(packing.sources, num_ranks) == [
        sum(rows * columns for rows, columns in each) for each in decoded
    ]
    areas = [rows * columns for rows, columns in packing.sizes]
    taken: list[list[int]] = [[] for _ in decoded]
    for target, offset, area in zip(packing.targets, packing.offsets, areas, strict=True):
        taken[target] += range(offset, offset + area)
    loads = packing.loads(packing.targets, num_ranks)
    assert [sorted(each) for each in taken] == [list(range(load)) for load in loads]
    # Graham, Bounds on multiprocessing timing anomalies (1969): what longest-first costs at most.
    best = min(
        max(np.bincount(choice, areas, num_ranks))
        for choice in itertools.product(range(num_ranks), repeat=len(areas))
    )
    assert 3 * num_ranks * max(loads) <= (4 * num_ranks - 1) * best


def test_packing_by_hand() -> None:
    packing = pack([[(3, 3), (5, 5)], [(4, 4)], []])
    assert packing.targets == [2, 0, 1]
    assert pack([[(2, 2), (3, 3), (1, 4)], []]).offsets == [0, 0, 4]
    packing = pack([[(1, 2), (2, 2)]])
    assert packing.places(0).tolist() == [
        [1, 0, 0], [1, 0, 1], [1, 1, 0], [1, 1, 1], [0, 0, 0], [0, 0, 1],
    ]  # fmt: skip


def test_patches_are_those_of_unfold(pool: Pool, tmp_path: Path) -> None:
    artifact = fuscoc.compile(EXAMPLES / "vit_patches.fsc", tmp_path / "vit")
    random = np.random.default_rng(0)
    pictures = [
        [
            random.integers(256, size=(P * rows, P * columns, 3), dtype=np.uint8)
            for rows, columns in each
        ]
        for each in DECODED
    ]
    packing = pack(DECODED)
    found = pool.run(vit_work.there_and_back, 2, str(artifact), packing, pictures)
    whole = [patches(each) for mine in pictures for each in mine]
    for rank, (sequence, back, inverse) in enumerate(found):
        there = [i for i, target in enumerate(packing.targets) if target == rank]
        assert len(sequence) == sum(len(whole[i]) for i in there)
        for i in there:
            begin = packing.offsets[i]
            assert np.array_equal(sequence[begin : begin + len(whole[i])], whole[i])
        places = packing.places(rank).tolist()
        for slot, (i, row, column) in enumerate(places):
            assert np.array_equal(sequence[slot], whole[i][row * packing.sizes[i][1] + column])
        for picture, same, other in zip(pictures[rank], back, inverse, strict=True):
            assert np.array_equal(same, picture)
            assert np.array_equal(other, 255 - picture)


def test_ranks_train_as_if_every_picture_were_alone(pool: Pool) -> None:
    torch.manual_seed(1)
    packing = pack(DECODED)
    batches = []
    for rank in range(2):
        places = packing.places(rank)
        values = torch.rand(len(places), P, P, 3), places, torch.rand(len(places)) < 0.5
        batches.append([each.numpy() for each in values])
    total = sum(packing.loads(packing.targets, 2))
    torch.manual_seed(0)
    model = Autoencoder(vit_work.WIDTH)
    loss = torch.zeros(())
    for given_patches, places, hidden in (map(torch.from_numpy, each) for each in batches):
        for i in places[:, 0].unique():
            one = places[:, 0] == i
            predicted = model(given_patches[one], places[one], hidden[one])
            loss = loss + (predicted - given_patches[one]).square().sum() / (total * P * P * 3)
    loss.backward()
    for found, gradients in pool.run(vit_work.trained_on, 2, batches, total):
        assert found == pytest.approx(loss.item(), rel=1e-5)
        for gradient, parameter in zip(gradients, model.parameters(), strict=True):
            torch.testing.assert_close(
                torch.from_numpy(gradient), parameter.grad, rtol=1e-4, atol=1e-6
            )


def test_hidden_patches_are_not_seen() -> None:
    places = pack([[(2, 2)]]).places(0)
    model, hidden = Autoencoder(vit_work.WIDTH), torch.tensor([True, False, False, False])
    seen = torch.rand(4, P, P, 3, requires_grad=True)
    model(seen, places, hidden)[0].sum().backward()
    assert seen.grad is not None
    assert [bool(each.any()) for each in seen.grad] == [False, True, True, True]


def test_no_two_patches_of_a_picture_are_equal() -> None:
    picture = draw(1, 2, 8 * P, 6 * P, np.random.default_rng(0))
    assert len(np.unique(patches(picture).reshape(48, -1), axis=0)) == 48
    assert ["".join(".#"[int(bit)] for bit in line) for line in digits("12", 7, 9)] == [
        ".........", "..#..###.", ".##....#.", "..#..###.", "..#..#...", ".###.###.", ".........",
    ]  # fmt: skip


def test_the_example_runs(tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image", reason="matplotlib is not installed")
    options = ("--ranks", "2", "--pictures", "1", "--steps", "2", "--plot", "patches.png")
    done = run_program(EXAMPLES / "vit_patches.py", *options, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 pictures on 2 ranks, in pixels: ")
    sizes = re.findall(r"(\d+)x(\d+)", done.stdout)
    areas = [int(height) * int(width) // P**2 for height, width in sizes]
    printed = re.findall(r"patches of each rank, (\w+): \[(.*)\]; the most", done.stdout)
    assert printed == [
        ("decoded", ", ".join(map(str, areas))),
        ("packed", ", ".join(map(str, sorted(areas, reverse=True)))),
    ]
    first, last = re.findall(r"^step +[01] loss (\d\.\d+)$", done.stdout, re.MULTILINE)
    assert float(last) < float(first)
    assert done.stdout.endswith("verified: all pictures came back bit for bit\n")
    assert np.ptp(image.imread(tmp_path / "patches.png")[..., :3]) > 0.9


def test_pictures_that_change_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    pictures = [np.zeros((P, P, 3), np.uint8), np.ones((P, P, 3), np.uint8)]
    right = Shown(pictures, np.stack(pictures), pictures, pictures)
    verify([right, right])
    assert capsys.readouterr().out.startswith("verified")
    changed = replace(right, unchanged=[pictures[0], pictures[0]])
    with pytest.raises(SystemExit, match="picture 1 of rank 1 came back changed"):
        verify([right, changed])


@pytest.mark.gpu
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_on_gpus(num_ranks: int, tmp_path: Path) -> None:
    artifact = fuscoc.compile(EXAMPLES / "vit_patches.fsc", tmp_path / "vit")
    printed = torchrun(
        num_ranks, "examples/vit_patches.py", "--device", "cuda", "--artifact", artifact
    )
    assert "step   99" in printed
    assert "verified: all pictures came back bit for bit" in printed
