"""Compile generated CUDA text to cubins, once for each content, and launch their kernels.

NVRTC (through ``cuda.bindings``) is used where it is installed, else an ``nvcc``. Cubins are cached
by a hash of everything they depend on; a file appears in the cache by an atomic rename, so any
number of processes may share it. ``FUSCOC_CUDA_ARCH=sm_80`` takes the kernels of that older GPU on
a newer one, to look for a fault on either path; the driver translates them.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fuscoc_runtime.errors import OptionError
from fuscoc_runtime.files import cache_folder, whole_file
from fuscoc_runtime.trust import UntrustedError, check_own, own_folder

INCLUDE = Path(__file__).parent / "include"
STANDARD = "--std=c++17"
ARCH_VARIABLE = "FUSCOC_CUDA_ARCH"
OLDEST = (8, 0)
COMPILER_HINT = (
    "CUDA kernels need a compiler: install 'cuda-bindings' with 'nvidia-cuda-nvrtc', "
    "or put an nvcc (13.0 or newer) on the PATH"
)


class CudaError(RuntimeError):
    """The kernels could not be compiled, loaded or launched."""


@dataclass(frozen=True)
class Compiler:
    """A way to make cubins: ``nvrtc``, or ``nvcc`` at ``path``; its version is in cache keys."""

    kind: str
    version: str
    path: str = ""


@lru_cache(maxsize=1)
def find_compiler() -> Compiler:
    """The compiler of this machine.

    Raises:
        CudaError: there is none.
    """
    try:
        from cuda.bindings import nvrtc

        status, major, minor = nvrtc.nvrtcVersion()
        if status == nvrtc.nvrtcResult.NVRTC_SUCCESS:
            return Compiler("nvrtc", f"{major}.{minor}")
    except (ImportError, RuntimeError, OSError):
        pass  # not installed, or its library is not: look for nvcc
    path = shutil.which("nvcc")
    if path is None:
        raise CudaError(COMPILER_HINT)
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    return Compiler("nvcc", version.stdout, path)


def headers_digest() -> str:
    """A hash of the device headers that generated text includes."""
    digest = hashlib.sha256()
    for header in sorted(INCLUDE.glob("*.cuh")):
        digest.update(header.name.encode() + b"\0" + header.read_bytes() + b"\0")
    return digest.hexdigest()


def kernels_capability(gpu: tuple[int, int]) -> tuple[int, int]:
    """The compute capability whose kernels a GPU of capability ``gpu`` runs: its own, or the older
    one of ``$FUSCOC_CUDA_ARCH``.

    Raises:
        OptionError: the variable names no GPU such as ``sm_80``, or one that is newer than ``gpu``.
    """
    named = os.environ.get(ARCH_VARIABLE)
    if not named:
        return gpu
    digits = named.removeprefix("sm_")
    older = (int(digits[:-1]), int(digits[-1])) if re.fullmatch(r"sm_[1-9]\d{1,2}", named) else None
    if older is None or not OLDEST <= older <= gpu:
        least, most = ("sm_{}{}".format(*each) for each in (OLDEST, gpu))
        raise OptionError(ARCH_VARIABLE, f"is `{named}`; it must be from {least} to {most}")
    return older


def kernels_arch(gpu: tuple[int, int]) -> str:
    """What `cubin` compiles for a GPU of capability ``gpu``: its machine code, or PTX of an older
    one."""
    capability = kernels_capability(gpu)
    return ("sm_{}{}" if capability == gpu else "compute_{}{}").format(*capability)


def cubin(text: str, arch: str, cache: Path | None = None) -> bytes:
    """Machine code of ``text`` for ``arch`` (e.g. ``sm_90``), from the cache when it is there.

    For a ``compute_80`` it is PTX, which the driver translates for any GPU from there on.

    Raises:
        CudaError: no compiler, or it rejects the text; carries its output. Or others may write
            into the cache.
    """
    compiler = find_compiler()
    parts = (compiler.kind, compiler.version, arch, STANDARD, headers_digest(), text)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    root = cache or cache_folder()
    path = root / "cubin" / f"{key}.cubin"
    if path.exists():
        try:
            check_own(root, path.parent, path)
        except UntrustedError as error:
            raise CudaError(str(error)) from error
        return path.read_bytes()
    code = _nvrtc(text, arch) if compiler.kind == "nvrtc" else _nvcc(compiler.path, text, arch)
    with suppress(OSError):  # a cache that cannot be written spares nobody's time, no more
        own_folder(root)
        own_folder(path.parent)
        check_own(root, path.parent)
        with whole_file(path) as file:
            file.write(code)
    return code


def is_ptx(arch: str) -> bool:
    return arch.startswith("compute_")


def _nvrtc(text: str, arch: str) -> bytes:
    from cuda.bindings import nvrtc

    def check(result: tuple[Any, ...]) -> Any:
        if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CudaError(f"NVRTC: {result[0].name}")
        return result[1] if len(result) == 2 else result[1:]

    program = check(nvrtc.nvrtcCreateProgram(text.encode(), b"shuffle.cu", 0, [], []))
    options = [f"--gpu-architecture={arch}".encode(), STANDARD.encode(), f"-I{INCLUDE}".encode()]
    compiled = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if compiled[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * check(nvrtc.nvrtcGetProgramLogSize(program))
        check(nvrtc.nvrtcGetProgramLog(program, log))
        raise CudaError(f"NVRTC rejects the generated kernels:\n{log.decode(errors='replace')}")
    if is_ptx(arch):
        code: bytes = b" " * check(nvrtc.nvrtcGetPTXSize(program))
        check(nvrtc.nvrtcGetPTX(program, code))
    else:
        code = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
        check(nvrtc.nvrtcGetCUBIN(program, code))
    nvrtc.nvrtcDestroyProgram(program)
    return code


def _nvcc(path: str, text: str, arch: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "shuffle.cu"), Path(folder, "shuffle.cubin")
        source.write_text(text)
        kind = "-ptx" if is_ptx(arch) else "-cubin"
        command = [path, kind, f"-arch={arch}", STANDARD, f"-I{INCLUDE}", str(source)]
        done = subprocess.run([*command, "-o", str(target)], capture_output=True, text=True)
        if done.returncode != 0:
            raise CudaError(f"nvcc rejects the generated kernels:\n{done.stderr}")
        return target.read_bytes() + b"\0" * is_ptx(arch)  # text that the driver reads ends so


def _driver(result: tuple[Any, ...]) -> Any:
    """The value of a driver call.

    Raises:
        CudaError: the call failed.
    """
    if int(result[0]) != 0:
        raise CudaError(f"CUDA driver: {result[0].name}")
    return result[1] if len(result) > 1 else None


@dataclass(frozen=True, eq=False)
class CudaKernel:
    """A loaded kernel and the CTA it is launched with."""

    function: Any
    threads: int
    shared_bytes: int

    def launch(
        self,
        num_ctas: int,
        arguments: ctypes.Structure,
        stream: int,
        cluster: int = 1,
        early: bool = False,
    ) -> None:
        """Launch on ``stream`` (an address), with ``arguments`` as the one parameter, by value.

        So many CTAs are placed together as a ``cluster`` has. If ``early``, the kernel may start
        when each CTA of the one before it on the stream has let it. Both need sm_90.
        """
        from cuda.bindings import driver

        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        parameters = ctypes.addressof(pointers)
        grid, block = (num_ctas, 1, 1), (self.threads, 1, 1)
        if cluster == 1 and not early:
            shared = self.shared_bytes
            _driver(
                driver.cuLaunchKernel(self.function, *grid, *block, shared, stream, parameters, 0)
            )
            return
        config, attributes = driver.CUlaunchConfig(), _launch_attributes(cluster, early)
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes, config.hStream = self.shared_bytes, stream
        config.attrs, config.numAttrs = attributes, len(attributes)
        _driver(driver.cuLaunchKernelEx(config, self.function, parameters, 0))


@lru_cache
def _launch_attributes(cluster: int, early: bool) -> list[Any]:
    from cuda.bindings import driver

    names, attributes = driver.CUlaunchAttributeID, []
    if cluster > 1:
        together = driver.CUlaunchAttribute()
        together.id = names.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        together.value.clusterDim.x = cluster
        together.value.clusterDim.y = together.value.clusterDim.z = 1
        attributes.append(together)
    if early:
        overlapping = driver.CUlaunchAttribute()
        overlapping.id = names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        overlapping.value.programmaticStreamSerializationAllowed = 1
        attributes.append(overlapping)
    return attributes


def set_words(address: int, value: int, num_words: int, stream: int) -> None:
    """Set 32-bit words of this or a mapped peer's GPU memory, in the order of ``stream``."""
    from cuda.bindings import driver

    _driver(driver.cuMemsetD32Async(address, value, num_words, stream))


def load_kernels(code: bytes, launches: Mapping[str, tuple[int, int]]) -> dict[str, CudaKernel]:
    """Load a cubin into the current context; ``launches`` maps names to (threads, shared bytes).

    Raises:
        CudaError: the driver refuses it, or its Python bindings are missing.
    """
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise CudaError("launching CUDA kernels needs 'cuda-bindings': install it") from error

    module = _driver(driver.cuModuleLoadData(code))
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    kernels = {}
    for name, (threads, shared_bytes) in launches.items():
        function = _driver(driver.cuModuleGetFunction(module, name.encode()))
        _driver(driver.cuFuncSetAttribute(function, attribute, shared_bytes))
        kernels[name] = CudaKernel(function, threads, shared_bytes)
    return kernels
