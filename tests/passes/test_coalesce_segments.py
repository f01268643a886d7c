"""The copy shape against numpy: the same elements in the same order, in the fewest loops."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc.lang.checked import (
    CheckedShuffle,
    Const,
    DenseTarget,
    DomainIndex,
    ExtentRef,
    Field,
    IndexRef,
    Scalar,
    Source,
    Subscript,
)
from fuscoc.pipeline import compile_to_ir
from fuscoc.source import SourceFile, Span
from tests import specs
from tests.passes.interpreter import Rank, evaluate

BYTES = {"u8": 1, "bf16": 2, "f32": 4, "i64": 8}
HERE = Span(0, 1)


def coalesced(checked: CheckedShuffle) -> Any:
    """The module after coalesce-segments (it keeps its context alive) and its shuffle."""
    module = compile_to_ir(checked, after="simplify-scalars").module
    return module, next(op for op in module.body if op.operation.name == "fsc.shuffle")


def addresses(runs: dict[str, Any], offset: int, strides: list[int]) -> list[int]:
    """The element addresses that a copy shape names, in the order of the segment."""
    starts = {0: offset * runs["cell_elems"]}
    for dim in runs["run_dims"]:
        stride = dim["src_stride"]
        cells = (
            strides[int(stride.removeprefix("src_stride"))] if isinstance(stride, str) else stride
        )
        starts = {
            dst + i * dim["dst_stride"]: src + i * cells * runs["cell_elems"]
            for dst, src in starts.items()
            for i in range(dim["count"])
        }
    named = {dst + i: src + i for dst, src in starts.items() for i in range(runs["run_elems"])}
    assert sorted(named) == list(range(runs["seg_elems"]))
    return [named[i] for i in range(runs["seg_elems"])]


def fewest_loops(flat: list[int]) -> tuple[int, int]:
    """The longest contiguous run at the start of ``flat`` and how many loops it takes around it."""
    run = next((i for i in range(1, len(flat)) if flat[i] != flat[i - 1] + 1), len(flat))
    starts, loops = flat[::run], 0
    while len(starts) > 1:
        step = starts[1] - starts[0]
        count = next(
            (i for i in range(1, len(starts)) if starts[i] - starts[i - 1] != step), len(starts)
        )
        starts, loops = starts[::count], loops + 1
    return run, loops


@st.composite
def blocks(draw: st.DrawFn) -> tuple[CheckedShuffle, dict[str, int], tuple[int, ...]]:
    """A dense source with random dims, some known only at run time, and a block of its cells.

    Run-time dims are larger than their subscript is long, as nothing else may be assumed of them.
    """
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    extents: dict[str, int] = {"points": draw(st.integers(1, 3))}
    dims: list[Scalar] = []
    sizes = []
    for i, length in enumerate(lengths):
        size = length + draw(st.integers(0, 3))
        if draw(st.booleans()):
            size += 1
            extents[f"dim{i}"] = size
            dims.append(ExtentRef(f"dim{i}"))
        else:
            dims.append(Const(size))
        sizes.append(size)
    starts = [draw(st.integers(0, size - n)) for size, n in zip(sizes, lengths, strict=True)]
    cells = draw(st.lists(st.lists(st.integers(1, 3), max_size=2), min_size=1, max_size=2))
    dtypes = [draw(st.sampled_from(sorted(BYTES))) for _ in cells]

    def fields(outer: tuple[int, ...]) -> tuple[Field, ...]:
        return tuple(
            Field(f"f{i}", dtype, (*outer, *cell), HERE)
            for i, (cell, dtype) in enumerate(zip(cells, dtypes, strict=True))
        )

    source = Source(
        layout="array",
        fields=fields(()),
        dims=tuple(dims),
        subscripts=tuple(
            Subscript(Const(start), None if n == 1 else n, HERE)
            for start, n in zip(starts, lengths, strict=True)
        ),
        span=HERE,
    )
    checked = CheckedShuffle(
        name="blocks",
        source_file=SourceFile("blocks.fsc", "blocks"),
        span=HERE,
        constants=(),
        extents=tuple(extents),
        inputs=(),
        domain=(DomainIndex("d", ExtentRef("points"), HERE),),
        num_source_dims=1,
        segment="block",
        fields=fields(tuple(n for n in lengths if n > 1)),
        source=source,
        target=DenseTarget("line", IndexRef("d"), Const(0), ExtentRef("points"), HERE),
        combine=None,
        policy=specs.POLICY,
        dispatch_span=HERE,
    )
    return checked, extents, tuple(starts)


@settings(max_examples=75)
@given(blocks())
def test_runs_name_the_elements_of_the_block(
    example: tuple[CheckedShuffle, dict[str, int], tuple[int, ...]],
) -> None:
    checked, extents, starts = example
    source = checked.source
    sizes = [extents[d.name] if isinstance(d, ExtentRef) else d.value for d in source.dims]  # type: ignore[union-attr]
    lengths = [s.length or 1 for s in source.subscripts]
    _module, shuffle = coalesced(checked)
    point = evaluate(shuffle.relation, (0,), Rank(extents))
    for field, runs in zip(source.fields, shuffle.read("runs"), strict=True):
        array = np.arange(prod(sizes) * prod(field.shape)).reshape(*sizes, *field.shape)
        block = array[tuple(slice(s, s + n) for s, n in zip(starts, lengths, strict=True))]
        expected = block.reshape(-1).tolist()
        assert addresses(runs, point["offset"][0], point["strides"]) == expected
        assert (runs["run_elems"], len(runs["run_dims"])) == fewest_loops(expected)
        check_unit(field, runs, point)


def check_unit(field: Field, runs: dict[str, Any], point: dict[str, list[int]]) -> None:
    """Every address at which a run starts, here and in the row, is a multiple of the unit."""
    unit, item = runs["unit_bytes"], BYTES[field.dtype]
    cell_bytes = runs["cell_elems"] * item
    strides = [d["src_stride"] for d in runs["run_dims"] if isinstance(d["src_stride"], int)]
    for cells in [*point["offset"], *point["strides"], *strides]:
        assert cells * cell_bytes % unit == 0
    for elems in [
        runs["run_elems"],
        runs["seg_elems"],
        *[d["dst_stride"] for d in runs["run_dims"]],
    ]:
        assert elems * item % unit == 0
    assert {16: "i64", 8: "i64", 4: "i32", 2: "i16", 1: "i8"}[unit] == runs["copy_dtype"]


@settings(max_examples=40)
@given(
    p=st.integers(1, 5),
    c=st.integers(1, 3),
    patches=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=3),
    channels_first=st.booleans(),
)
def test_ragged_views(
    p: int, c: int, patches: list[tuple[int, int]], *, channels_first: bool
) -> None:
    """Every patch of pictures of different sizes, against slices of the concatenated pictures."""
    _module, shuffle = coalesced(specs.vit_patches(p, c, channels_first=channels_first))
    (runs,) = shuffle.read("runs")
    sizes = [(rows * p, cols * p) for rows, cols in patches]
    cell_counts = [h * w * (c if channels_first else 1) for h, w in sizes]
    cell_offset = tuple(int(n) for n in np.cumsum([0, *cell_counts]))
    rank = Rank(
        {"images": len(patches), "length": 99},
        {
            "height": np.array([h for h, _ in sizes]),
            "width": np.array([w for _, w in sizes]),
            "packing": np.array([[7, 100 * n] for n in range(len(patches))]),
        },
        cell_offset,
    )
    for n, (h, w) in enumerate(sizes):
        shape = (c, h, w) if channels_first else (h, w, c)
        picture = np.arange(prod(shape)).reshape(shape) + cell_offset[n] * (
            1 if channels_first else c
        )
        domain = evaluate(shuffle.domain, (n,), rank)
        assert domain == {"cells": [cell_counts[n]], "extents": [len(patches), h // p, w // p]}
        for i in range(h // p):
            for j in range(w // p):
                rows, cols = slice(i * p, i * p + p), slice(j * p, j * p + p)
                block = picture[:, rows, cols] if channels_first else picture[rows, cols]
                point = evaluate(shuffle.relation, (n, i, j), rank)
                assert point["rank"] == [7]
                assert point["place"] == [100 * n + i * (w // p) + j]
                found = addresses(runs, point["offset"][0], point["strides"])
                assert found == block.ravel().tolist()
                field = Field("pixels", "u8", (), HERE)
                check_unit(field, runs, point)


@pytest.mark.parametrize(
    ("p", "c", "channels_first", "unit"),
    [(14, 3, False, 2), (16, 3, False, 16), (16, 3, True, 16), (8, 1, False, 8), (7, 3, True, 1)],
)
def test_exact_divisions_widen_the_unit(p: int, c: int, channels_first: bool, unit: int) -> None:
    """The widest unit needs that p divides height and width, which only the domain says."""
    _module, shuffle = coalesced(specs.vit_patches(p, c, channels_first=channels_first))
    assert [runs["unit_bytes"] for runs in shuffle.read("runs")] == [unit]


@pytest.mark.parametrize(("hidden", "unit"), [(7168, 16), (12, 8), (6, 4), (5, 2)])
def test_rows_of_odd_sizes(hidden: int, unit: int) -> None:
    _module, shuffle = coalesced(specs.moe(hidden=hidden))
    (runs,) = shuffle.read("runs")
    assert (runs["run_elems"], runs["run_dims"], runs["unit_bytes"]) == (hidden, (), unit)


def test_fields_have_their_own_shapes() -> None:
    checked = specs.moe(hidden=64)
    payload = replace(checked.fields[0], dtype="f8e4m3")
    scale = Field("scale", "f32", (), checked.span)
    fields = (payload, scale)
    _module, shuffle = coalesced(
        replace(
            checked,
            fields=fields,
            source=replace(checked.source, fields=fields),
            combine=None,  # nothing sums 8-bit floats
        )
    )
    assert [
        (runs["name"], runs["dtype"], runs["seg_elems"], runs["unit_bytes"], runs["copy_dtype"])
        for runs in shuffle.read("runs")
    ] == [("x", "f8e4m3", 64, 16, "i64"), ("scale", "f32", 1, 4, "i32")]
