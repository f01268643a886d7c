"""The reference's casts: what scales promise, and what survives the way there and back."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.manifest.declared import CastSpec, FieldSpec
from fuscoc_runtime.reference import LEAST_AMAX, cast_fields

BLOCK = 4
CASTS = (CastSpec("x", "scales", BLOCK),)

narrow = st.sampled_from(["f8e4m3", "f8e5m2"])
wide = st.sampled_from(["bf16", "f16", "f32"])
rows = st.lists(st.lists(st.floats(width=32), min_size=BLOCK, max_size=BLOCK), min_size=1)


def quantise(x: Tensor, dtype: str) -> tuple[Tensor, Tensor]:
    wanted = (FieldSpec("x", dtype, (BLOCK,)), FieldSpec("scales", "f32", ()))
    made = cast_fields(CASTS, {"x": x}, wanted)
    return made["x"].view(-1, BLOCK), made["scales"]


@given(rows, wide, narrow)
def test_quantised_rows_are_close(numbers: list[list[float]], source: str, target: str) -> None:
    x = torch.tensor(numbers).to(TORCH_DTYPES[source])
    q, scales = quantise(x, target)
    assert torch.isfinite(scales).all()
    assert (scales > 0).all()
    info = torch.finfo(TORCH_DTYPES[target])
    back = q.double() * scales.double().unsqueeze(1)
    finite = x.isfinite()
    amax = torch.where(finite, x.abs(), 0).double().amax(1, keepdim=True).clamp(min=LEAST_AMAX)
    error = (back - x.double()).abs()
    # Half a unit in the last place, or half the smallest step, and the rounding of two factors.
    allowed = x.double().abs() * (info.eps / 2 * 1.001) + amax / info.max * info.tiny * info.eps
    assert (error <= allowed)[finite].all()
    assert q.isnan().equal(x.isnan())
    assert (back.abs()[x.isinf()] <= (amax * 1.001).expand_as(back)[x.isinf()]).all()


def test_known_values() -> None:
    x = torch.tensor([[448.0, 1.0, -2.0, 0.0], [0.0, 0.0, -0.0, 0.0], [math.inf, 7.0, 1.0, 3.5]])
    q, scales = quantise(x, "f8e4m3")
    assert scales[0] == 448 * (torch.tensor(1.0) / 448)
    assert q.float()[0].tolist() == [448.0, 1.0, -2.0, 0.0]
    assert q.float()[1].tolist() == [0.0] * 4
    assert q.float()[2].tolist() == [448.0, 448.0, 64.0, 224.0]


@pytest.mark.parametrize("dtype", ["f8e4m3", "f8e5m2"])
def test_scales_are_applied_in_f32(dtype: str) -> None:
    q = torch.arange(256, dtype=torch.uint8).view(TORCH_DTYPES[dtype]).view(-1, BLOCK)
    scales = torch.exp2(torch.linspace(-20, 9, len(q))) * 1.1
    wanted = (FieldSpec("x", "bf16", (BLOCK,)),)
    found = cast_fields(CASTS, {"x": q, "scales": scales}, wanted)["x"].view(-1, BLOCK)
    products = q.float() * scales.unsqueeze(1)
    assert torch.equal(found.isnan(), products.isnan())
    assert torch.equal(found[~found.isnan()], products.bfloat16()[~products.isnan()])
