"""Launch a compiled Triton kernel by the driver's own call.

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

WARP_THREADS = 32

NUM_SCRATCH = 2
"""Addresses behind a Triton kernel's own parameters: scratch memory, for those that need some."""


class MachineCode:
    """A kernel of Triton on the current device, all of whose parameters are integers, of 64 bits or
    of the lower ones of these, and addresses.

    Attributes:
        function: the driver's own.
        threads, shared_bytes: of a program.
        can_follow: whether it waits by itself for what its stream has before it.
    """

    def __init__(self, compiled: Any, num_arguments: int) -> None:
        """``compiled`` is what ``warmup`` returned."""
        metadata = compiled.metadata
        kinds = [kind for kind in compiled.src.signature.values() if kind != "constexpr"]
        assert len(kinds) == num_arguments, kinds
        assert all(kind[0] == "*" or kind in ("i32", "i64") for kind in kinds), kinds
        assert not metadata.global_scratch_size, "a kernel that needs memory of its own"
        if triton_driver.can_be_compiled():
            _ = compiled.run  # loads it
            self.function = compiled.function
        else:
            self.function = triton_driver.load(compiled.kernel, metadata.name, metadata.shared)
        self._compiled = compiled  # keeps what it has loaded
        self.shared_bytes = metadata.shared
        self.threads = metadata.num_warps * WARP_THREADS
        self._device = torch.cuda.current_device()
        # Code from a cache may have been made where `sync.follow` knew of no device.
        self.can_follow = "griddepcontrol.wait" in compiled.asm["ptx"]
        self._num_arguments = num_arguments
        self._values: Any = (ctypes.c_int64 * (num_arguments + NUM_SCRATCH))()
        first, size = ctypes.addressof(self._values), ctypes.sizeof(ctypes.c_int64)
        places = range(first, first + len(self._values) * size, size)
        self._places = (ctypes.c_void_p * len(places))(*places)
        self._lock = Lock()  # of the arguments

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
