"""What NVML knows of a GPU's NVLink domain.

The library comes with the driver and is opened when it is asked, so nothing is linked to it; where
it is missing, or too old to know of domains, that is the answer.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

LIBRARY = "libnvidia-ml.so.1"

STATES = ("not supported", "not started", "in progress", "completed")
"""How far a GPU has come on its way into a domain."""
COMPLETED = "completed"

NO_CLUSTER = "00000000000000000000000000000000"
"""The id of domains that do not span hosts."""


class NvmlError(RuntimeError):
    """NVML cannot say, or is not there."""


@dataclass(frozen=True)
class FabricInfo:
    """A GPU's place in its NVLink domain.

    Attributes:
        state: one of ``STATES``.
        problem: why it is in none although it has completed; else empty.
        cluster: the id of the fabric, in hexadecimal digits.
        clique: those GPUs of the cluster that address each other's memory have the same one.
        health_mask: bits that ``nvml.h`` explains.
    """

    state: str
    problem: str
    cluster: str
    clique: int
    health_mask: int


class _Answer(ctypes.Structure):
    """``nvmlGpuFabricInfo_v3_t``, which begins as ``nvmlGpuFabricInfo_v2_t`` does."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("cluster", ctypes.c_ubyte * 16),
        ("status", ctypes.c_int),
        ("clique", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
        ("health_mask", ctypes.c_uint),
        ("health_summary", ctypes.c_ubyte),
    )


VERSIONS = {3: ctypes.sizeof(_Answer), 2: _Answer.health_summary.offset}
"""Bytes of the answer by its version: the newest first, as older libraries refuse what they do not
know, and newer ones will what is too old."""


def fabric_info(uuid: str) -> FabricInfo:
    """Of the GPU with that id, such as ``GPU-...``.

    Raises:
        NvmlError: there is no such library, function or GPU, or the function fails.
    """
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise NvmlError(f"there is no {LIBRARY}") from error
    _call(library, "nvmlInit_v2")
    try:
        device, answer = ctypes.c_void_p(), _Answer()
        _call(library, "nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(device))
        _ask(library, device, answer)
        state = STATES[answer.state] if answer.state < len(STATES) else f"state {answer.state}"
        problem = _reason(library, answer.status) if answer.status else ""
    finally:
        library.nvmlShutdown()
    return FabricInfo(
        state, problem, bytes(answer.cluster).hex(), answer.clique, answer.health_mask
    )


def _ask(library: ctypes.CDLL, device: ctypes.c_void_p, answer: _Answer) -> None:
    name, refused = "nvmlDeviceGetGpuFabricInfoV", None
    for version, size in VERSIONS.items():
        answer.version = size | version << 24
        try:
            return _call(library, name, device, ctypes.byref(answer))
        except NvmlError as error:
            refused = error
    assert refused is not None
    raise refused


def _call(library: ctypes.CDLL, name: str, *arguments: Any) -> None:
    try:
        function = getattr(library, name)
    except AttributeError as error:
        raise NvmlError(f"this NVML has no {name}") from error
    status = function(*arguments)
    if status:
        raise NvmlError(f"NVML's {name} says: {_reason(library, status)}")


def _reason(library: ctypes.CDLL, status: int) -> str:
    """What a status means."""
    describe = library.nvmlErrorString
    describe.restype = ctypes.c_char_p
    text: bytes = describe(status)
    return text.decode()
