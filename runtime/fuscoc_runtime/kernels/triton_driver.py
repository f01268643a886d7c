"""What Triton's own driver does, on a machine that has no C compiler.

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
def compiling() -> Iterator[None]:
    """Let Triton compile kernels in the enclosed code, and not load them, also where its driver
    cannot be compiled. By one thread at a time; others have Triton's own."""
    if can_be_compiled():
        yield
        return
    from triton.runtime import driver as chosen

    before = vars(chosen)["_active"]
    chosen.set_active(_OfThisThread(chosen))
    try:
        yield
    finally:
        vars(chosen)["_active"] = before  # what resets it makes Triton's own


class _OfThisThread:
    """What a compilation asks for, to the thread that made this; to others what Triton makes."""

    def __init__(self, chosen: Any) -> None:
        self._chosen, self._thread = chosen, get_ident()
        self._ours = SimpleNamespace(
            get_current_device=torch.cuda.current_device,
            get_current_stream=lambda device: 0,
            get_current_target=_target,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ours if get_ident() == self._thread else self._chosen.default, name)


def _target() -> Any:
    from triton.backends.compiler import GPUTarget

    major, minor = torch.cuda.get_device_capability()
    return GPUTarget("cuda", major * 10 + minor, 32)


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
