"""Kernels compiled for sm_90: wide accesses, and the fences that the interpreter cannot show."""

from __future__ import annotations

from functools import cache

import pytest

from fuscoc.codegen.triton import triton_module
from fuscoc.dialect.base import ops_of
from fuscoc.dialect.l3 import Kernel
from fuscoc.pipeline import compile_to_ir
from tests.codegen.ptx import PtxOf, accesses, barriers_before_release
from tests.codegen.specs import blocks, scratch
from tests.specs import moe, rebalanced, vit_patches

SPECS = {
    "moe": moe(),
    "moe_rebalanced": moe(policy=rebalanced()),
    "vit_patches": vit_patches(),
    "vit_nchw": vit_patches(channels_first=True),
    "vit_wide": vit_patches(p=16, c=8),
    "three_fields": blocks(
        (("payload", "f8e4m3", (7168,)), ("scale", "f32", (56,)), ("idx", "i32", ()))
    ),
    "odd": blocks((("x", "bf16", (7163,)),), combine="sum"),
    "wide_runs": blocks((("x", "bf16", (64,)),), (16, 16), (48,), combine="sum"),
    "long": blocks((("x", "bf16", (40960,)),), combine="sum"),
}


SIGNALLING = ("send", "forward", "reduce_direct", "reduce_forward")
CARRYING = ("carry", "hand_back")
BARRIER = "    tl.debug_barrier()\n"


@cache
def compiled(name: str, without: str = "") -> PtxOf:
    """PTX by the kernel's name without that of its shuffle; ``without`` is left out of the text."""
    checked = SPECS[name]
    module = compile_to_ir(checked).module
    path = scratch() / f"compiled_{name}_{bool(without)}.py"
    text = triton_module(module, checked.source_file)
    path.write_text(text.replace(without, "") if without else text, encoding="utf-8")
    warps = {kernel.read("sym_name"): kernel.read("num_warps") for kernel in ops_of(module, Kernel)}
    names = {kernel.removeprefix(f"{checked.name}_"): kernel for kernel in warps}
    return PtxOf(path, warps, names)


@pytest.mark.parametrize(
    ("name", "is_whole"),
    [
        # By day two specs are compiled whole, and of the others what moves rows and signals.
        pytest.param(name, is_whole, marks=[] if is_whole == by_day else [pytest.mark.nightly])
        for name in SPECS
        for by_day in [name in ("moe_rebalanced", "vit_patches")]
        for is_whole in (False, True)
    ],
)
def test_compiles(name: str, is_whole: bool) -> None:
    kernels = compiled(name)
    assert len(kernels) >= 9
    for suffix in kernels if is_whole else SIGNALLING:
        assert ".local" not in kernels[suffix]  # registers suffice


@pytest.mark.parametrize("name", SPECS)
def test_stores_come_before_the_signal(name: str) -> None:
    for suffix in SIGNALLING + (CARRYING if name == "moe_rebalanced" else ()):
        assert barriers_before_release(compiled(name)[suffix]) > 0, suffix


def test_the_printed_barrier_is_one_of_those_before_the_signal() -> None:
    """Newer versions of Triton (3.9; not 3.6) add one themselves, which is no substitute."""
    with_it, without_it = compiled("moe"), compiled("moe", without=BARRIER)
    for suffix in SIGNALLING:
        printed = barriers_before_release(with_it[suffix])
        assert printed == barriers_before_release(without_it[suffix]) + 1, suffix


@pytest.mark.parametrize("name", ["moe", "moe_rebalanced", "vit_patches"])
def test_waits_acquire(name: str) -> None:
    """And look at the host's word each time that they mean to, in memory that has no atomics."""
    carried = ("pack_carried",) if name == "moe_rebalanced" else ()
    for suffix in ("duplicate", "reduce_node", "reduce_source", *carried):
        ptx = compiled(name)[suffix]
        assert "acquire" in ptx, suffix
        assert "ld.volatile.global" in ptx, suffix


COPIES = ["pack", "send", "forward", "duplicate"]
SUMS = ["reduce_direct", "reduce_source"]
# Besides rows, kernels read list entries, peers' addresses, weights and signal words, all scalar.
SCALARS = {"b32", "b64"}


@pytest.mark.parametrize("suffix", COPIES)
@pytest.mark.parametrize("name", ["moe", "long"])
def test_copies_move_sixteen_bytes_at_once(name: str, suffix: str) -> None:
    ptx = compiled(name)[suffix]
    assert accesses(ptx, "ld") - SCALARS == {"v2.b64"}
    assert accesses(ptx, "st") == {"v2.b64"}


@pytest.mark.parametrize("suffix", SUMS)
@pytest.mark.parametrize("name", ["moe", "long"])
def test_sums_move_sixteen_bytes_at_once(name: str, suffix: str) -> None:
    ptx = compiled(name)[suffix]
    assert accesses(ptx, "ld") - SCALARS == {"v4.b32"}
    assert accesses(ptx, "st") == {"v4.b32"}


def test_payload_of_several_fields_moves_sixteen_bytes_at_once() -> None:
    ptx = compiled("three_fields")["send"]
    assert "v2.b64" in accesses(ptx, "ld")
    assert "v2.b64" in accesses(ptx, "st")


def test_aligned_runs_move_sixteen_bytes_at_once() -> None:
    kernels = compiled("wide_runs")
    assert accesses(kernels["send"], "ld") - SCALARS == {"v2.b64"}
    assert accesses(kernels["reduce_source"], "st") == {"v4.b32"}


def test_aligned_run_time_strides_keep_sixteen_bytes() -> None:
    kernels = compiled("vit_wide")
    assert accesses(kernels["send"], "ld") - SCALARS == {"v2.b64"}
    assert accesses(kernels["reduce_source"], "st") == {"v2.b64"}
