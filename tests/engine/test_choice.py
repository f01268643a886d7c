"""Which engine executes a shuffle, and the errors that CUDA kernels leave behind."""

from __future__ import annotations

import dataclasses
import json
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuscoc.artifact import MANIFEST
from fuscoc_runtime.decode import decode
from fuscoc_runtime.engine.choice import (
    Gpu,
    choose_cuda,
    choose_triton,
    missing_dtype,
    worst_capacity,
)
from fuscoc_runtime.engine.node.state import (
    BAD_KEYS,
    GAVE_UP,
    OVERFLOWED,
    REFUSED,
    STATE_WORDS,
    Trouble,
    parse_state,
)
from fuscoc_runtime.engine.node.watch import find_error
from fuscoc_runtime.errors import (
    HopTimeoutError,
    KeyRangeError,
    NoSlotError,
    RefusedCallError,
    from_json,
    to_json,
)
from fuscoc_runtime.schema import Manifest, PackedTarget, ShuffleSpec
from fuscoc_runtime.topology import Topology
from tests.artifact.test_manifest import compiled
from tests.specs import moe, moe_fp8, vit_patches

HOPPER, AMPERE, ADA = (
    Gpu((9, 0), 227 * 1024),
    Gpu((8, 0), 163 * 1024),
    Gpu((8, 9), 99 * 1024),
)
NODE = Topology(1, 4)
FINE = Trouble(None, None, 0, 0)


@cache
def spec(name: str = "moe") -> ShuffleSpec:
    files = compiled({"moe": moe, "fp8": moe_fp8, "vit": vit_patches}[name]())
    (shuffle,) = decode(Manifest, json.loads(files[MANIFEST])).shuffles
    return shuffle


def test_triton_casts_to_f8e4m3_on_newer_gpus() -> None:
    reason = "Triton can do so from sm_89 on, and this is sm_80"
    assert missing_dtype(spec("fp8"), AMPERE) == reason
    for gpu in (HOPPER, ADA, None):
        assert missing_dtype(spec("fp8"), gpu) is None
    assert missing_dtype(spec(), AMPERE) is None


@pytest.mark.parametrize(("gpu", "arch"), [(HOPPER, "sm_90"), (AMPERE, "sm_80")])
def test_the_kernels_that_fit_the_gpu(gpu: Gpu, arch: str) -> None:
    chosen = choose_cuda(spec(), NODE, gpu, 64)
    assert not isinstance(chosen, str)
    assert chosen.arch == arch
    newer = choose_cuda(spec(), NODE, Gpu((10, 0), gpu.shared_bytes), 64)
    assert newer == chosen


@pytest.mark.parametrize(
    ("name", "topology", "gpu", "max_sources", "reason"),
    [
        ("moe", NODE, HOPPER, None, "without `max_sources`"),
        ("moe", NODE, None, 64, "do not compute on CUDA"),
        ("moe", Topology(2, 4), HOPPER, 64, "2 nodes"),
        ("moe", Topology(1, 16), HOPPER, 64, "16 ranks"),
        ("moe", NODE, ADA, 64, "too small a GPU"),
        ("moe", NODE, Gpu((7, 5), 227 * 1024), 64, "too small a GPU"),
        ("vit", NODE, HOPPER, 64, "dense"),
    ],
)
def test_reasons(
    name: str, topology: Topology, gpu: Gpu | None, max_sources: int | None, reason: str
) -> None:
    chosen = choose_cuda(spec(name), topology, gpu, max_sources)
    assert isinstance(chosen, str)
    assert reason in chosen


@pytest.mark.parametrize(
    ("name", "topology", "reason"),
    [
        ("moe", Topology(2, 4), "2 nodes"),
        ("moe", Topology(1, 16), "16 ranks"),
        ("vit", NODE, "dense"),
    ],
)
def test_reasons_for_no_triton_kernels_of_one_node(
    name: str, topology: Topology, reason: str
) -> None:
    chosen = choose_triton(spec(name), topology)
    assert isinstance(chosen, str)
    assert reason in chosen
    assert choose_triton(spec("moe"), NODE) == spec("moe").node


@given(
    align=st.integers(1, 128),
    num_ranks=st.integers(1, 8),
    kind=st.sampled_from(["block", "cyclic", "table"]),
    data=st.data(),
)
def test_the_worst_capacity_is_always_enough(
    align: int, num_ranks: int, kind: str, data: st.DataObject
) -> None:
    """Whatever keys the points have, no rank needs more slots."""
    target = spec().target
    assert isinstance(target, PackedTarget)
    placement = dataclasses.replace(target.placement, kind=kind)
    num_keys = data.draw(st.integers(num_ranks, 12))
    target = dataclasses.replace(target, num_keys=num_keys, align=align, placement=placement)
    shuffle = dataclasses.replace(spec(), target=target)
    owner = {
        "block": lambda key: key // -(-num_keys // num_ranks),
        "cyclic": lambda key: key % num_ranks,
        "table": lambda key: 0,
    }[kind]
    points = num_ranks * shuffle.fanout
    keys = data.draw(st.lists(st.integers(0, num_keys - 1), max_size=points))
    for rank in range(num_ranks):
        counts = [keys.count(key) for key in range(num_keys) if owner(key) == rank]
        slots = sum(-(-count // align) * align for count in counts)
        assert slots <= worst_capacity(shuffle, num_ranks, 1)


def state(gave_up: int = 0, bad_keys: int = 0, overflowed: int = 0) -> Trouble:
    words = [0] * STATE_WORDS
    words[GAVE_UP], words[BAD_KEYS], words[OVERFLOWED] = gave_up, bad_keys, overflowed
    return parse_state(words)


def test_errors_of_a_device() -> None:
    assert find_error(spec(), 1, 5.0, 64, FINE, state()) is None
    error = find_error(spec(), 1, 5.0, 64, FINE, state(bad_keys=3))
    assert isinstance(error, KeyRangeError)
    assert (error.count, error.highest, error.key) == (3, 255, "topk_idx[t, k]")
    error = find_error(spec(), 1, 5.0, 64, state(bad_keys=3), state(bad_keys=3, overflowed=2))
    assert isinstance(error, NoSlotError)
    assert (error.count, error.capacity) == (2, 64)
    before = state(bad_keys=3, overflowed=2)
    assert find_error(spec(), 1, 5.0, 64, before, before) is None
    word = (2 << 24 | 3 << 20 | 17 | 1 << 31) - (1 << 32)  # as an int32 reads it
    late = state(gave_up=word, bad_keys=3)
    error = find_error(spec(), 1, 5.0, 64, late, late)
    assert isinstance(error, HopTimeoutError)
    assert (error.peer, error.hop) == (3, "rows of group 17")
    refused = state(gave_up=(REFUSED << 24 | 2 << 20 | 1 << 31) - (1 << 32))
    error = find_error(spec(), 1, 5.0, 64, refused, refused)
    assert isinstance(error, RefusedCallError)
    assert error.peer == 2
    assert str(from_json(to_json(error))) == str(error)
