"""Compile Triton kernels for GPUs that are not here, on all cores.

Processes of their own do it: what Triton prints, its cache and its settings stay theirs. Nothing is
taken from a cache, and no line numbers are kept, which would name files of this machine: the same
kernels have the same machine code, wherever they lie.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from fuscoc_runtime.kernels.binaries import Binary, binary_of
from fuscoc_runtime.kernels.loader import Kernel, device_module, load_device_kernel, load_kernel
from fuscoc_runtime.kernels.own import OWN
from fuscoc_runtime.manifest.schema import KernelSpec
from fuscoc_runtime.room import MOST_DESTINATIONS

PROBE = KernelSpec("nothing", "nothing.py", "nothing", (), 1, ())
PROBE_TEXT = b"import triton\n\n\n@triton.jit\ndef nothing():\n    pass\n"


class AheadError(RuntimeError):
    """Triton cannot compile for a GPU, or ends before it has."""


@dataclass(frozen=True)
class Made:
    """Machine code for one GPU: of ``kernels`` by name, and of device functions that are kernels by
    themselves. There is none ``of_ranks``, of kernels whose code depends on how many ranks there
    are; of others that are ``refused`` the compiler says why."""

    kernels: dict[str, Binary] = field(default_factory=dict)
    own: dict[str, Binary] = field(default_factory=dict)
    of_ranks: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Work:
    """A kernel of a text, or without one a device function, for a GPU."""

    capability: int
    name: str
    spec: KernelSpec | None = None
    text: bytes = b""


def compile_ahead(
    archs: Sequence[str], kernels: Mapping[str, tuple[KernelSpec, bytes]], with_own: bool
) -> dict[str, Made]:
    """Machine code of kernels, given with the texts of their files, for GPUs such as ``sm_90``, and
    ``with_own`` of those of the runtime.

    Raises:
        AheadError: Triton does not know a GPU, or a process that compiles dies.
    """
    own = [f"{module}.{name}" for module, name in OWN] if with_own else []
    capabilities = {arch: int(arch.removeprefix("sm_")) for arch in archs}
    probes = [_Work(each, PROBE.name, PROBE, PROBE_TEXT) for each in capabilities.values()]
    with _pool(len(kernels) + len(own)) as workers:
        for arch, found in zip(archs, workers.map(compile_one, probes), strict=True):
            if isinstance(found, str):
                raise AheadError(f"{arch}: Triton cannot compile for it: {found}")
        works = [
            (arch, work)
            for arch, capability in capabilities.items()
            for work in (
                *(_Work(capability, name, spec, text) for name, (spec, text) in kernels.items()),
                *(_Work(capability, name) for name in own),
            )
        ]
        made = {arch: Made() for arch in archs}
        results = workers.map(compile_one, [work for _, work in works])
        for (arch, work), found in zip(works, results, strict=True):
            _enter(made[arch], work, found)
    return made


def _enter(made: Made, work: _Work, found: Binary | str | None) -> None:
    if found is None:
        made.of_ranks.append(work.name)
    elif isinstance(found, str):
        made.refused[work.name] = found
    elif work.spec is None:
        made.own[work.name] = found
    else:
        made.kernels[work.name] = found


def compile_one(work: _Work) -> Binary | str | None:
    """Machine code, or what the compiler says, or None if it is of a number of ranks."""
    try:
        if work.spec is None:
            kernel = own_kernel(*work.name.split("."))
        else:
            kernel = _kernel(work, num_ranks=1)
            if _key(kernel) != _key(_kernel(work, MOST_DESTINATIONS)):
                return None
        compiled = kernel.compiled(work.capability)
        assert compiled.metadata.target.arch == work.capability
        return binary_of(compiled, len(kernel.spec.args))
    except Exception as error:  # whatever a compiler may raise
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        return _reason(str(cause)) or type(cause).__name__


def _kernel(work: _Work, num_ranks: int) -> Kernel:
    """With room for the fewest ranks of a node."""
    assert work.spec is not None
    path = Path(work.spec.file)
    return load_kernel(path, work.spec, work.text, interpreted=False, num_ranks=num_ranks)


def _key(kernel: Kernel) -> str:
    """What Triton knows the kernel by. How many points a segment has, their lanes and the segments
    of a tile all grow or fall with the ranks: what is alike for one and the most is for all."""
    key: str = kernel.function.cache_key
    return key


def own_kernel(module: str, name: str) -> Kernel:
    """A device function that is a kernel by itself, whatever its arguments are called."""
    function = getattr(device_module(module, interpreted=False), name)
    return load_device_kernel(module, name, function.arg_names, interpreted=False)


def _reason(text: str) -> str:
    """The line that says most."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "fatal" in line), "".join(lines[:1]))


@contextmanager
def _pool(num_works: int) -> Iterator[ProcessPoolExecutor]:
    """Processes for so many kernels.

    Raises:
        AheadError: one of them died.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(["triton", "torch", __name__])
    num_cores = len(os.sched_getaffinity(0))
    with TemporaryDirectory(prefix="fuscoc-", ignore_cleanup_errors=True) as folder:
        prepare = partial(_prepare, folder)
        workers = ProcessPoolExecutor(max(1, min(num_cores, num_works)), context, prepare)
        try:
            yield workers
        except BrokenProcessPool as error:
            said = _log(folder).read_text(errors="replace").strip().splitlines()
            told = ": ".join(["a process that ran Triton died", *said[-1:]])
            raise AheadError(told) from error
        finally:
            workers.shutdown(cancel_futures=True)


def _prepare(folder: str) -> None:
    """Ctrl-C is for who waits; what is printed, such as a text that was refused, for nobody."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ |= {"TRITON_CACHE_DIR": f"{folder}/cache", "TRITON_DISABLE_LINE_INFO": "1"}
    log = os.open(_log(folder), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)


def _log(folder: str) -> Path:
    return Path(folder, "log")
