"""Moments of a GPU's streams: events of the driver that know when they have passed."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from fuscoc_runtime.kernels import driver

NOT_READY = 600


@cache
def marks_of(device: torch.device) -> Marks:
    """Those of a GPU, whoever asks."""
    return Marks(device)


class Marks:
    """Events of one GPU, by address. Those that are given back are used again."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._free = device, list[int]()
        self._beside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def new(self) -> int:
        """An event that has not been recorded since it was given back."""
        if self._free:
            return self._free.pop()
        made = ctypes.c_void_p()
        with torch.cuda.device(self._device):
            driver.call("cuEventCreate", ctypes.addressof(made), 0)
        assert made.value is not None
        return made.value

    def record(self, stream: int) -> int:
        """One of when a stream, by address, has done all that it has been given."""
        event = self.new()
        driver.call("cuEventRecord", event, stream)
        return event

    def now(self) -> int:
        """One that has passed: that of a stream without work."""
        event = self.record(self._beside.cuda_stream)
        self.wait(event)
        return event

    def wait(self, event: int) -> None:
        """Let the host wait for it."""
        driver.call("cuEventSynchronize", event)

    def has_passed(self, event: int) -> bool:
        """Whether it has; nobody waits."""
        status: int = driver.function("cuEventQuery")(event)
        if status not in (0, NOT_READY):
            raise RuntimeError(f"cuEventQuery failed with CUDA error {status}")
        return status == 0

    def seconds(self, one: int, other: int) -> float:
        """Between two that have passed."""
        milliseconds = ctypes.c_float()
        driver.call("cuEventElapsedTime", ctypes.addressof(milliseconds), one, other)
        return milliseconds.value * 1e-3

    def give_back(self, *events: int) -> None:
        """Nobody asks for these any more."""
        self._free += events
