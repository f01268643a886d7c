"""What casts compute, against torch's own arithmetic and exact numbers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import unfold

from fuscoc.lang.check import check
from fuscoc.lang.checked import Normalise
from fuscoc.lang.normalising import rounded_f32
from fuscoc.source import SourceFile
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.manifest.declared import CastSpec, FieldSpec, NormaliseSpec
from fuscoc_runtime.reference import cast_fields
from fuscoc_runtime.topology import Topology
from tests.static import specs

ROUNDING = 2.0**-24
"""How far a number of f32 is from what it was rounded from, relative to it."""
MEAN, STD = (torch.tensor(each) for each in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
RANKS, P = 4, 2
GRIDS = [[(3, 1), (1, 2)], [], [(2, 2)], [(1, 1), (2, 3), (1, 1)]]
"""Rows and columns of patches of the pictures of every rank."""

values = st.fractions(Fraction(-(2**40)), Fraction(2**40), max_denominator=2**60)
sides = st.integers(1, 3)
grids = st.lists(st.lists(st.tuples(sides, sides), max_size=3), min_size=RANKS, max_size=RANKS)
decimals = st.decimals("0.001", "99", places=3).map(str)
channels = st.integers(1, 5).flatmap(
    lambda n: st.tuples(*(st.lists(decimals, min_size=n, max_size=n) for _ in range(2)))
)


def computed(expression: str, shape: str = "3", dtype: str = "u8") -> Normalise:
    """What the checker makes of a cast of ``x``."""
    text = f"""shuffle s {{
      const a = 3, half = 0.5, mean = [1, 2 * half, a]
      index t : tokens
      segment given {{ x : {dtype}[{shape}] }}
      segment wanted {{ x : f32[{shape}] }}
      layout mine[t] of given
      layout theirs[t] of wanted
      dispatch mine[t] -> theirs[t] on rank cast({expression})
    }}"""
    (shuffle,) = check(SourceFile("spec.fsc", text))
    (cast,) = shuffle.casts
    assert cast.normalise is not None
    return cast.normalise


@given(values)
def test_numbers_are_rounded_to_nearest_even(value: Fraction) -> None:
    found = rounded_f32(value)
    if found is None:
        assert abs(value) < 2.0**-126
        return
    assert float(np.float32(found)) == found
    beside = [float(np.nextafter(np.float32(found), np.float32(side))) for side in (-1e38, 1e38)]
    error = abs(Fraction(found) - value)
    assert all(error <= abs(Fraction(each) - value) for each in beside)


def test_ties_go_to_even_and_the_range_ends() -> None:
    one = 1 << 24
    assert rounded_f32(Fraction(one + 1)) == one
    assert rounded_f32(Fraction(one + 3)) == one + 4
    assert rounded_f32(Fraction(2) ** 128 - 1) is None
    assert rounded_f32(Fraction(2) ** -126) == 2.0**-126
    assert rounded_f32(Fraction(2) ** -127) is None


@pytest.mark.parametrize(
    ("expression", "shifts", "factors"),
    [
        ("x * 2 + 1", (-0.5,), (2.0,)),
        ("2 - x", (2.0,), (-1.0,)),
        ("x - x / 2", (0.0,), (0.5,)),
        ("x - mean", (1.0, 1.0, 3.0), (1.0, 1.0, 1.0)),
        ("half * (x + 2) / a", (-2.0,), (float(np.float32(1 / 6)),)),
        ("x * [2, 2, 2]", (0.0,), (2.0,)),
        ("x + [a / 2, 1, 0.25 * 4]", (-1.5, -1.0, -1.0), (1.0, 1.0, 1.0)),
    ],
)
def test_expressions(
    expression: str, shifts: tuple[float, ...], factors: tuple[float, ...]
) -> None:
    assert computed(expression) == Normalise(shifts, factors)


def by_reference(found: Normalise, x: Tensor, dtype: str) -> Tensor:
    spec = CastSpec("x", None, None, NormaliseSpec(found.shifts, found.factors, found.channels))
    wanted = FieldSpec("x", dtype, (x.shape[-1],))
    return cast_fields([spec], {"x": x}, [wanted])["x"].view(x.shape)


@settings(max_examples=40)
@given(channels, st.integers(0, 2**32))
def test_images_as_torch_normalises_them(numbers: Any, seed: int) -> None:
    """Within the rounding of both: of four numbers here, of six there."""
    mean, std = ([float(each) for each in part] for part in numbers)
    listed = [f"[{', '.join(part)}]" for part in numbers]
    found = computed(f"(x / 255 - {listed[0]}) / {listed[1]}", str(len(mean)))
    random = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (50, len(mean)), dtype=torch.uint8, generator=random)
    ours = by_reference(found, x, "f32")
    m, s = (torch.tensor(each, dtype=torch.float64) for each in (mean, std))
    exact = (x.double() / 255 - m) / s
    allowed = 1.01 * ROUNDING * ((m / s).abs() + 3 * exact.abs())
    assert bool(((ours.double() - exact).abs() <= allowed).all())
    theirs = (x / 255 - m.float()) / s.float()
    more = 1.01 * ROUNDING * ((x / 255 + m) / s + 3 * exact.abs())
    assert bool(((theirs.double() - ours.double()).abs() <= allowed + more).all())
    assert torch.equal(by_reference(found, x, "bf16"), ours.bfloat16())


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(["1x4", "2x2"]), grids, st.integers(0, 2**32))
@example("1x4", GRIDS, 0)
@example("2x2", GRIDS, 0)
def test_planes_to_normalised_patches(
    topology: str, sizes: list[list[tuple[int, int]]], seed: int
) -> None:
    """Pictures of several sizes, whole to the next rank, against ``unfold`` and torch's arithmetic:
    within half a unit in the last place of bf16, and what is left of the mean in f32."""
    shuffle = LockstepShuffle(
        specs.artifact("vit_patches_normalised.fsc", p=P), topology=Topology.parse(topology)
    )
    random = torch.Generator().manual_seed(seed)
    pictures = [
        [
            torch.randint(256, (3, P * rows, P * columns), dtype=torch.uint8, generator=random)
            for rows, columns in mine
        ]
        for mine in sizes
    ]
    sources, named = [], []
    for rank, mine in enumerate(pictures):
        lengths = [each[0].numel() // P**2 for each in mine]
        offsets = [sum(lengths[:number]) for number in range(len(mine))]
        before = pictures[rank - 1]
        sources.append([torch.cat([torch.empty(0, dtype=torch.uint8), *map(torch.ravel, mine)])])
        named.append(
            {
                "height": torch.tensor([each.shape[1] for each in mine], dtype=torch.int64),
                "width": torch.tensor([each.shape[2] for each in mine], dtype=torch.int64),
                "packing": torch.tensor(
                    [((rank + 1) % RANKS, offset) for offset in offsets], dtype=torch.int64
                ).view(-1, 2),
                "images": len(mine),
                "length": sum(each[0].numel() // P**2 for each in before),
            }
        )
    for rank, done in enumerate(shuffle.dispatch(sources, named)):
        for number, picture in enumerate(pictures[rank - 1]):
            cut = unfold(picture[None].float(), P, stride=P)[0].T.view(-1, 3, P, P)
            wanted = (cut.permute(0, 2, 3, 1) / 255 - MEAN) / STD
            begin = sum(each[0].numel() // P**2 for each in pictures[rank - 1][:number])
            found = done.rows["pixels"][begin : begin + len(wanted)]
            assert found.dtype == torch.bfloat16
            torch.testing.assert_close(found.float(), wanted, rtol=1.01 * 2.0**-8, atol=1e-6)
