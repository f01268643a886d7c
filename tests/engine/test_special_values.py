"""Sums and maxima of NaN, infinities, zeros of both signs and the largest f16, against torch."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuscoc_runtime import Shuffle
from tests.drawn import at_night
from tests.engine import specs
from tests.engine.lockstep import lockstep
from tests.node_exact.rank_work import on_the_device

pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")  # of numpy

RANKS, KEYS, TOPK, HIDDEN = 4, 4, 3, 2
VALUES = [1.0, -2.5, 0.0, -0.0, torch.inf, -torch.inf, torch.nan]
"""Also the largest of f16, whose sums overflow where they are not those of f32."""


@st.composite
def numbers(draw: st.DrawFn, dtype: str) -> tuple[list[Tensor], Tensor, Tensor]:
    """``idx`` of every rank [tokens, TOPK], weights [TOPK], and a row for every key."""
    values = VALUES + [65504.0, -65504.0] * (dtype == "f16")
    keys = st.lists(st.integers(-1, KEYS - 1), min_size=TOPK, max_size=TOPK)
    idx = [
        torch.tensor(draw(st.lists(keys, max_size=3)), dtype=torch.int64).view(-1, TOPK)
        for _ in range(RANKS)
    ]
    row = st.lists(st.sampled_from(values), min_size=HIDDEN, max_size=HIDDEN)
    rows = torch.tensor(draw(st.lists(row, min_size=KEYS, max_size=KEYS)))
    weights = draw(st.lists(st.sampled_from([1.0, 2.0, 0.0]), min_size=TOPK, max_size=TOPK))
    return idx, torch.tensor(weights), rows


def text_of(dtype: str, reduce: str) -> str:
    return specs.routed(dtype, HIDDEN, KEYS, TOPK, reduce=reduce)


def wanted(idx: Tensor, weights: Tensor, rows: Tensor, reduce: str) -> Tensor:
    """What comes back where the row of a key is that of ``rows`` in all of its slots."""
    terms, there = rows.double()[idx.clamp(min=0)], (idx >= 0).unsqueeze(2)
    if reduce == "max":
        largest = terms.where(there, -torch.inf).amax(1)
        return largest.where(there.any(1), 0.0).to(rows.dtype)
    factors = weights.double().unsqueeze(1) if "w" in reduce else 1.0
    return (terms * factors).where(there, 0.0).sum(1).to(rows.dtype)


def in_slots(handle: Any, rows: Tensor, num_slots: int) -> Tensor:
    """A rank's rows; NaN, which must not count, in padding."""
    held = torch.full((num_slots, HIDDEN), torch.nan, dtype=rows.dtype)
    begins, counts = handle.key_offsets.tolist(), handle.key_counts.tolist()
    for key, begin, count in zip(handle.keys.tolist(), begins, counts, strict=False):
        held[begin : begin + count] = rows[key]
    return held


def as_dtype(rows: Tensor, dtype: str) -> Tensor:
    return rows.to({"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[dtype])


cases = pytest.mark.parametrize("reduce", ["sum(w)", "sum", "max"])
dtypes = st.sampled_from(["f16", "bf16", "f32"])


@cases
@given(st.data())
@settings(max_examples=10, deadline=None)
def test_any_ranks(reduce: str, data: st.DataObject) -> None:
    dtype = data.draw(dtypes)
    idx, weights, rows = data.draw(numbers(dtype))
    rows = as_dtype(rows, dtype)
    shuffle = lockstep(text_of(dtype, reduce), data.draw(st.sampled_from(["1x4", "2x2"])))
    sources = [[rows.new_zeros(len(each), HIDDEN)] for each in idx]
    done = shuffle.dispatch(sources, [{"idx": each} for each in idx])
    held = [{"x": in_slots(each.handle, rows, each.handle.num_slots)} for each in done]
    named = [{"weights": weights.expand(len(each), TOPK)} if "w" in reduce else {} for each in idx]
    results = shuffle.combine(held, [each.handle for each in done], named)
    for each, result in zip(idx, results, strict=True):
        right = wanted(each, weights, rows, reduce)
        torch.testing.assert_close(result["x"], right, equal_nan=True)


@cache
def opened(dtype: str, reduce: str, engine: str) -> Shuffle:
    options = {"max_sources": 3} if engine == "fixed" else {}
    with on_the_device() if engine == "exact" else nullcontext():
        return Shuffle(specs.artifact(text_of(dtype, reduce)), **options)


@cases
@pytest.mark.parametrize("engine", ["exact", "fixed"])
@given(st.data())
@settings(max_examples=at_night(30), deadline=None)
def test_kernels_that_plan(engine: str, reduce: str, data: st.DataObject) -> None:
    dtype = data.draw(dtypes)
    [idx, *_], weights, rows = data.draw(numbers(dtype))
    rows, shuffle = as_dtype(rows, dtype), opened(dtype, reduce, engine)
    named = {"weights": weights.expand(len(idx), TOPK)} if "w" in reduce else {}
    came, handle = shuffle.dispatch(rows.new_zeros(len(idx), HIDDEN), idx=idx, **named)
    result = shuffle.combine(in_slots(handle, rows, len(came)), handle)
    torch.testing.assert_close(result, wanted(idx, weights, rows, reduce), equal_nan=True)
