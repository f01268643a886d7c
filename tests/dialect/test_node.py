"""What ``fsc.node`` and its tiles refuse, on modules that the passes have made."""

from __future__ import annotations

from functools import cache

import pytest

from fuscoc.pipeline import compile_to_ir
from tests.dialect.support import edited, error_of, round_trips
from tests.specs import moe

NODE, CUDA, TRITON = "'fsc.node' op ", "'fsc.cuda_tile' op ", "'fsc.triton_tile' op "
TILE = """"fsc.triton_tile"() {plan_keys = 8 : i64, plan_points = 128 : i64, plan_warps = 4 : i64,
    row_parts = 1 : i64, row_warps = 4 : i64} : () -> ()
"""
EMPTY = '"fsc.node"() ({\n^bb0:\n}) {printers = ["cuda"]} : () -> ()\n'


@cache
def module(after: str) -> str:
    return compile_to_ir(moe(), after=after).text


def at_the_end(text: str, more: str) -> str:
    """A module with further operations."""
    body, closing, _ = text.rpartition("}")
    return f"{body}{more}{closing}\n"


FUSED = [
    (', printers = ["cuda", "triton"]', "", NODE + "needs the attribute 'printers' exactly until"),
    ('"cuda", "triton"]', '"cuda", "cuda"]', "attribute 'printers' must not repeat an element"),
    ('{combine = "sum", p', '{combine = "max", p', NODE + "must weigh nothing but the terms of a"),
    (
        '"triton"], weight = @spec.topk_weights}',
        '"triton"], weight = @spec.topk_idx}',
        NODE + "must not take its weight",
    ),
]
TILED = [
    ('"sm_80"', '"sm_90"', NODE + "must not have two tiles for the same kernels"),
    ('"sm_80"', '"sm_70"', CUDA + "attribute 'arch' must be one of sm_90, sm_80, not 'sm_70'"),
    ("plan_points = 128", "plan_points = 96", TRITON + "needs a power of two for 'plan_points'"),
    ("dispatch_warps = 16", "dispatch_warps = 33", CUDA + "must not put more than 32 warps into"),
    ("teams = ", "teams = 3", CUDA + "must not put more than 32 warps into a CTA"),
]


def test_both_stages_verify() -> None:
    for after in ("fuse-node", "choose-tiles"):
        assert round_trips(module(after))


@pytest.mark.parametrize(("old", "new", "reason"), FUSED)
def test_what_is_fused(old: str, new: str, reason: str) -> None:
    assert reason in error_of(edited(module("fuse-node"), (old, new)))


@pytest.mark.parametrize(("old", "new", "reason"), TILED)
def test_tiles(old: str, new: str, reason: str) -> None:
    assert reason in error_of(edited(module("choose-tiles"), (old, new)))


def test_what_is_fused_twice() -> None:
    text = at_the_end(module("fuse-node"), EMPTY)
    assert NODE + "must be the only one of its module" in error_of(text)


def test_a_tile_of_nothing() -> None:
    text = at_the_end(module("form-slices"), TILE)
    assert TRITON + "must stand inside fsc.node" in error_of(text)


def test_other_kernels_once_it_has_its_own() -> None:
    text = module("specialise-kernels")
    edit = ("num_source_dims = 1 : i64", 'node = ["cuda"], num_source_dims = 1 : i64')
    assert "must not ask for other kernels once it has its own" in error_of(edited(text, edit))
