"""What Triton's own driver does, on a machine that has no C compiler, or not the GPU.

Triton compiles a module of C that calls the GPU's driver, and some versions a launcher for each
signature. Whoever launches machine code by the driver's own call needs neither.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import torch

from fuscoc_runtime.kernels import driver

_MAX_DYNAMIC_SHARED_BYTES = 8  # CUfunction_attribute
_SHARED_BYTES = 48 << 10  # what a program may have unasked


def can_be_compiled() -> bool:
    """Whether there is a C compiler where Triton looks for one."""
    return bool(os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"))


@contextmanager
def compiling(capability: int | None = None) -> Iterator[None]:
    """Let Triton compile kernels in the enclosed code, and not load them, also where its driver
    cannot be compiled: for the current GPU, or for those of a ``capability`` such as 90, which need
    not be here. By one thread at a time; others have Triton's own."""
    if capability is None and can_be_compiled():
        yield
        return
    from triton.runtime import driver as chosen

    before = vars(chosen)["_active"]
    chosen.set_active(
        _OfThisThread(chosen, _current() if capability is None else _absent(capability))
    )
    try:
        yield
    finally:
        vars(chosen)["_active"] = before  # what resets it makes Triton's own


class _OfThisThread:
    """What a compilation asks for, to the thread that made this; to others what Triton makes."""

    def __init__(self, chosen: Any, ours: SimpleNamespace) -> None:
        self._chosen, self._ours, self._thread = chosen, ours, get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ours if get_ident() == self._thread else self._chosen.default, name)


def _current() -> SimpleNamespace:
    major, minor = torch.cuda.get_device_capability()
    return _gpu(torch.cuda.current_device(), major * 10 + minor)


def _absent(capability: int) -> SimpleNamespace:
    """With a number that no device has: by it Triton remembers what it has compiled."""
    return _gpu(-capability, capability)


def _gpu(device: int, capability: int) -> SimpleNamespace:
    from triton.backends.compiler import GPUTarget

    target = GPUTarget("cuda", capability, 32)
    return SimpleNamespace(
        get_current_device=lambda: device,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: target,
    )


def load(code: bytes, name: str, shared_bytes: int) -> int:
    """The kernel of this name, which stays loaded on the current device.

    Raises:
        RuntimeError: the driver refuses.
    """
    context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuCtxGetCurrent", ctypes.addressof(context))
    if not context:
        device = torch.cuda.current_device()
        driver.call("cuDevicePrimaryCtxRetain", ctypes.addressof(context), device)
        driver.call("cuCtxSetCurrent", context)
    driver.call("cuModuleLoadData", ctypes.addressof(module), code)
    driver.call("cuModuleGetFunction", ctypes.addressof(kernel), module, name.encode())
    if shared_bytes > _SHARED_BYTES:
        driver.call("cuFuncSetAttribute", kernel, _MAX_DYNAMIC_SHARED_BYTES, shared_bytes)
    assert kernel.value is not None
    return kernel.value
