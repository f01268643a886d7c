"""Segments in another order than the source has their cells, against unfold and permute."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.topology import Topology
from tests.static import specs

RANKS, P, C = 4, 2, 3
BLOCKS = """
shuffle blocks {{
  index i : 2
  segment block {{ x : i16[{shape}, 2] }}
  layout  from[a, b, c, d] of i16[2] dense(4, 3, {wide}, 5)
  layout  to[s]            of block  dense(2)
  view    part[i] = from[i*2 .. i*2+2, 0 .. 3, i .. i+3, 1 .. 5] order({order})
  dispatch part[i] -> to[i + 0] on (rank + 1) % ranks
  combine reverse
}}"""
LENGTHS = {"a": 2, "b": 3, "c": 3, "d": 4}

sizes = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=3)


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(["1x4", "2x2"]), st.lists(sizes, min_size=RANKS, max_size=RANKS))
def test_planes_to_pixels(topology: str, grids: list[list[tuple[int, int]]]) -> None:
    """Pictures of any sizes, whole to the next rank: patches are those of ``unfold``."""
    shuffle = LockstepShuffle(
        specs.artifact("vit_patches_nchw.fsc", p=P), topology=Topology.parse(topology)
    )
    random = torch.Generator().manual_seed(0)
    pictures = [
        [
            torch.randint(256, (C, P * high, P * wide), generator=random, dtype=torch.uint8)
            for high, wide in grid
        ]
        for grid in grids
    ]
    inputs = []
    for rank, grid in enumerate(grids):
        counts = torch.tensor([0, *(high * wide for high, wide in grid)])
        to = torch.full((len(grid),), (rank + 1) % RANKS)
        inputs.append(
            {
                "height": torch.tensor([P * high for high, _ in grid], dtype=torch.int64),
                "width": torch.tensor([P * wide for _, wide in grid], dtype=torch.int64),
                "packing": torch.stack([to, counts.cumsum(0)[:-1]], 1),
                "length": sum(high * wide for high, wide in grids[rank - 1]),
            }
        )
    done = shuffle.dispatch([[_flat(some)] for some in pictures], inputs)
    for rank, each in enumerate(done):
        wanted = [_patches(picture) for picture in pictures[rank - 1]]
        empty = torch.zeros(0, P, P, C, dtype=torch.uint8)
        assert torch.equal(each.rows["pixels"], torch.cat([empty, *wanted]))
    back = shuffle.combine(
        [each.rows["pixels"].clone() for each in done],
        [each.handle for each in done],
        [{}] * RANKS,
    )
    for result, some in zip(back, pictures, strict=True):
        assert torch.equal(next(iter(result.values())), _flat(some))


ORDERS = sorted(permutations("abcd"))


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(ORDERS), st.sampled_from(["1x4", "2x2"]))
def test_any_order(order: tuple[str, ...], topology: str) -> None:
    check_order(order, topology)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("order", ORDERS, ids="".join)
def test_every_order_at_night(order: tuple[str, ...]) -> None:
    check_order(order, "2x2")


def check_order(order: tuple[str, ...], topology: str) -> None:
    """A block of four dimensions, some of which lie one behind the other."""
    shape = [LENGTHS[each] for each in order]
    text = BLOCKS.format(shape=", ".join(map(str, shape)), order=", ".join(order), wide=4)
    shuffle = LockstepShuffle(specs.artifact(text), topology=Topology.parse(topology))
    x = [torch.arange(4 * 3 * 4 * 5 * 2).view(4, 3, 4, 5, 2).short() + 1000 * r for r in range(4)]
    done = shuffle.dispatch([[each] for each in x], [{}] * RANKS)
    for source in range(RANKS):
        for i in range(2):
            block = x[source][i * 2 : i * 2 + 2, :, i : i + 3, 1:5]
            wanted = block.permute(*("abcd".index(each) for each in order), 4)
            assert torch.equal(done[(source + 1) % RANKS].rows["x"][i], wanted)
    back = shuffle.combine(
        [each.rows["x"].clone() for each in done], [each.handle for each in done], [{}] * RANKS
    )
    for result, own in zip(back, x, strict=True):
        wanted = torch.zeros_like(own)
        for i in range(2):
            at = slice(i * 2, i * 2 + 2), slice(None), slice(i, i + 3), slice(1, 5)
            wanted[at] = own[at]
        assert torch.equal(next(iter(result.values())), wanted)


def _flat(pictures: list[Tensor]) -> Tensor:
    return torch.cat([torch.zeros(0, dtype=torch.uint8), *(each.flatten() for each in pictures)])


def _patches(picture: Tensor) -> Tensor:
    """[patches, P, P, C] of a picture [C, height, width]."""
    blocks = picture.unfold(1, P, P).unfold(2, P, P)
    return blocks.permute(1, 2, 3, 4, 0).reshape(-1, P, P, C)
