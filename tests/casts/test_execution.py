"""Casts by the generated kernels, all ranks in one process, against the reference bit by bit."""

from __future__ import annotations

import io
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from fuscoc.testing import run_tests
from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.errors import InputError
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.reference import dispatch as expected_rows
from tests.casts.specs import SPECS
from tests.engine.lockstep import dispatch, inputs_of, lockstep, round_trip
from tests.specs import EXAMPLES

AWKWARD = [0.0, -0.0, 1e-45, 2.0**-100, 1.5, 448.0, 3.3e38, -3.4e38, math.inf, -math.inf, math.nan]


ANY = ["blocks", "masked", "f16", "one scale", "no scales", "shorter", "computed"]


@pytest.mark.parametrize("topology", ["1x1", "2x2"])
@pytest.mark.parametrize("name", SPECS)
def test_rows_and_what_comes_back(name: str, topology: str) -> None:
    shuffle = lockstep(SPECS[name], topology)
    round_trip(shuffle, generate(shuffle.spec, shuffle.topology, 3, 1))


@settings(max_examples=25)
@given(st.data(), st.sampled_from(ANY))
def test_any_values(data: st.DataObject, name: str) -> None:
    """Rounding ties, zeros, subnormals, infinities and NaN, in any mixture of blocks."""
    shuffle = lockstep(SPECS[name], "1x1")
    [field] = shuffle.spec.declared.source.fields
    numbers = st.lists(
        st.one_of(st.floats(width=32), st.sampled_from(AWKWARD), st.integers(-99, 99)),
        min_size=field.num_elems,
        max_size=field.num_elems,
    )
    x = torch.tensor(data.draw(numbers), dtype=torch.float32).to(TORCH_DTYPES[field.dtype])
    if field.dtype == "f32" and shuffle.spec.declared.fields[0].dtype == "bf16":
        x = x.nan_to_num()  # bits of other NaN than those of the 8-bit floats are not promised
    keys = torch.tensor([[3, -1, 3]])
    weights = torch.ones(1, 3)
    rank = RankData({"x": x.view(1, -1)}, {"keys": keys, "weights": weights}, {"tokens": 1})
    [wanted] = expected_rows(shuffle.spec, [rank])
    [found] = dispatch(shuffle, [rank])
    for name_of, rows in wanted.fields.items():
        got = found.rows[name_of][wanted.written].contiguous().view(torch.uint8)
        assert torch.equal(got, rows[wanted.written].view(torch.uint8)), name_of


def test_combine_takes_rows_of_the_source() -> None:
    shuffle = lockstep(SPECS["blocks"], "1x1")
    ranks = generate(shuffle.spec, shuffle.topology, 3, 0)
    [done] = dispatch(shuffle, ranks)
    assert {name: rows.dtype for name, rows in done.rows.items()} == {
        "x": torch.float8_e4m3fn,
        "s": torch.float32,
    }
    weights = inputs_of(shuffle.spec, ranks[0], weights=True)
    with pytest.raises(InputError, match="`s` on rank 0 is no argument"):
        shuffle.combine([done.rows], [done.handle], [weights])
    with pytest.raises(InputError, match=r"float8_e4m3fn; the spec says torch\.bfloat16"):
        shuffle.combine([done.rows["x"]], [done.handle], [weights])


@pytest.mark.parametrize("name", ["blocks", "applied"])
def test_the_shorter_rows_cross_the_network(name: str) -> None:
    shuffle = lockstep(SPECS[name], "2x2")
    for done in dispatch(shuffle, generate(shuffle.spec, shuffle.topology, 3, 1)):
        stats = done.handle.stats
        assert stats.network.row_bytes == 64 + 4 * 4
        assert stats.nvlink.row_bytes == {"blocks": 64 + 4 * 4, "applied": 2 * 64}[name]


def test_fuscoc_test_passes() -> None:
    report = run_tests(
        EXAMPLES / "moe_fp8.fsc",
        examples=10,
        seed=1,
        defines={"hidden": 256, "experts": 16, "topk": 2},
        console=Console(file=io.StringIO()),
    )
    assert report.passed
