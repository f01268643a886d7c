"""The examples' kernels as printed, with nothing but numpy and triton: for older triton versions.

The kernels are the golden files, so that neither the compiler nor torch is needed here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.codegen.memory import Kernels, addresses, filled, int64s, zeros
from tests.codegen.ptx import PtxOf, accesses, barriers_before_release

GOLDEN = Path(__file__).parent / "golden"
FILES = ["moe.py", "vit_patches.py"]
HIDDEN = 7168
PATCH = 14 * 14 * 3


def kernels(name: str) -> Kernels:
    return Kernels(GOLDEN / name)


def test_relation_of_keys() -> None:
    topk_idx = int64s([[3, -1, 255, 256, 0, 128, -2, 7]])
    found = {name: int64s([-9] * 8) for name in ("source", "src_offset", "rank", "key")}
    kernels("moe.py").launch(
        "moe_relation",
        num_points=8,
        num_ranks=4,
        topk_idx=topk_idx,
        key_to_rank=int64s(np.arange(256) // 64),
        **found,
    )
    assert found["rank"].tolist() == [0, -1, 3, -2, 0, 2, -2, 0]
    assert found["key"].tolist() == topk_idx[0].tolist()
    assert not found["source"].any()
    assert not found["src_offset"].any()


def test_send_signals_every_peer() -> None:
    tokens = filled(np.random.default_rng(0).integers(0, 1 << 16, (5, HIDDEN), np.uint16))
    targets = [zeros((4, HIDDEN), np.uint16) for _ in range(2)]
    words = [zeros((4, 2), np.int32) for _ in range(2)]
    source, peer, slot = int64s([4, 0, 4]), int64s([1, 0, 0]), int64s([3, 0, 2])
    kernels("moe.py").launch(
        "moe_send",
        2,
        num_descriptors=3,
        src_offset=source,
        dst_peer=peer,
        dst_slot=slot,
        x_src=tokens,
        x_dst=addresses(targets),
        signals=addresses(words),
        signal_slot=1,
        num_peers=2,
        my_peer=0,
    )
    wanted = np.zeros((2, 4, HIDDEN), np.uint16)
    wanted[peer, slot] = tokens[source]
    np.testing.assert_array_equal(np.stack(targets), wanted)
    assert [window.tolist() for window in words] == [[[0, 0], [2, 0], [0, 0], [0, 0]]] * 2


def test_weighted_sum_in_bf16() -> None:
    """Small whole numbers, whose bf16 is their f32 cut in half."""
    rng = np.random.default_rng(1)
    values = rng.integers(-8, 9, (4, HIDDEN)).astype(np.float32)
    weights = filled(np.array([2.0, 0.5, -1.0], np.float32))
    staging, words = [zeros((2, HIDDEN), np.uint16)], [zeros((4, 1), np.int32)]
    kernels("moe.py").launch(
        "moe_reduce_direct",
        num_descriptors=2,
        dst_peer=int64s([0, 0]),
        dst_row=int64s([1, 0]),
        term_begin=int64s([0, 3]),
        term_end=int64s([3, 3]),
        term_slot=int64s([3, 0, 1]),
        term_point=int64s([1, 0, 2]),
        weights=weights,
        x_src=filled((values.view(np.uint32) >> 16).astype(np.uint16)),
        x_dst=addresses(staging),
        signals=addresses(words),
        signal_slot=2,
        num_peers=1,
        my_peer=0,
    )
    result = (staging[0].astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(result[1], 0.5 * values[3] + 2 * values[0] - values[1])
    assert not result[0].any()
    assert words[0][2, 0] == 1


@pytest.mark.parametrize("expected", [2, 3])
def test_wait_gives_up(expected: int) -> None:
    target = filled(np.ones((2, HIDDEN), np.uint16) * np.array([[7], [0]], np.uint16))
    late = zeros(1, np.int32)
    kernels("moe.py").launch(
        "moe_duplicate",
        num_descriptors=1,
        src_slot=int64s([0]),
        dst_slot=int64s([1]),
        x_src=target,
        x_dst=target,
        wait_base=filled(np.array([[2, 2], [9, 2]], np.int32)),
        num_peers=2,
        expected_0=2,
        expected_1=expected,
        abort=filled(np.ones(1, np.int32)),
        late=late,
    )
    assert late[0] == (0 if expected == 2 else 4)
    assert target[1].any() == (expected == 2)


def test_patches_there_and_back() -> None:
    """One picture of two patches: into rows, and from rows into an empty picture."""
    picture = filled(np.random.default_rng(2).integers(0, 256, (14, 28, 3), np.uint8))
    rows, offset, stride = zeros((3, PATCH), np.uint8), int64s([0, 14]), int64s([28, 28])
    loaded = kernels("vit_patches.py")
    loaded.launch(
        "vit_patches_pack",
        num_descriptors=2,
        src_offset=offset,
        src_stride0=stride,
        dst_row=int64s([2, 0]),
        pixels_src=picture,
        pixels_dst=rows,
    )
    np.testing.assert_array_equal(rows[0], picture[:, 14:].ravel())
    back = filled(np.full_like(picture, 9))
    loaded.launch(
        "vit_patches_reduce_source",
        num_descriptors=2,
        dst_offset=offset,
        dst_stride0=stride,
        term_begin=int64s([0, 1]),
        term_end=int64s([1, 1]),
        term_row=int64s([2]),
        pixels_src=rows,
        pixels_dst=back,
        wait_base=zeros((4, 1), np.int32),
        num_peers=1,
        expected_2=0,
        abort=zeros(1, np.int32),
        late=zeros(1, np.int32),
    )
    np.testing.assert_array_equal(back[:, :14], picture[:, :14])
    assert not back[:, 14:].any()


@pytest.mark.nightly  # as `test_compile.py` does by day, where there is more than numpy
@pytest.mark.parametrize("file", FILES)
def test_compiles_for_sm_90(file: str) -> None:
    kernels = PtxOf(GOLDEN / file, {})
    for name, ptx in kernels.items():
        if "release" in ptx:
            assert barriers_before_release(ptx) > 0, name
    if file == "moe.py":
        assert "v2.b64" in accesses(kernels["moe_send"], "st")
