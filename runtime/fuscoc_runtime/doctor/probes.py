"""What is on this machine, a function each: ``python -m fuscoc_runtime.doctor.probes NAME``.

Each runs in a process of its own, since libraries may crash and drivers hang, and writes what it
found as JSON. One that raises has found nothing; its error is the reason.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from fuscoc_runtime.ccompiler import compiler_command
from fuscoc_runtime.files import cache_folder
from fuscoc_runtime.kernels.cuda import find_compiler
from fuscoc_runtime.native import ALL
from fuscoc_runtime.trust import check_own

Facts = dict[str, Any]

SHARED_MEMORY = "/dev/shm"
NETWORKS, INFINIBAND = Path("/sys/class/net"), Path("/sys/class/infiniband")
FABRIC = "state", "cluster", "clique", "health_mask"
PEER_MEMORY = ("nvidia_peermem", "nv_peer_mem")
C_PROGRAM = "#include <math.h>\n#include <stdint.h>\nint64_t probed(double x) { return lrint(x); }"


def torch() -> Facts:
    """PyTorch, which is loaded, and what it was built with; no device is touched."""
    torch, dist = import_module("torch"), import_module("torch.distributed")
    has_nccl = dist.is_available() and dist.is_nccl_available()
    nccl = import_module("torch.cuda.nccl").version() if has_nccl else None
    return {
        "cuda": torch.version.cuda,
        "gloo": dist.is_available() and dist.is_gloo_available(),
        "nccl": None if nccl is None else ".".join(map(str, nccl)),
    }


def triton() -> Facts:
    """Triton, which is loaded."""
    import_module("triton.language")
    return {}


def mlir() -> Facts:
    """The compiler with its MLIR, which are loaded."""
    import_module("fuscoc.dialect.mlir")
    return {}


def gpus() -> Facts:
    """The CUDA devices, and which of them can address each other's memory; the driver."""
    nodes = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    driver = _driver_version()
    torch = import_module("torch")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        there = torch.cuda.is_available()
    problem = "; ".join(str(each.message).split("(Triggered")[0].strip() for each in warned) or None
    number = torch.cuda.device_count() if there else 0
    return {
        "driver": driver,
        "device_files": nodes,
        "problem": None if there else problem,
        "devices": [_gpu(torch, index, number) for index in range(number)],
    }


def _gpu(torch: Any, index: int, number: int) -> Facts:
    found = torch.cuda.get_device_properties(index)
    others = (peer for peer in range(number) if peer != index)
    return {
        "name": found.name,
        "capability": [found.major, found.minor],
        "memory_bytes": found.total_memory,
        "shared_bytes": found.shared_memory_per_block_optin,
        "num_sms": found.multi_processor_count,
        "fabric": _fabric(torch.device("cuda", index)),
        "peers": [peer for peer in others if torch.cuda.can_device_access_peer(index, peer)],
    }


def _fabric(device: Any) -> Facts:
    """Its NVLink domain as NVML has it, and why it does not make ranks of several hosts a node."""
    nvml = import_module("fuscoc_runtime.comm.nvml")
    fabric = import_module("fuscoc_runtime.comm.fabric")
    try:
        info = nvml.fabric_info(fabric.uuid_of(device))
    except nvml.NvmlError as error:
        return {**dict.fromkeys(FABRIC), "problem": str(error)}
    found = fabric.as_fabric(info)
    if not isinstance(found, str):
        found = fabric.fabric_of(device)
    known = {name: getattr(info, name) for name in FABRIC}
    return {**known, "problem": found if isinstance(found, str) else None}


def _driver_version() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.split()), None)


def native() -> Facts:
    """Whether what is written in C came compiled, and can be loaded; nothing is compiled."""
    try:
        for library in ALL:
            ctypes.CDLL(str(library.built_in))
    except OSError as error:
        return {"built_in": False, "reason": str(error)}
    return {"built_in": True, "reason": None}


def c_compiler() -> Facts:
    """The C compiler, by which a function is compiled, loaded and called."""
    command = compiler_command()
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "probed.so"
        whole = [*command, "-shared", "-fPIC", "-o", str(made), "-x", "c", "-", "-lm"]
        done = subprocess.run(whole, input=C_PROGRAM, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")
        probed = ctypes.CDLL(str(made)).probed
        probed.argtypes, probed.restype = [ctypes.c_double], ctypes.c_int64
        if probed(6.6) != 7:
            raise RuntimeError(f"what {' '.join(command)} compiles computes something else")
    version = subprocess.run([*command, "--version"], capture_output=True, text=True).stdout
    return {"command": " ".join(command), "version": version.partition("\n")[0]}


def cuda_compiler() -> Facts:
    """NVRTC, else nvcc: what compiles CUDA kernels that come as text."""
    found = find_compiler()
    lines = [line for line in found.version.splitlines() if line.strip()]
    return {"kind": found.kind, "version": lines[-1].strip(), "path": found.path or None}


def cache() -> Facts:
    """The folder of what is compiled on the fly: its size, and whether it can be used."""
    folder = cache_folder()
    inside = [folder, *folder.rglob("*")] if folder.exists() else []
    problem = None
    try:
        check_own(*inside)
    except OSError as error:
        problem = str(error)
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if problem is None and not os.access(nearest, os.W_OK | os.X_OK):
        problem = f"{nearest} cannot be written: set FUSCOC_CACHE_DIR to a folder of yours"
    files = [path for path in inside if path.is_file()]
    return {
        "path": str(folder),
        "num_files": len(files),
        "num_bytes": sum(path.stat().st_size for path in files),
        "problem": problem,
    }


def memory() -> Facts:
    """Shared memory, and what this process may have of what ranks need much of."""
    shared = os.statvfs(SHARED_MEMORY)
    return {
        "shared_bytes": shared.f_frsize * shared.f_blocks,
        "free_shared_bytes": shared.f_frsize * shared.f_bavail,
        "max_open_files": _limit(resource.RLIMIT_NOFILE),
        "max_locked_bytes": _limit(resource.RLIMIT_MEMLOCK),
    }


def _limit(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def network() -> Facts:
    """Network interfaces, and InfiniBand or RoCE devices."""
    modules = [name for name in PEER_MEMORY if Path("/sys/module", name).exists()]
    return {
        "interfaces": [_interface(name) for _, name in socket.if_nameindex()],
        "rdma_devices": list(_rdma_devices()),
        "peer_memory": next(iter(modules), None),
    }


def _interface(name: str) -> Facts:
    speed = _read(NETWORKS / name / "speed")  # in Mbit/s; -1, or an error, where nothing is known
    known = speed is not None and speed.isdecimal()
    state = _read(NETWORKS / name / "operstate")
    return {"name": name, "state": state, "mbit_per_s": int(speed) if speed and known else None}


def _rdma_devices() -> Iterator[Facts]:
    for path in sorted(INFINIBAND.glob("*/ports/*")):
        yield {
            "name": path.parent.parent.name,
            "port": int(path.name),
            "state": _read(path / "state"),
            "rate": _read(path / "rate"),
        }


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


PROBES: dict[str, Callable[[], Facts]] = {
    probe.__name__: probe
    for probe in (
        torch, triton, mlir, gpus, native, c_compiler, cuda_compiler, cache, memory, network
    )
}  # fmt: skip


def main() -> None:
    """Write what one probe finds, or the error that it raises."""
    try:
        said: Facts = {"facts": PROBES[sys.argv[1]]()}
    except Exception as error:  # whatever a library raises is what is to be known of it
        said = {"error": f"{type(error).__name__}: {error}".partition("\n")[0]}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
