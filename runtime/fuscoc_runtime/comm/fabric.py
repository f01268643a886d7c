"""The NVLink domain of a rank's GPU, where that may span hosts.

GPUs of one domain are of one cluster, and of one clique there. Processes of several hosts share
their memory by handles of the fabric, which the driver gives out where a service (IMEX) runs on all
hosts. torch takes them for its symmetric memory where a GPU can make one, and files otherwise,
which do not leave their host: so a domain counts only if this GPU can make such a handle, found out
in the way in which torch does.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import torch

from fuscoc_runtime.comm.nvml import COMPLETED, NO_CLUSTER, FabricInfo, NvmlError, fabric_info
from fuscoc_runtime.kernels.driver import call


@dataclass(frozen=True)
class Fabric:
    """GPUs that address each other's memory, wherever they are: a clique of a cluster."""

    cluster: str
    clique: int

    def __str__(self) -> str:
        return f"clique {self.clique} of cluster {self.cluster}"


@cache
def fabric_of(device: torch.device) -> Fabric | str:
    """The domain of a rank that computes there, or why it shares memory with its host alone."""
    if device.type != "cuda":
        return f"it computes on {device.type}"
    uuid = uuid_of(device)  # the driver answers from then on
    # First, as the driver refuses in less than a millisecond, and NVML's start takes hundreds.
    try:
        _try_handle(device.index)
    except (OSError, AttributeError, RuntimeError) as error:
        return f"the driver gives no handles of the fabric ({error})"
    try:
        return as_fabric(fabric_info(uuid))
    except NvmlError as error:
        return str(error)


def as_fabric(info: FabricInfo) -> Fabric | str:
    """The domain that NVML tells of, or why it does not span hosts."""
    if info.state != COMPLETED:
        return f"its NVLink domain is in the state `{info.state}`"
    if info.problem:
        return f"its GPU has not come into an NVLink domain: {info.problem}"
    if info.cluster == NO_CLUSTER:
        return "its NVLink domain has no cluster id: it is of one host"
    return Fabric(info.cluster, info.clique)


def uuid_of(device: torch.device) -> str:
    """The id by which NVML knows a GPU."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


class _Properties(ctypes.Structure):
    """``CUmemAllocationProp``: pinned memory of a device that is to have a handle of the fabric."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("handle_kind", ctypes.c_int),
        ("location_kind", ctypes.c_int),
        ("device", ctypes.c_int),
        ("unused", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


PINNED, ON_DEVICE, OF_FABRIC = 1, 1, 8
HANDLE_BYTES = 64


def _try_handle(device: int) -> None:
    """Allocate the least memory that there is, and import the handle of it that was exported."""
    properties = ctypes.byref(_Properties(PINNED, OF_FABRIC, ON_DEVICE, device))
    size, handle = ctypes.c_size_t(), ctypes.create_string_buffer(HANDLE_BYTES)
    call("cuMemGetAllocationGranularity", ctypes.byref(size), properties, 0)
    own, imported = ctypes.c_uint64(), ctypes.c_uint64()
    call("cuMemCreate", ctypes.byref(own), size, properties, 0)
    try:
        call("cuMemExportToShareableHandle", handle, own, OF_FABRIC, 0)
        call("cuMemImportFromShareableHandle", ctypes.byref(imported), handle, OF_FABRIC)
        call("cuMemRelease", imported)
    finally:
        call("cuMemRelease", own)
