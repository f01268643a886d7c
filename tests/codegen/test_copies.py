"""Copy kernels under the interpreter: every byte of every buffer, for any list."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codegen.buffers import FILLING, NUM_ROWS, Node, draw_distinct, draw_each, fresh, named
from tests.codegen.memory import filled, int64s, zeros
from tests.codegen.scenes import scene
from tests.codegen.specs import ITEM_BYTES, blocks, built, built_of
from tests.drawn import at_night

COPIES = ["moe", "moe_odd", "vit", "vit_nchw", "three_fields", "tiles", "wide_tiles"]


@settings(max_examples=at_night(40))
@given(data=st.data(), name=st.sampled_from(COPIES), num_programs=st.integers(1, 3))
def test_pack(data: st.DataObject, name: str, num_programs: int) -> None:
    kernels, given = built(name), scene(name, np.random.default_rng(1))
    to = int64s(draw_distinct(data, list(range(NUM_ROWS))))
    segments = draw_each(data, len(to), given.num_segments)
    rows = fresh(given.seg_bytes)
    kernels.kernels.launch(
        f"{kernels.name}_pack",
        num_programs,
        num_descriptors=len(to),
        dst_row=to,
        **given.columns("src", segments),
        **named(given.source, "src"),
        **named(rows, "dst"),
    )
    for field, after in rows.items():
        wanted = np.full_like(after, FILLING)
        wanted[to] = given.rows[field][segments]
        np.testing.assert_array_equal(after, wanted)


@settings(max_examples=40)
@given(
    data=st.data(),
    name=st.sampled_from(COPIES),
    num_programs=st.integers(1, 3),
    num_peers=st.integers(1, 3),
    slot=st.integers(0, 4),
)
def test_send(data: st.DataObject, name: str, num_programs: int, num_peers: int, slot: int) -> None:
    kernels, given = built(name), scene(name, np.random.default_rng(2))
    places = draw_distinct(data, [(p, s) for p in range(num_peers) for s in range(NUM_ROWS)])
    peers, slots = int64s(places).reshape(-1, 2).T.copy()
    segments = draw_each(data, len(places), given.num_segments)
    me = data.draw(st.integers(0, num_peers - 1))
    node = Node(num_peers, given.seg_bytes)
    kernels.kernels.launch(
        f"{kernels.name}_send",
        num_programs,
        num_descriptors=len(places),
        dst_peer=peers,
        dst_slot=slots,
        **given.columns("src", segments),
        **named(given.source, "src"),
        **named(node.bases(), "dst"),
        **node.signal_arguments(slot, me),
    )
    rows = {field: rows[segments] for field, rows in given.rows.items()}
    node.check(rows, peers, slots, (slot, me, num_programs))


@settings(max_examples=40)
@given(data=st.data(), name=st.sampled_from(COPIES), num_programs=st.integers(1, 3))
def test_forward(data: st.DataObject, name: str, num_programs: int) -> None:
    kernels, given = built(name), scene(name, np.random.default_rng(3))
    places = draw_distinct(data, [(p, s) for p in range(2) for s in range(NUM_ROWS)])
    peers, slots = int64s(places).reshape(-1, 2).T.copy()
    landed = draw_each(data, len(places), given.num_segments)
    node = Node(2, given.seg_bytes)
    kernels.kernels.launch(
        f"{kernels.name}_forward",
        num_programs,
        num_descriptors=len(places),
        src_row=landed,
        dst_peer=peers,
        dst_slot=slots,
        **named({field: filled(rows) for field, rows in given.rows.items()}, "src"),
        **named(node.bases(), "dst"),
        **node.signal_arguments(1, 0),
    )
    rows = {field: rows[landed] for field, rows in given.rows.items()}
    node.check(rows, peers, slots, (1, 0, num_programs))


@settings(max_examples=40)
@given(data=st.data(), name=st.sampled_from(COPIES), num_programs=st.integers(1, 3))
def test_duplicate(data: st.DataObject, name: str, num_programs: int) -> None:
    """Rows of one buffer to other rows of it, once both signal slots of all peers have come."""
    kernels, given = built(name), scene(name, np.random.default_rng(4))
    first = given.num_segments
    to = int64s(draw_distinct(data, list(range(first, first + 5))))
    read = draw_each(data, len(to), first)
    before = {
        f: np.concatenate([rows, np.full((6, rows.shape[1]), FILLING, np.uint8)])
        for f, rows in given.rows.items()
    }
    target = {field: filled(rows) for field, rows in before.items()}
    late = zeros(1, np.int32)
    kernels.kernels.launch(
        f"{kernels.name}_duplicate",
        num_programs,
        num_descriptors=len(to),
        src_slot=read,
        dst_slot=to,
        **named(target, "src"),
        **named(target, "dst"),
        wait_base=filled(np.array([[4, 5], [7, 7]], np.int32)),
        num_peers=2,
        expected_0=4,
        expected_1=7,
        abort=zeros(1, np.int32),
        late=late,
    )
    assert not late.any()
    for field, after in target.items():
        wanted = before[field].copy()
        wanted[to] = before[field][read]
        np.testing.assert_array_equal(after, wanted)


@pytest.mark.parametrize("name", ["long", "moe_long"])
def test_rows_longer_than_the_registers(name: str) -> None:
    kernels, given = built(name), scene(name, np.random.default_rng(5))
    rows = fresh(given.seg_bytes)
    kernels.kernels.launch(
        f"{kernels.name}_pack",
        num_descriptors=2,
        dst_row=int64s([7, 0]),
        **given.columns("src", int64s([3, 1])),
        **named(given.source, "src"),
        **named(rows, "dst"),
    )
    for field, after in rows.items():
        wanted = np.full_like(after, FILLING)
        wanted[[7, 0]] = given.rows[field][[3, 1]]
        np.testing.assert_array_equal(after, wanted)


def test_runs_further_apart_than_32_bits_count() -> None:
    """The source is as large, but next to none of its memory is touched."""
    width = 2**30 + 5
    kernels = built_of(blocks((("x", "u8", ()),), (3, 4), (width,)))
    source, rows = zeros((3, width), np.uint8), fresh({"x": 12})
    source[:, :4] = np.arange(1, 13).reshape(3, 4)
    kernels.kernels.launch(
        "blocks_pack",
        num_descriptors=1,
        src_offset=int64s([0]),
        dst_row=int64s([1]),
        x_src=source,
        **named(rows, "dst"),
    )
    assert rows["x"][1].tolist() == list(range(1, 13))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "u8", "f8e4m3", "i64"])
def test_bits_survive(dtype: str) -> None:
    """Every bit pattern of a row comes through, whatever its dtype makes of it."""
    size = 32 * ITEM_BYTES[dtype]
    kernels = built_of(blocks((("x", dtype, (32,)),)))
    rows = filled(np.frombuffer(bytes(range(256)) * size, np.uint8).reshape(-1, size))
    landed = int64s(range(len(rows)))
    after = zeros(rows.shape, np.uint8)
    kernels.kernels.launch(
        "blocks_pack",
        num_descriptors=len(rows),
        src_offset=landed,
        dst_row=landed,
        x_src=rows,
        x_dst=after,
    )
    np.testing.assert_array_equal(after, rows)
