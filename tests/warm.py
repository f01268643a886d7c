"""Fill Triton's cache with machine code for GPUs, without a GPU and on all cores.

Ranks compile what they open, one kernel after the other: of many shuffles that takes GPUs longer
than all that tests let them do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fuscoc_runtime.engine.node import flow_calls
from fuscoc_runtime.engine.node.answers import ADOPTED
from fuscoc_runtime.engine.node.triton_program import INSIDE
from fuscoc_runtime.kernels.loader import Kernel, launching, load_device_kernel, load_kernel
from fuscoc_runtime.manifest.artifact import load_artifact

DEVICE_KERNELS = {
    ("refuse", "refuse"): ("call", "ticket", "columns", "blocks"),
    ("hop", "acknowledge"): ("call",),
    ("hop", "tell"): ("told", "place"),
    ("known", "again"): ("call", "number", "ticket"),
    ("known", "agree"): ("call", "joins", "num_slots"),
    ("known", "judge"): ("call",),
    ("known", "tell"): (
        "call",
        "number",
        "num_sources",
        "fanout",
        "weights",
        "known",
        "refuses",
    ),
    ("answer", "follow"): (
        "call",
        "num_sources",
        "fanout",
        "segments",
        "known",
        "own_sources",
    ),
    ("answer", "announce"): ("call",),
    ("answer", "adopt"): ("call", "ticket", *ADOPTED[1:]),
    **{("flows", name): arguments for name, (arguments, _) in flow_calls.KERNELS.items()},
}
"""Device functions that are kernels by themselves, and what they take."""


def warm(
    artifacts: Sequence[Path], arch: int = 90, general: bool = False, num_ranks: int = 2
) -> list[str]:
    """Compile the kernels between nodes of these artifacts for sm_``arch``, and those of the
    ``general`` engine if asked to: those of later artifacts first; where segments go to every rank,
    for ``num_ranks``. What goes wrong with which."""
    works: list[tuple[Any, str]] = [
        (path, name) for path in reversed(artifacts) for name in sorted(_kernels(path, general))
    ]
    works += DEVICE_KERNELS
    with pool(partial(_pretend, arch)) as workers:
        compiling = workers.map(partial(_compile, num_ranks=num_ranks), works)
        return [problem for problem in compiling if problem]


def pool(initializer: Callable[[], None] | None = None) -> ProcessPoolExecutor:
    """A process a core, which have imported what takes long."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "triton", "fuscoc.driver", "tests.warm"])
    return ProcessPoolExecutor(os.cpu_count(), context, initializer)


def _kernels(path: Path, general: bool) -> set[str]:
    artifact, names = load_artifact(path), set[str]()
    ways = [[each, each.reply] if each.reply else [each] for each in artifact.manifest.shuffles]
    for shuffle in chain.from_iterable(ways):
        assert shuffle.node is not None
        kernels = (shuffle.node.between or shuffle.node).kernels
        names |= {kernels[role] for role in kernels.keys() - INSIDE}
        packed_by = {each.value for each in artifact.kernels[kernels["pack"]].args}
        if "extent.ranks" not in packed_by:
            names.add(shuffle.program.relation.kernel)
        if shuffle.program.relation.extents_kernel is not None:
            names.add(shuffle.program.relation.extents_kernel)
        if general:
            of_nodes = {*kernels.values()}
            names |= {name for name in artifact.kernels if name not in of_nodes}
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


def _compile(work: tuple[Any, str], num_ranks: int) -> str:
    """As `Kernel.machine_code` does, without loading it; what goes wrong."""
    try:
        kernel = _load(*work, num_ranks)
        with launching(interpreted=False):
            unused = [0] * len(kernel.spec.args)
            kernel.function.warmup(*unused, grid=(1,), num_warps=kernel.spec.num_warps)
    except Exception as error:
        while error.__cause__ is not None:
            error = error.__cause__
        return f"{work[0]} {work[1]}: {error}"
    return ""


def _load(where: Path | str, name: str, num_ranks: int) -> Kernel:
    if isinstance(where, str):
        arguments = DEVICE_KERNELS[where, name]
        _, num_warps = flow_calls.KERNELS.get(name, ((), 1)) if where == "flows" else ((), 1)
        return load_device_kernel(where, name, arguments, interpreted=False, num_warps=num_warps)
    artifact = load_artifact(where)
    spec = artifact.kernels[name]
    code = artifact.code[spec.file]
    path = artifact.kernel_file(spec)
    return load_kernel(path, spec, code, interpreted=False, num_ranks=num_ranks)
