"""Relation and extents kernels under the interpreter, against the examples written in Python."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc.lang.check import check as check_text
from fuscoc.lang.checked import Const
from fuscoc.source import SourceFile
from tests.codegen.memory import Int64s, int64s
from tests.codegen.specs import Built, blocks, built, built_of
from tests.specs import vit_patches

UNTOUCHED = -99


def outputs(names: str, num: int) -> dict[str, Int64s]:
    """Arrays with one element more than a kernel may write."""
    return {name: int64s([UNTOUCHED] * (num + 1)) for name in names.split()}


def check(found: dict[str, Int64s], wanted: dict[str, Any]) -> None:
    for name, values in wanted.items():
        assert found[name].tolist() == [*values, UNTOUCHED], name


@settings(max_examples=30)
@given(
    keys=st.lists(st.lists(st.integers(-3, 14), min_size=3, max_size=3), max_size=6),
    owners=st.lists(st.integers(-2, 5), min_size=12, max_size=12),
    num_ranks=st.integers(1, 4),
    num_programs=st.integers(1, 3),
)
def test_packed(
    keys: list[list[int]], owners: list[int], num_ranks: int, num_programs: int
) -> None:
    points = [(t, key) for t, row in enumerate(keys) for key in row]
    found = outputs("source src_offset rank key", len(points))
    built("moe").kernels.launch(
        "moe_relation",
        num_programs,
        num_points=len(points),
        num_ranks=num_ranks,
        topk_idx=int64s(keys),
        key_to_rank=int64s(owners),
        **found,
    )

    def rank(key: int) -> int:
        owner = owners[key] if 0 <= key < 12 else -1 if key == -1 else -2
        return owner if -1 <= owner < num_ranks else -2

    sources = [t for t, _ in points]
    wanted = {"source": sources, "src_offset": sources}
    check(found, wanted | {"rank": [rank(k) for _, k in points], "key": [k for _, k in points]})


@pytest.mark.parametrize("num_tokens", [341, 342, 1025])
@pytest.mark.parametrize("num_programs", [1, 2])
def test_more_points_than_lanes(num_tokens: int, num_programs: int) -> None:
    keys = np.random.default_rng(0).integers(-1, 12, (num_tokens, 3))
    found = outputs("source src_offset rank key", keys.size)
    built("moe").kernels.launch(
        "moe_relation",
        num_programs,
        num_points=keys.size,
        num_ranks=12,
        topk_idx=int64s(keys),
        key_to_rank=int64s(range(12)),
        **found,
    )
    sources = [point // 3 for point in range(keys.size)]
    flat = keys.ravel().tolist()
    check(found, {"source": sources, "src_offset": sources, "rank": flat, "key": flat})


SIZES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=4)


@settings(max_examples=30)
@given(sizes=SIZES, data=st.data(), num_programs=st.integers(1, 2))
@pytest.mark.parametrize("nchw", [False, True])
def test_ragged(
    nchw: bool, sizes: list[tuple[int, int]], data: st.DataObject, num_programs: int
) -> None:
    p = 4 if nchw else 2
    height, width = (int64s([size[axis] * p for size in sizes]) for axis in range(2))
    packing = int64s([data.draw(st.tuples(st.integers(-2, 3), st.integers(0, 9))) for _ in sizes])
    cells = height * width * (3 if nchw else 1)
    rows = []
    for n, (num_i, num_j) in enumerate(sizes):
        base, (rank, first) = int(cells[:n].sum()), packing[n]
        for i in range(num_i):
            for j in range(num_j):
                offset = base + i * p * int(width[n]) + j * p
                rows.append((n, offset, n, rank if -1 <= rank < 3 else -2, first + i * num_j + j))
    outer, offset, image, rank, slot = ([row[k] for row in rows] for k in range(5))
    widths, planes = [int(width[n]) for n in image], [int(height[n] * width[n]) for n in image]
    strides = {f"src_stride{k}": v for k, v in enumerate([planes, widths] if nchw else [widths])}
    found = outputs(" ".join(["source src_offset rank slot", *strides]), len(rows))
    counts = int64s([a * b for a, b in sizes])
    built("vit_nchw" if nchw else "vit").kernels.launch(
        "vit_patches_relation",
        num_programs,
        num_points=len(rows),
        num_ranks=3,
        **({"height": height} if nchw else {}),
        width=width,
        packing=packing,
        outer=int64s(outer),
        point_offset=int64s([0, *np.cumsum(counts)]),
        cell_offset=int64s([0, *np.cumsum(cells)]),
        **found,
    )
    sources = range(len(rows))
    check(found, {"source": sources, "src_offset": offset, "rank": rank, "slot": slot, **strides})


MOST = 2**61  # points, or cells, that are counted
SIZE = st.one_of(
    st.integers(-3, 12),
    st.integers(0, 6).map(lambda n: 2**31 - 3 + n),
    st.integers(60, 62).flatmap(lambda bit: st.integers(2**bit - 2, 2**bit + 2)),
    st.just(2**63 - 1),
)


@settings(max_examples=100)
@given(sizes=st.lists(st.tuples(SIZE, SIZE), max_size=5))
def test_extents(sizes: list[tuple[int, int]]) -> None:
    found = outputs("points cells status", len(sizes))
    built("vit").kernels.launch(
        "vit_patches_extents",
        num_outer=len(sizes),
        height=int64s([h for h, _ in sizes]),
        width=int64s([w for _, w in sizes]),
        **found,
    )
    for n, (h, w) in enumerate(sizes):
        status, most = found["status"][n], MOST // len(sizes)
        assert bool(status & 1) == bool(h % 2 or w % 2)
        if h < 0 or w < 0:
            assert status & 2
        elif max(h, w, h * w) > most:
            assert status & 4
        else:
            assert status in (0, 1)
            assert found["cells"][n] == h * w
            assert status or found["points"][n] == (h // 2) * (w // 2)
    assert found["status"][-1] == UNTOUCHED


SUMS = """
    shuffle sums {
      index d : texts   index w : length(d) + 3 * more(d)   index s : slots
      segment token { x : i32 }
      layout tokens[d, w] of token
      layout targets[s]   of token
      route to(d) -> (rank, slot) = input places : int64[2]
      dispatch tokens[d, w] -> targets[to(d).slot + w] on to(d).rank
    }"""


@cache
def sums() -> Built:
    (checked,) = check_text(SourceFile("sums.fsc", SUMS))
    return built_of(checked)


@settings(max_examples=100)
@given(sizes=st.lists(st.tuples(SIZE, SIZE), min_size=1, max_size=5))
def test_extents_that_are_sums(sizes: list[tuple[int, int]]) -> None:
    found = outputs("points cells status", len(sizes))
    length, more = (int64s([each[k] for each in sizes]) for k in range(2))
    sums().kernels.launch("sums_extents", num_outer=len(sizes), length=length, more=more, **found)
    for n, (one, other) in enumerate(sizes):
        status, count = found["status"][n], one + 3 * other
        if min(one, other) < 0:
            assert status & 2
        elif max(one, 3 * other, count) > MOST // len(sizes):
            assert status & 4
        else:
            assert (status, found["points"][n], found["cells"][n]) == (0, count, count)


def test_inputs_of_any_integer_type() -> None:
    """Narrow inputs are widened before any arithmetic."""
    checked = vit_patches(p=2)
    inputs = tuple(replace(given, dtype="i32") for given in checked.inputs)
    found = outputs("points cells status", 1)
    built_of(replace(checked, inputs=inputs)).kernels.launch(
        "vit_patches_extents",
        num_outer=1,
        height=np.array([1 << 20], np.int32),
        width=np.array([1 << 20], np.int32),
        **found,
    )
    assert found["cells"][0] == 1 << 40


@pytest.mark.parametrize("number", [2**31 - 1, 2**31, 2**32 - 1, 2**32])
def test_numbers_beyond_32_bits_are_signed(number: int) -> None:
    checked = blocks((("x", "u8", ()),))
    checked = replace(
        checked, target=replace(checked.target, slot=Const(number), rank=Const(number))
    )
    found = outputs("source src_offset rank slot", 1)
    built_of(checked).kernels.launch("blocks_relation", num_points=1, num_ranks=4, **found)
    check(found, {"rank": [-2], "slot": [number]})
