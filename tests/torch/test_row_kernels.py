"""The kernels between dispatch and autograd, interpreted, against torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc_runtime.engine.row_kernels import take_rows, weigh_rows

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
SHAPES = st.tuples(st.integers(0, 300), st.sampled_from([(1,), (7,), (16,), (3, 5), (1030,)]))


def drawn(
    shape: tuple[int, tuple[int, ...]], dtype: torch.dtype, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, and factors and an index of any number of them; those that it leaves out are NaN."""
    random = torch.Generator().manual_seed(seed)
    num_rows, cell = shape
    rows = torch.randn(num_rows, *cell, generator=random, dtype=torch.float64)
    num_taken = int(torch.randint(300, (), generator=random))
    index = torch.randint(-1, max(num_rows, 1), (num_taken,), generator=random)
    index = index.clamp(max=num_rows - 1)
    rows[~torch.isin(torch.arange(num_rows), index)] = float("nan")
    return rows.to(dtype), torch.rand(num_taken, generator=random), index


def taken(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """``rows[index]``, and 0 where the index is -1."""
    return torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])])[index]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float8_e4m3fn], ids=str)
@settings(max_examples=8)
@given(shape=SHAPES, seed=st.integers(0, 99))
def test_taken_rows(dtype: torch.dtype, shape: tuple[int, tuple[int, ...]], seed: int) -> None:
    rows, _, index = drawn(shape, dtype, seed)
    assert torch.equal(take_rows(rows, index).float(), taken(rows.float(), index))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=8)
@given(shape=SHAPES, seed=st.integers(0, 99), with_dots=st.booleans())
def test_weighed_rows(
    dtype: torch.dtype, shape: tuple[int, tuple[int, ...]], seed: int, with_dots: bool
) -> None:
    gradient, factors, index = drawn(shape, dtype, seed)
    random = torch.Generator().manual_seed(seed + 100)
    rows = torch.randn(len(index), *gradient.shape[1:], generator=random).to(dtype)
    found, dots = weigh_rows(gradient, factors, index, rows if with_dots else None)

    wide = torch.promote_types(dtype, torch.float32)
    clean = taken(gradient, index).to(wide)
    expand = factors.view(-1, *[1] * (gradient.dim() - 1))
    assert torch.equal(found, (clean * expand).to(dtype))
    if not with_dots:
        assert dots is None
        return
    assert dots is not None
    assert dots.dtype == wide
    expected = (clean * rows.to(wide)).flatten(1).sum(1) if len(index) else dots
    torch.testing.assert_close(dots, expected, atol=1e-4, rtol=1e-4)
