"""Kernels of an artifact, and device functions that are kernels by themselves, with the machine
code that the artifact has for them.

Machine code is made of a kernel's text, which the digests of the artifact cover, and of device
functions of the runtime, whose digest is kept with it. What was made of other ones is left out, and
so is all of it in nodes of more ranks: these kernels are compiled where they are loaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from fuscoc_runtime.kernels.binaries import Binary
from fuscoc_runtime.kernels.loader import Kernel, load_device_kernel, load_kernel
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import KernelCubin
from fuscoc_runtime.room import LEAST

BESIDE = ("padding.py", "room.py")
"""Files of the runtime that device functions are also made of."""


@cache
def device_digest() -> str:
    """A hash of all that texts of Triton call in the runtime."""
    root = Path(__file__).parents[1]
    files = [*sorted(root.glob("kernels/device/*.py")), *(root / name for name in BESIDE)]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def kernel_of(
    artifact: Artifact, name: str, *, interpreted: bool, room: int = LEAST, num_ranks: int = 1
) -> Kernel:
    """A kernel of an artifact; see `load_kernel`."""
    spec = artifact.kernels[name]
    path, code = artifact.kernel_file(spec), artifact.code[spec.file]
    binaries = {} if interpreted else _stored(artifact, room, name)
    return load_kernel(
        path,
        spec,
        code,
        interpreted=interpreted,
        room=room,
        num_ranks=num_ranks,
        binaries=binaries,
    )


def own_kernel(
    artifact: Artifact,
    module: str,
    name: str,
    arguments: Sequence[str],
    *,
    interpreted: bool,
    room: int = LEAST,
) -> Kernel:
    """A kernel of the runtime's, for a shuffle of the artifact; see `load_device_kernel`."""
    binaries = {} if interpreted else _stored(artifact, room, f"{module}.{name}", is_own=True)
    return load_device_kernel(
        module, name, arguments, interpreted=interpreted, room=room, binaries=binaries
    )


def _stored(artifact: Artifact, room: int, name: str, is_own: bool = False) -> dict[str, Binary]:
    """Machine code that fits this runtime, by GPU."""
    if room != LEAST:
        return {}
    found = {}
    for each in artifact.manifest.cubins:
        of_name: Mapping[str, KernelCubin] = each.own if is_own else each.kernels
        if name in of_name and each.device == device_digest():
            cubin = of_name[name]
            found[each.arch] = Binary(
                artifact.code[cubin.file],
                cubin.symbol,
                cubin.threads,
                cubin.shared_bytes,
                cubin.follows,
            )
    return found
