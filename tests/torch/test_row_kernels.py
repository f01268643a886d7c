"""The kernels between dispatch and autograd, interpreted, against torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.compiler import ASTSource

from fuscoc_runtime.engine import row_kernels
from fuscoc_runtime.engine.row_kernels import (
    accumulate_rows,
    add_rows,
    put_rows,
    settle_places,
    take_rows,
    weigh_rows,
)
from fuscoc_runtime.kernels.loader import device_module
from tests.codegen.ptx import TARGET

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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@settings(max_examples=12)
@given(
    width=st.sampled_from([1, 7, 16, 1030]), terms=st.integers(1, 9), begun=st.integers(0, 2),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_added_rows(dtype: torch.dtype, width: int, terms: int, begun: int, seed: int) -> None:
    """To the last bit: numbers differ so much in size that each order has a sum of its own."""
    random = torch.Generator().manual_seed(seed)
    num_rows, num_sums = (int(each) for each in torch.randint(300, (2,), generator=random))

    def numbers(num: int) -> torch.Tensor:
        exponents = torch.randint(-12, 13, (num, width), generator=random)
        return torch.ldexp(torch.randn(num, width, generator=random), exponents).to(dtype)

    rows, beginnings = numbers(num_rows), [numbers(num_sums) for _ in range(begun)]
    index = torch.randint(-1, max(num_rows, 1), (num_sums, terms), generator=random)
    index = index.clamp(max=num_rows - 1)
    rows[~torch.isin(torch.arange(num_rows), index)] = float("nan")
    wanted = torch.zeros(num_sums, width)
    for each in (*beginnings, *(taken(rows, column) for column in index.T)):
        wanted = wanted + each.float()
    assert torch.equal(add_rows(rows, index, beginnings), wanted.to(dtype))


@settings(max_examples=12)
@given(shape=SHAPES, seed=st.integers(0, 99), offset=st.integers(0, 9))
def test_put_rows(shape: tuple[int, tuple[int, ...]], seed: int, offset: int) -> None:
    """Into memory that begins anywhere; nothing else changes."""
    random = torch.Generator().manual_seed(seed)
    num_rows, cell = shape
    num_places = num_rows + int(torch.randint(9, (), generator=random))
    width = torch.Size(cell).numel()
    whole = torch.randint(100, (offset + num_places * width + 3,), generator=random).to(torch.int16)
    rows = torch.randint(100, (num_rows, *cell), generator=random).to(torch.int16)
    index = torch.randperm(num_places, generator=random)[:num_rows]
    index[torch.rand(num_rows, generator=random) < 0.3] = -int(
        torch.randint(1, 4, (), generator=random)
    )
    wanted = whole.clone()
    places = wanted[offset : offset + num_places * width].view(num_places, *cell)
    places[index[index >= 0]] = rows[index >= 0]
    put_rows(rows, index, whole[offset : offset + num_places * width].view(num_places, *cell))
    assert torch.equal(whole, wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=6)
@given(shape=SHAPES, seed=st.integers(0, 99), num_places=st.integers(1, 40))
def test_accumulate_rows(
    dtype: torch.dtype, shape: tuple[int, tuple[int, ...]], seed: int, num_places: int
) -> None:
    """To the bit what a loop makes of numbers that are far apart; nothing else changes."""
    random = torch.Generator().manual_seed(seed)
    num_rows, width = shape[0], torch.Size(shape[1]).numel()

    def numbers(num: int) -> torch.Tensor:
        exponents = torch.randint(-12, 13, (num, width), generator=random)
        return torch.ldexp(torch.randn(num, width, generator=random), exponents).to(dtype)

    rows, memory = numbers(num_rows), numbers(num_places)
    memory[0] = float("nan")
    index = torch.randint(-3, num_places, (num_rows,), generator=random)
    wide = memory.to(torch.promote_types(dtype, torch.float32))
    for place, row in zip(index.tolist(), rows, strict=True):
        if place >= 0:
            wide[place] += row
    accumulate_rows(rows, index, memory)
    torch.testing.assert_close(memory, wide.to(dtype), rtol=0, atol=0, equal_nan=True)


@settings(max_examples=12)
@given(
    num_slots=st.integers(0, 90),
    parts=st.sampled_from([1, 3, 1500]),
    seed=st.integers(0, 99),
    in_bits=st.booleans(),
)
def test_settled_places(num_slots: int, parts: int, seed: int, in_bits: bool) -> None:
    random = torch.Generator().manual_seed(seed)
    places = torch.randint(-2, 9, (num_slots, parts), generator=random)
    there = torch.rand(num_slots, generator=random) < 0.7
    lost, latest = torch.tensor([5, 7]), None
    if in_bits:
        filled = torch.zeros(num_slots // 32 + 1, dtype=torch.int64)
        for slot in there.nonzero().flatten().tolist():
            filled[slot // 32] += 1 << slot % 32
        filled = filled.to(torch.int32)  # of which the highest bit is a sign
    else:
        filled, latest = torch.where(there, 11, 10).int(), torch.tensor([11], dtype=torch.int32)
    wrong = int((places == -2).any(1).sum())
    for num_places, dtype in ((9, torch.int32), (2**31, torch.int64)):
        found = settle_places(places, filled, latest, lost, num_places, -2)
        assert found.dtype == dtype
        wanted = torch.where(there[:, None], places, -1).flatten()
        assert torch.equal(found.clamp(min=-1), wanted.clamp(min=-1).to(dtype))
    assert lost.tolist() == [5 + 2 * wrong, 7]


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


@pytest.fixture
def uninitialised_is_nan() -> Iterator[None]:
    """What torch allocates without values is NaN, so that what nobody writes can be told."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("uninitialised_is_nan")
@pytest.mark.parametrize("end", [0, 3, 511, 600, 700])
@pytest.mark.parametrize("most_programs", [1, 2, 1 << 14])
def test_nothing_is_written_behind_the_end(
    end: int, most_programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles are of 256 rows here; an end behind the last row is none."""
    monkeypatch.setattr(row_kernels, "MOST_PROGRAMS", most_programs)
    random = torch.Generator().manual_seed(end)
    rows = torch.randn(40, 5, generator=random)
    index = torch.randint(-1, 40, (600,), generator=random)
    factors, worked = torch.rand(600, generator=random), torch.randn(600, 5, generator=random)
    where = torch.tensor([end])
    gradient, dots = weigh_rows(rows, factors, index, worked, where)
    assert dots is not None
    wanted = taken(rows, index)
    weighed = wanted * factors[:, None]
    pairs = [
        (take_rows(rows, index, where), wanted),
        (gradient, weighed),
        (dots, (wanted * worked).sum(1)),
    ]
    for found, expected in pairs:
        torch.testing.assert_close(found[:end], expected[:end])
        assert found[end:].isnan().all()


@pytest.mark.parametrize("end", [None, "*i64"], ids=["all", "up to an end"])
@pytest.mark.parametrize("name", ["take", "weigh"])
def test_compiles_for_sm_90(name: str, end: str | None) -> None:
    function = getattr(device_module("rows", interpreted=False), name)
    tiles: dict[str, Any] = {"tile_rows": 1, "tile_words": 1024}
    sizes = {"num_rows": "i32", "width": "i32"}
    if name == "take":
        types = {"rows": "*i64", "index": "*i64", "result": "*i64", **sizes}
    else:
        bf16 = dict.fromkeys(("gradient", "rows", "row_gradient"), "*bf16")
        types = {**bf16, "factors": "*fp32", "index": "*i64", "dots": "*fp32", **sizes}
        tiles |= {"with_dots": True, "accumulator": tl.float32}
    fixed: dict[str, Any] = tiles if end else {**tiles, "end": None}
    signature = {each: types.get(each, "constexpr") for each in function.arg_names}
    if end:
        signature["end"] = end
    compiled = triton.compile(ASTSource(function, signature, fixed), target=TARGET)
    assert ".local" not in compiled.asm["ptx"]


@pytest.mark.parametrize("begun", [0, 1, 2])
def test_rows_that_are_added_compile_for_sm_90(begun: int) -> None:
    """All terms are loaded before the first is added."""
    function = device_module("rows", interpreted=False).add
    types = dict.fromkeys(("rows", "first", "second", "result"), "*bf16")
    types |= {"index": "*i64", "num_rows": "i32", "width": "i32"}
    fixed: dict[str, Any] = {"tile_rows": 1, "tile_words": 1024, "num_terms": 8}
    fixed |= dict.fromkeys(("first", "second")[begun:])
    signature = {each: "constexpr" if each in fixed else types[each] for each in function.arg_names}
    compiled = triton.compile(ASTSource(function, signature, fixed), target=TARGET)
    assert ".local" not in compiled.asm["ptx"]


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp64"])
def test_rows_that_are_accumulated_compile_for_sm_90(dtype: str) -> None:
    function = device_module("rows", interpreted=False).accumulate
    types = dict.fromkeys(("rows", "memory"), f"*{dtype}") | {"order": "*i64", "places": "*i64"}
    types |= {"num_rows": "i32", "width": "i32"}
    signature = {each: types.get(each, "constexpr") for each in function.arg_names}
    accumulator = tl.float64 if dtype == "fp64" else tl.float32
    fixed = {"tile_rows": 16, "tile_words": 64, "accumulator": accumulator}
    compiled = triton.compile(ASTSource(function, signature, fixed), target=TARGET)
    assert ".local" not in compiled.asm["ptx"]


@pytest.mark.parametrize("in_bits", [True, False])
def test_places_that_are_settled_compile_for_sm_90(in_bits: bool) -> None:
    function = device_module("rows", interpreted=False).settle
    types = {"places": "*i64", "filled": "*i32", "latest": "*i32", "lost": "*i64"}
    types |= {"targets": "*i32", "num_slots": "i32", "parts": "i32"}
    fixed: dict[str, Any] = {"out_of_range": -2, "tile_slots": 1024, "tile_parts": 1}
    if in_bits:
        fixed["latest"] = None
    signature = {each: "constexpr" if each in fixed else types[each] for each in function.arg_names}
    compiled = triton.compile(ASTSource(function, signature, fixed), target=TARGET)
    assert ".local" not in compiled.asm["ptx"]


@pytest.mark.parametrize(("tile_rows", "tile_words"), [(1, 1024), (64, 16)], ids=["long", "short"])
def test_rows_that_are_put_compile_for_sm_90(tile_rows: int, tile_words: int) -> None:
    """Words go two at a time where rows are whole vectors."""
    function = device_module("rows", interpreted=False).put
    types = {"rows": "*i64", "index": "*i64", "memory": "*i64", "num_rows": "i32", "width": "i32"}
    signature = {each: types.get(each, "constexpr") for each in function.arg_names}
    fixed = {"tile_rows": tile_rows, "tile_words": tile_words}
    whole = [["tt.divisibility", 16]]
    attrs = {(function.arg_names.index(each),): whole for each in ("rows", "memory", "width")}
    source = ASTSource(function, signature, fixed, attrs)
    text = triton.compile(source, target=TARGET).asm["ptx"]
    assert ".local" not in text
    assert "ld.global.v2.b64" in text
    assert "st.global.v2.b64" in text
