"""The kernels between dispatch and autograd, interpreted, against torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc_runtime.engine.row_kernels import keep_rows, weigh_rows

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
SHAPES = st.tuples(st.integers(0, 300), st.sampled_from([(1,), (7,), (16,), (3, 5), (1030,)]))


def drawn(
    shape: tuple[int, tuple[int, ...]], dtype: torch.dtype, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, factors and which rows hold something; the others are NaN."""
    random = torch.Generator().manual_seed(seed)
    num_rows, cell = shape
    rows = torch.randn(num_rows, *cell, generator=random, dtype=torch.float64)
    holds = torch.rand(num_rows, generator=random) < 0.6
    rows[~holds] = float("nan")
    return rows.to(dtype), torch.rand(num_rows, generator=random), holds


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float8_e4m3fn], ids=str)
@settings(max_examples=8, deadline=None)
@given(shape=SHAPES, seed=st.integers(0, 99))
def test_kept_rows(dtype: torch.dtype, shape: tuple[int, tuple[int, ...]], seed: int) -> None:
    rows, _, holds = drawn(shape, dtype, seed)
    expected = rows.float()
    expected[~holds] = 0
    assert torch.equal(keep_rows(rows, holds).float(), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=8, deadline=None)
@given(shape=SHAPES, seed=st.integers(0, 99), with_dots=st.booleans())
def test_weighed_rows(
    dtype: torch.dtype, shape: tuple[int, tuple[int, ...]], seed: int, with_dots: bool
) -> None:
    gradient, factors, holds = drawn(shape, dtype, seed)
    rows, _, _ = drawn(shape, dtype, seed + 100)
    rows = torch.where(rows.isnan(), 1, rows)
    found, dots = weigh_rows(gradient, factors, holds, rows if with_dots else None)

    wide = torch.promote_types(dtype, torch.float32)
    clean = torch.where(gradient.isnan(), 0, gradient).to(wide)
    expand = factors.view(-1, *[1] * (gradient.dim() - 1))
    assert torch.equal(found, (clean * expand).to(dtype))
    if not with_dots:
        assert dots is None
        return
    assert dots is not None
    assert dots.dtype == wide
    expected = (clean * rows.to(wide)).flatten(1).sum(1) if gradient.numel() else dots
    torch.testing.assert_close(dots, expected, atol=1e-4, rtol=1e-4)
