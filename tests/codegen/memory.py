"""Running generated kernels on numpy arrays under Triton's interpreter.

Needs numpy and triton only, so that kernels can be checked where torch is not installed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import triton
from numpy.typing import NDArray

from fuscoc_runtime.kernels.loader import launching

Int64s = NDArray[np.int64]


def int64s(values: Any) -> Int64s:
    """A column of a descriptor list."""
    return np.asarray(values, dtype=np.int64)


def zeros(shape: int | tuple[int, ...], dtype: Any = np.int64) -> NDArray[Any]:
    """A buffer at a multiple of 16 bytes, as kernels want them."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(count + 16, dtype=np.uint8)
    start = -memory.ctypes.data % 16
    return memory[start : start + count].view(dtype).reshape(shape)


def filled(values: NDArray[Any]) -> NDArray[Any]:
    """A copy at a multiple of 16 bytes."""
    copy = zeros(values.shape, values.dtype)
    copy[...] = values
    return copy


def addresses(buffers: Sequence[NDArray[Any]]) -> Int64s:
    """What a kernel takes for buffers of its peers."""
    return int64s([buffer.ctypes.data for buffer in buffers])


class Kernels:
    """The kernels of one file, interpreted."""

    def __init__(self, path: Path) -> None:
        self.module = import_kernels(path, interpret=True)

    def launch(self, name: str, num_programs: int = 1, **values: int | NDArray[Any]) -> None:
        """Run a kernel; arrays go by their address, and exactly its parameters must be given."""
        kernel = getattr(self.module, name)
        assert sorted(values) == sorted(kernel.arg_names)
        arguments = {
            name: value.ctypes.data if isinstance(value, np.ndarray) else value
            for name, value in values.items()
        }
        with launching(interpreted=True):
            kernel[(num_programs,)](**arguments)


def import_kernels(path: Path, *, interpret: bool) -> ModuleType:
    """Execute a kernel file, for the interpreter or for the compiler."""
    spec = importlib.util.spec_from_file_location(f"{path.stem}_{interpret}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = interpret
        spec.loader.exec_module(module)
    return module
