"""Kernels of Triton where no C compiler is: compiled and loaded without Triton's own driver."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from triton.runtime import driver as chosen

from fuscoc_runtime.kernels import driver, launches, triton_driver
from fuscoc_runtime.kernels.loader import Kernel, load_kernel
from fuscoc_runtime.manifest.schema import KernelArg, KernelSpec

TEXT = """
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait
from triton.language.target_info import cuda_capability_geq


@triton.jit(do_not_specialize=["count", "src"])
def count_down(count: tl.int64, src: tl.int64):
    if cuda_capability_geq(9, 0):
        gdc_wait()
    src = src.to(tl.pointer_type(tl.int64))
    tl.store(src + tl.program_id(0), count)
"""
CONTEXT, MODULE, KERNEL = 0x1000, 0x2000, 0x3000


class Gpu:
    """A driver that notes what it is called with, and has no context yet."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.made = {"cuModuleLoadData": MODULE, "cuModuleGetFunction": KERNEL}
        self.made["cuDevicePrimaryCtxRetain"] = CONTEXT

    def call(self, name: str, *arguments: Any) -> None:
        plain = [each.value if isinstance(each, ctypes.c_void_p) else each for each in arguments]
        if name in self.made:
            ctypes.c_void_p.from_address(plain.pop(0)).value = self.made[name]
        elif name == "cuCtxGetCurrent":
            plain.pop()
        self.calls.append((name, *plain))


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nor what one has left in Triton's cache."""
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, no_compiler: None) -> Gpu:
    """An H100, as Torch and the driver tell it."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    pretended = Gpu()
    monkeypatch.setattr(driver, "call", pretended.call)
    return pretended


def count_down() -> Kernel:
    args = tuple(KernelArg(name, "address", name) for name in ("count", "src"))
    spec = KernelSpec("count_down", "", "count_down", args, 2, ())
    return load_kernel(Path("down.py"), spec, TEXT.encode(), interpreted=False)


def test_a_kernel_of_an_artifact(gpu: Gpu) -> None:
    before, kernel = vars(chosen)["_active"], count_down()
    code = kernel.machine_code()
    assert vars(chosen)["_active"] is before
    assert (code.function, code.threads, code.can_follow) == (KERNEL, 64, True)
    loaded = gpu.calls[3][1]
    assert loaded.startswith(b"\x7fELF")
    assert gpu.calls == [
        ("cuCtxGetCurrent",),
        ("cuDevicePrimaryCtxRetain", 1),
        ("cuCtxSetCurrent", CONTEXT),
        ("cuModuleLoadData", loaded),
        ("cuModuleGetFunction", MODULE, b"count_down"),
    ]
    assert kernel.machine_code() is code


@triton.jit
def fill(tensor, value, NUMBER: triton.language.constexpr):  # type: ignore[no-untyped-def]
    triton.language.store(tensor + triton.language.arange(0, NUMBER), value)


def test_a_kernel_that_takes_tensors(gpu: Gpu) -> None:
    code, positions = launches._compiled(fill, (torch.empty(8), 7, 8), 1)
    assert (code.function, positions) == (KERNEL, (0, 1))


def test_much_shared_memory_is_asked_for(gpu: Gpu) -> None:
    assert triton_driver.load(b"code", "name", 100 << 10) == KERNEL
    assert ("cuFuncSetAttribute", KERNEL, 8, 100 << 10) in gpu.calls


def test_other_threads_have_tritons_own(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen, "_default", own := SimpleNamespace(get_current_device=lambda: 5))
    with triton_driver.compiling(), ThreadPoolExecutor(1) as pool:
        assert chosen.active.get_current_device() == 1
        assert pool.submit(lambda: chosen.active.get_current_device()).result() == 5
        assert chosen.default is own


def test_where_there_is_a_compiler_triton_does_it(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(chosen, "_active", own := SimpleNamespace())
    (tmp_path / "gcc").write_text("")
    (tmp_path / "gcc").chmod(0o755)
    with triton_driver.compiling():
        assert chosen.active is own


@pytest.mark.gpu
def test_both_on_a_gpu(no_compiler: None, tmp_path: Path) -> None:
    found = torch.zeros(8, dtype=torch.int64, device="cuda")
    count_down().launch({"count": 5, "src": found.data_ptr()}, 3)
    assert found.tolist() == [5, 5, 5, 0, 0, 0, 0, 0]
    launches.start(fill, (found, 7, 8), 1, num_warps=1)
    assert found.tolist() == [7] * 8
    assert not list((tmp_path / "cache").rglob("*.so"))
