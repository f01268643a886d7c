"""Fill Triton's cache with machine code for GPUs, without a GPU and on all cores.

Ranks compile what they open, one kernel after the other: of many shuffles that takes GPUs longer
than all that tests let them do.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from fuscoc.ahead import own_kernel
from fuscoc_runtime.engine.node.triton_program import INSIDE
from fuscoc_runtime.kernels.loader import Kernel, load_kernel
from fuscoc_runtime.kernels.own import OWN
from fuscoc_runtime.manifest.artifact import load_artifact


def warm(
    artifacts: Sequence[Path], arch: int = 90, general: bool = False, num_ranks: int = 2
) -> list[str]:
    """Compile the kernels between nodes of these artifacts for sm_``arch``, and those of the
    ``general`` engine if asked to: those of later artifacts first; where segments go to every rank,
    for ``num_ranks``. What goes wrong with which."""
    works: list[tuple[Any, str]] = [
        (path, name) for path in reversed(artifacts) for name in sorted(_kernels(path, general))
    ]
    works += OWN
    with pool() as workers:
        compiling = workers.map(partial(_compile, arch=arch, num_ranks=num_ranks), works)
        return [problem for problem in compiling if problem]


def pool() -> ProcessPoolExecutor:
    """A process a core, which have imported what takes long."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "triton", "fuscoc.driver", "tests.warm"])
    return ProcessPoolExecutor(os.cpu_count(), context)


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


def _compile(work: tuple[Any, str], arch: int, num_ranks: int) -> str:
    """As `Kernel.machine_code` does, without loading it; what goes wrong."""
    try:
        _load(*work, num_ranks).compiled(arch)
    except Exception as error:
        while error.__cause__ is not None:
            error = error.__cause__
        return f"{work[0]} {work[1]}: {error}"
    return ""


def _load(where: Path | str, name: str, num_ranks: int) -> Kernel:
    if isinstance(where, str):
        return own_kernel(where, name)
    artifact = load_artifact(where)
    spec = artifact.kernels[name]
    code = artifact.code[spec.file]
    path = artifact.kernel_file(spec)
    return load_kernel(path, spec, code, interpreted=False, num_ranks=num_ranks)
