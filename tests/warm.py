"""Fill Triton's cache with machine code for GPUs, without a GPU and on all cores.

Ranks compile what they open, one kernel after the other: of many shuffles that takes GPUs longer
than all that tests let them do.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fuscoc_runtime.kernels.loader import Kernel, launching, load_device_kernel, load_kernel
from fuscoc_runtime.manifest.artifact import load_artifact

DEVICE_KERNELS = {
    ("plan", "refuse"): ("call", "ticket", "columns", "blocks"),
    ("hop", "acknowledge"): ("call",),
    ("hop", "tell"): ("told", "place"),
}
"""Device functions that are kernels by themselves, and what they take."""


def warm(artifacts: Iterable[Path], arch: int = 90) -> None:
    """Compile the kernels of fixed capacity of these artifacts for sm_``arch``."""
    works: list[tuple[Any, ...]] = list(DEVICE_KERNELS)
    works += [(path, name) for path in artifacts for name in _kernels(path)]
    with ProcessPoolExecutor(
        os.cpu_count(), get_context("spawn"), partial(_pretend, arch)
    ) as pool:
        list(pool.map(_compile, works))


def _kernels(path: Path) -> set[str]:
    names: set[str] = set()
    for shuffle in load_artifact(path).manifest.shuffles:
        assert shuffle.node is not None
        names |= {*shuffle.node.kernels.values(), shuffle.program.relation.kernel}
    return names


def _pretend(arch: int) -> None:
    """Let Triton see such a GPU: kernels ask what they are compiled for."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    target = GPUTarget("cuda", arch, 32)
    gpu: Any = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda _: 0,
        get_current_target=lambda: target,
    )
    driver.set_active(gpu)


def _compile(work: tuple[Any, str]) -> None:
    """As `Kernel.machine_code` does, without loading it."""
    kernel = _load(*work)
    with launching(interpreted=False):
        unused = [0] * len(kernel.spec.args)
        kernel.function.warmup(*unused, grid=(1,), num_warps=kernel.spec.num_warps)


def _load(where: Path | str, name: str) -> Kernel:
    if isinstance(where, str):
        arguments = DEVICE_KERNELS[where, name]
        return load_device_kernel(where, name, arguments, interpreted=False)
    artifact = load_artifact(where)
    spec = artifact.kernels[name]
    code = artifact.code[spec.file]
    return load_kernel(artifact.kernel_file(spec), spec, code, interpreted=False)
