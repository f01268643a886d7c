"""Reduction kernels under the interpreter, against sums that numpy takes in f64.

Most data are small halves, whose sums every dtype holds exactly: then results are compared bit by
bit. The interpreter rounds f32 to bf16 differently from a GPU, so one test with any data allows
one unit in the last place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.codegen.buffers import FILLING, NUM_ROWS, Node, draw_distinct, draw_each, fresh, named
from tests.codegen.memory import Int64s, filled, int64s, zeros
from tests.codegen.scenes import scene
from tests.codegen.specs import built

Floats = NDArray[np.float64]

SUMS = {"sum_f16": "f16", "sum_bf16": "bf16", "sum_f32": "f32", "sum_f64": "f64"}
WIDE = {"f16": "f32", "bf16": "f32", "f32": "f32", "f64": "f64"}
PARTIAL = {"f16": "f32", "bf16": "bf16", "f32": "f32", "f64": "f64"}
NUMPY = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
COPIES = ["vit", "vit_nchw", "three_fields", "tiles", "wide_tiles"]
ELEMS = 21


def encode(values: Floats, dtype: str) -> NDArray[np.uint8]:
    """Exact values as bytes of a dtype, [rows, bytes]."""
    if dtype == "bf16":
        words = values.astype(np.float32).view(np.uint32)
        assert not np.any(words & 0xFFFF)
        return filled((words >> 16).astype(np.uint16)).view(np.uint8)
    cast = values.astype(NUMPY[dtype])
    assert np.array_equal(cast.astype(np.float64), values)
    return filled(cast).view(np.uint8)


def halves(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Numbers whose sums of a few, times 2, are exact in every dtype."""
    return rng.integers(-15, 16, shape) / 2


class Groups:
    """Terms of a few groups, some of them empty; ``of`` sums given rows over them."""

    def __init__(self, data: st.DataObject, num: int, num_rows: int, *, most: int = 5) -> None:
        sizes = data.draw(st.lists(st.integers(0, most), min_size=num, max_size=num))
        ends = np.cumsum([0, *sizes])
        self.begin, self.end = int64s(ends[:-1]), int64s(ends[1:])
        self.rows = draw_each(data, int(ends[-1]), num_rows)
        self.points = draw_each(data, int(ends[-1]), 4)

    def of(self, values: Floats, weights: Floats | None = None) -> Floats:
        factors = np.ones(len(self.rows)) if weights is None else weights[self.points]
        terms = values[self.rows] * factors[:, None]
        pairs = zip(self.begin, self.end, strict=True)
        return np.array([terms[a:b].sum(axis=0) for a, b in pairs]).reshape(-1, values.shape[1])

    def columns(self) -> dict[str, Int64s]:
        return {"term_begin": self.begin, "term_end": self.end}


@settings(max_examples=40)
@given(
    data=st.data(),
    name=st.sampled_from([*SUMS, "moe"]),
    suffix=st.sampled_from(["reduce_direct", "reduce_forward"]),
    num_programs=st.integers(1, 3),
)
def test_sums_into_staging(data: st.DataObject, name: str, suffix: str, num_programs: int) -> None:
    """Rows of one rank summed, weighted if the spec has weights, into rows of its peers."""
    dtype = SUMS.get(name, "bf16")
    elems = ELEMS if name in SUMS else 24
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    places = draw_distinct(data, [(p, s) for p in range(2) for s in range(NUM_ROWS)])
    peers, rows = int64s(places).reshape(-1, 2).T.copy()
    values = halves(rng, (6, elems))
    groups = Groups(data, len(places), len(values))
    weights = None if name in SUMS else rng.choice([-2.0, 0.5, 1.0, 2.0], 4)
    weighing = {}
    if weights is not None:
        weighing = {"term_point": groups.points, "weights": filled(weights.astype(np.float32))}
    stored = (PARTIAL if suffix == "reduce_direct" else WIDE)[dtype]
    wanted = encode(groups.of(values, weights), stored)
    node = Node(2, {"x": wanted.shape[1]})
    kernels = built(name)
    kernels.kernels.launch(
        f"{kernels.name}_{suffix}",
        num_programs,
        num_descriptors=len(places),
        dst_peer=peers,
        dst_row=rows,
        **groups.columns(),
        term_slot=groups.rows,
        **weighing,
        x_src=encode(values, dtype),
        **named(node.bases(), "dst"),
        **node.signal_arguments(2, 1),
    )
    node.check({"x": wanted}, peers, rows, (2, 1, num_programs))


def waiting(slot: int) -> dict[str, Any]:
    """Arguments of a wait for two peers that is over."""
    return {
        "wait_base": filled(np.full((4, 2), 3, np.int32)),
        "num_peers": 2,
        f"expected_{slot}": 3,
        "abort": zeros(1, np.int32),
        "late": zeros(1, np.int32),
    }


@settings(max_examples=40)
@given(data=st.data(), name=st.sampled_from(list(SUMS)), num_programs=st.integers(1, 3))
def test_sums_at_the_forwarder(data: st.DataObject, name: str, num_programs: int) -> None:
    """The terms of a group are neighbouring wide rows; the result is as wide as is safe."""
    dtype = SUMS[name]
    to = int64s(draw_distinct(data, list(range(NUM_ROWS))))
    groups = Groups(data, len(to), 1)
    values = halves(np.random.default_rng(0), (max(len(groups.rows), 1), ELEMS))
    groups.rows = int64s(range(len(groups.rows)))
    summed = encode(groups.of(values), PARTIAL[dtype])
    rows = fresh({"x": summed.shape[1]})
    built(name).kernels.launch(
        "blocks_reduce_node",
        num_programs,
        num_descriptors=len(to),
        **groups.columns(),
        dst_row=to,
        x_src=encode(values, WIDE[dtype]),
        **named(rows, "dst"),
        **waiting(3),
    )
    wanted = np.full_like(rows["x"], FILLING)
    wanted[to] = summed
    np.testing.assert_array_equal(rows["x"], wanted)


@settings(max_examples=30)
@given(data=st.data(), num_programs=st.integers(1, 3))
def test_sums_at_the_source(data: st.DataObject, num_programs: int) -> None:
    """Two fields of different dtypes, back into strided blocks; a segment of no terms is zero."""
    name, dtypes = "sum_tiles", {"x": "f32", "y": "f64"}
    rng = np.random.default_rng(7)
    kernels, given = built(name), scene(name, rng)
    segments = int64s(range(given.num_segments))
    groups = Groups(data, len(segments), 6)
    sizes = given.seg_bytes
    values = {f: halves(rng, (6, sizes[f] // (4 if t == "f32" else 8))) for f, t in dtypes.items()}
    result = {f: filled(np.full_like(rows, FILLING)) for f, rows in given.source.items()}
    wanted = {f: rows.copy().ravel() for f, rows in result.items()}
    kernels.kernels.launch(
        "blocks_reduce_source",
        num_programs,
        num_descriptors=len(segments),
        **given.columns("dst", segments),
        **groups.columns(),
        term_row=groups.rows,
        **named({f: encode(values[f], t) for f, t in dtypes.items()}, "src"),
        **named(result, "dst"),
        **waiting(2),
    )
    for field, dtype in dtypes.items():
        wanted[field][given.places[field]] = encode(groups.of(values[field]), dtype)
        np.testing.assert_array_equal(result[field].ravel(), wanted[field])


@settings(max_examples=40)
@given(data=st.data(), name=st.sampled_from(COPIES), num_programs=st.integers(1, 3))
def test_copies_at_the_source(data: st.DataObject, name: str, num_programs: int) -> None:
    """A combine that copies: bits of any dtype, and zeros where a segment was dropped."""
    kernels, given = built(name), scene(name, np.random.default_rng(8))
    segments = int64s(range(given.num_segments))
    groups = Groups(data, len(segments), 5, most=1)
    rng = np.random.default_rng(9)
    staging = {
        f: filled(rng.integers(0, 256, (5, n), np.uint8)) for f, n in given.seg_bytes.items()
    }
    result = {f: filled(np.full_like(rows, FILLING)) for f, rows in given.source.items()}
    wanted = {f: rows.copy().ravel() for f, rows in result.items()}
    kernels.kernels.launch(
        f"{kernels.name}_reduce_source",
        num_programs,
        num_descriptors=len(segments),
        **given.columns("dst", segments),
        **groups.columns(),
        term_row=groups.rows,
        **named(staging, "src"),
        **named(result, "dst"),
        **waiting(2),
    )
    for field, after in result.items():
        for group, (begin, end) in enumerate(zip(groups.begin, groups.end, strict=True)):
            row = staging[field][groups.rows[begin]] if begin < end else 0
            wanted[field][given.places[field][group]] = row
        np.testing.assert_array_equal(after.ravel(), wanted[field])


@settings(max_examples=40)
@given(
    data=st.data(),
    name=st.sampled_from(COPIES),
    suffix=st.sampled_from(["reduce_direct", "reduce_forward"]),
)
def test_copies_into_staging(data: st.DataObject, name: str, suffix: str) -> None:
    kernels, given = built(name), scene(name, np.random.default_rng(10))
    places = draw_distinct(data, [(p, s) for p in range(2) for s in range(NUM_ROWS)])
    peers, to = int64s(places).reshape(-1, 2).T.copy()
    rows = draw_each(data, len(places), given.num_segments)
    node = Node(2, given.seg_bytes)
    kernels.kernels.launch(
        f"{kernels.name}_{suffix}",
        2,
        num_descriptors=len(places),
        dst_peer=peers,
        dst_row=to,
        term_begin=int64s(range(len(places))),
        term_end=int64s(range(1, len(places) + 1)),
        term_slot=rows,
        **named({field: filled(rows) for field, rows in given.rows.items()}, "src"),
        **named(node.bases(), "dst"),
        **node.signal_arguments(3, 0),
    )
    node.check({f: given.rows[f][rows] for f in given.rows}, peers, to, (3, 0, 2))


@pytest.mark.parametrize("name", ["moe_odd", "moe_long"])
def test_any_data_within_one_unit_in_the_last_place(name: str) -> None:
    rng = np.random.default_rng(11)
    elems = 13 if name == "moe_odd" else (1 << 14) + 104
    values = (rng.standard_normal((4, elems)).astype(np.float32).view(np.uint32) >> 16) << 16
    staging = values.view(np.float32).astype(np.float64)
    result = zeros((1, elems), np.uint16)
    built(name).kernels.launch(
        "moe_reduce_source",
        num_descriptors=1,
        dst_offset=int64s([0]),
        term_begin=int64s([0]),
        term_end=int64s([4]),
        term_row=int64s([3, 1, 0, 2]),
        x_src=encode(staging, "bf16"),
        x_dst=result,
        **waiting(2),
    )
    got = (result.astype(np.uint32) << 16).view(np.float32).astype(np.float64)[0]
    exact = staging.sum(axis=0)
    unit = 2.0 ** (np.floor(np.log2(np.abs(exact) + 1e-30)) - 7)
    assert np.all(np.abs(got - exact) <= unit + 1e-6)
