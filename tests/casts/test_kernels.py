"""Kernels that cast, compiled without a GPU: wide accesses, the GPU's conversions, no spills."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from fuscoc.codegen.triton import triton_module
from fuscoc.dialect.base import ops_of
from fuscoc.dialect.l3 import Kernel
from fuscoc.lang.check import check
from fuscoc.lang.checked import CheckedShuffle
from fuscoc.pipeline import compile_to_ir
from fuscoc.source import SourceFile
from fuscoc_runtime.kernels import cuda
from tests import specs
from tests.casts.specs import SPECS, routed
from tests.codegen.ptx import PtxOf, accesses
from tests.cuda.test_kernels import cache as cache
from tests.cuda.test_kernels import disassembler

SCALARS = {"b32", "b64"}


def checked(text: str) -> CheckedShuffle:
    return check(SourceFile("casts.fsc", text))[0]


def by_cuda(text: str) -> str:
    return text.replace("cast(", "backend cuda cast(")


def test_triton_kernels_cast_in_registers(tmp_path: Path) -> None:
    spec = specs.moe_fp8()
    module = compile_to_ir(spec).module
    path = tmp_path / "moe_fp8.py"
    path.write_text(triton_module(module, spec.source_file), encoding="utf-8")
    warps = {kernel.read("sym_name"): kernel.read("num_warps") for kernel in ops_of(module, Kernel)}
    kernels = PtxOf(path, warps)
    for name in ("moe_pack", "moe_send"):
        ptx = kernels[name]
        assert ".local" not in ptx
        assert accesses(ptx, "ld") - SCALARS == {"v4.b32"}
        assert accesses(ptx, "st") - SCALARS == {"v4.b32"}
        assert "cvt.rn.satfinite.e4m3x2.f32" in ptx
        assert "div.rn.f32" in ptx
    for name in ("moe_forward", "moe_duplicate"):
        assert "cvt" not in re.sub(r"cvt\.\w*[us]\d+\.\w+", "", kernels[name]), "bits move there"


CUDA_SPECS = {
    "moe_fp8": specs.moe_fp8(),
    "f8e5m2": checked(
        routed(
            "x : f32[hidden]",
            "x : f8e5m2[hidden], s : f32[hidden / 256]",
            "x by s",
            hidden=512,
            combine="",
        )
    ),
    "several fields": checked(SPECS["several fields"]),
    "bytes": checked(by_cuda(SPECS["bytes"])),
    "computed": checked(by_cuda(SPECS["computed"])),
    "planes": checked(by_cuda(specs.example("vit_patches_normalised.fsc").text)),
}


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        # By day every other spec is compiled, for one of the two in turn: each takes seconds.
        pytest.param(name, arch, marks=[] if number % 4 == 2 * turn else [pytest.mark.nightly])
        for number, name in enumerate(CUDA_SPECS)
        for turn, arch in enumerate(("sm_80", "sm_90"))
    ],
)
def test_cuda_kernels_compile_without_spills(
    name: str, arch: str, cache: Path, tmp_path: Path
) -> None:
    spec = CUDA_SPECS[name]
    variant = specs.cuda_of(spec).variant(arch)
    assert variant is not None
    path = tmp_path / "kernels.cubin"
    path.write_bytes(cuda.cubin(variant.source.text, arch, cache))
    command = [disassembler(), "--dump-resource-usage", str(path)]
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    stacks = dict(re.findall(r"Function (\w+):\s+REG:\d+ STACK:(\d+)", usage))
    assert f"{spec.name}_dispatch" in stacks
    assert set(stacks.values()) == {"0"}


def test_cuda_kernels_use_the_instruction(cache: Path, tmp_path: Path) -> None:
    found = {}
    for variant in specs.cuda_of(CUDA_SPECS["moe_fp8"]).variants:
        path = tmp_path / "kernels.cubin"
        path.write_bytes(cuda.cubin(variant.source.text, variant.target.arch, cache))
        command = [disassembler(), "--dump-sass", str(path)]
        sass = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found[variant.target.arch] = "F2FP.SATFINITE.E4M3" in sass
    assert found == {"sm_90": True, "sm_80": False}


def test_shuffles_that_do_not_cast_have_one_shape() -> None:
    text = specs.cuda_of(specs.moe()).variants[0].source.text
    assert "SourceShape" not in text
    assert "cast.cuh" not in text
    plain = replace(specs.moe_fp8(), casts=(), fields=specs.moe().fields)
    assert specs.cuda_of(plain).variants[0].source.text == text
