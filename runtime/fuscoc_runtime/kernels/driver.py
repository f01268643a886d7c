"""Calls of the CUDA driver that torch has none for."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_ADDRESS, _SIZE = ctypes.c_void_p, ctypes.c_uint

_SIGNATURES = {
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": [_ADDRESS, _ADDRESS, _SIZE, ctypes.c_size_t],
    "cuLaunchKernel": [_ADDRESS, *[_SIZE] * 7, *[_ADDRESS] * 3],
    "cuLaunchKernelEx": [_ADDRESS] * 4,
    "cuStreamWriteValue32_v2": [_ADDRESS, ctypes.c_uint64, ctypes.c_uint32, _SIZE],
    "cuEventCreate": [_ADDRESS, _SIZE],
    "cuEventRecord": [_ADDRESS, _ADDRESS],
    "cuEventSynchronize": [_ADDRESS],
    "cuEventQuery": [_ADDRESS],
    "cuEventElapsedTime": [_ADDRESS, _ADDRESS, _ADDRESS],
    "cuStreamWaitEvent": [_ADDRESS, _ADDRESS, _SIZE],
    "cuStreamGetCaptureInfo_v2": [_ADDRESS] * 6,
    "cuGraphAddEventRecordNode": [_ADDRESS, _ADDRESS, _ADDRESS, ctypes.c_size_t, _ADDRESS],
    "cuGraphAddDependencies": [_ADDRESS, _ADDRESS, _ADDRESS, ctypes.c_size_t],
    "cuGraphRemoveDependencies": [_ADDRESS, _ADDRESS, _ADDRESS, ctypes.c_size_t],
    "cuMemGetAllocationGranularity": [_ADDRESS, _ADDRESS, _SIZE],
    "cuMemCreate": [_ADDRESS, ctypes.c_size_t, _ADDRESS, ctypes.c_uint64],
    "cuMemExportToShareableHandle": [_ADDRESS, ctypes.c_uint64, _SIZE, ctypes.c_uint64],
    "cuMemImportFromShareableHandle": [_ADDRESS, _ADDRESS, _SIZE],
    "cuMemRelease": [ctypes.c_uint64],
    "cuCtxGetCurrent": [_ADDRESS],
    "cuCtxSetCurrent": [_ADDRESS],
    "cuDevicePrimaryCtxRetain": [_ADDRESS, ctypes.c_int],
    "cuModuleLoadData": [_ADDRESS, _ADDRESS],
    "cuModuleGetFunction": [_ADDRESS, _ADDRESS, ctypes.c_char_p],
    "cuFuncSetAttribute": [_ADDRESS, ctypes.c_int, ctypes.c_int],
}


def call(name: str, *arguments: Any) -> None:
    """Call a function of the driver.

    The interpreter's lock is given up: where a stream is full, behind kernels that wait for a lost
    rank, the call lasts until another thread has ended these.

    Raises:
        RuntimeError: the driver refuses.
    """
    status = function(name)(*arguments)
    if status:
        raise RuntimeError(f"{name} failed with CUDA error {status}")


@cache
def function(name: str) -> Any:
    """A function of the driver that is in ``_SIGNATURES``."""
    found = getattr(ctypes.CDLL("libcuda.so.1"), name)
    found.argtypes = _SIGNATURES[name]
    return found
