"""Launch the machine code of a Triton kernel by the driver's own call.

Triton's launcher looks for the stream, hooks and scratch memory anew each time, in Python: 12 us a
launch, and about 50 where other work has displaced it from the caches, as in any real step.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from threading import Lock
from typing import Any

import torch

from fuscoc_runtime.kernels import driver, triton_driver
from fuscoc_runtime.kernels.binaries import Binary, binary_of

NUM_SCRATCH = 2
"""Addresses behind a Triton kernel's own parameters: scratch memory, for those that need some."""


class MachineCode:
    """A kernel of Triton, loaded on the current device.

    Attributes:
        function: the driver's own.
        threads, shared_bytes, can_follow: as of a `Binary`.
    """

    def __init__(self, binary: Binary, num_arguments: int, loaded: Any = None) -> None:
        """``loaded`` is what Triton has loaded of it, if it has.

        Raises:
            RuntimeError: the driver refuses.
        """
        if loaded is None:
            self.function = triton_driver.load(binary.code, binary.symbol, binary.shared_bytes)
        else:
            self.function = loaded.function
        self._loaded = loaded  # keeps it loaded
        self.shared_bytes, self.threads = binary.shared_bytes, binary.threads
        self.can_follow = binary.can_follow
        self._device = torch.cuda.current_device()
        self._num_arguments = num_arguments
        self._values: Any = (ctypes.c_int64 * (num_arguments + NUM_SCRATCH))()
        first, size = ctypes.addressof(self._values), ctypes.sizeof(ctypes.c_int64)
        places = range(first, first + len(self._values) * size, size)
        self._places = (ctypes.c_void_p * len(places))(*places)
        self._lock = Lock()  # of the arguments

    @classmethod
    def compiled(cls, compiled: Any, num_arguments: int) -> MachineCode:
        """Of what ``warmup`` returned."""
        binary = binary_of(compiled, num_arguments)
        if not triton_driver.can_be_compiled():
            return cls(binary, num_arguments)
        _ = compiled.run  # loads it
        return cls(binary, num_arguments, compiled)

    @property
    def resident(self) -> int:
        """Programs that an SM holds at once."""
        found = ctypes.c_int()
        driver.call(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            *(ctypes.addressof(found), self.function, self.threads, self.shared_bytes),
        )
        return found.value

    def start(self, arguments: Sequence[int], num_programs: int) -> None:
        """Launch on a grid of ``(num_programs,)``, on the current stream of its device, which is
        the current one.

        Raises:
            RuntimeError: the driver refuses.
        """
        stream = torch._C._cuda_getCurrentRawStream(self._device)
        grid, block = (num_programs, 1, 1), (self.threads, 1, 1)
        with self._lock:
            self._values[: self._num_arguments] = arguments
            # Copies the arguments.
            driver.call(
                "cuLaunchKernel",
                *(self.function, *grid, *block, self.shared_bytes, stream, self._places, None),
            )
