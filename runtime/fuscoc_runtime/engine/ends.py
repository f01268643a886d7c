"""The ends of asynchronous calls, and how long the memory that they use is kept for them.

A call on the stream of such calls reads memory of its caller's. torch's allocator may give memory
that is freed to whatever its own stream is given next, so it must be kept until that stream has
been told to wait for the call. Mostly it has: callers wait before they use what a call returns. So
an event keeps what its call uses until then, and only where nobody has waited is the allocator told
of the other stream, which costs the host more than all else about an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.engine.streams import communication_stream
from fuscoc_runtime.kernels import driver


class Event:
    """The end of a call that was made with ``async_op=True``."""

    def __init__(self, end: Any = None, given: Any = None) -> None:
        """``given`` is kept: a handle, whose memory the caller may not need any more."""
        self._end = end  # a CUDA event, or nothing where the call itself has waited
        self._given = given

    def wait(self) -> None:
        """Let the current stream wait; what the call returned may be used from then on."""
        if self._end is not None:
            current = torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())
            driver.call("cuStreamWaitEvent", current, self._end.cuda_event, 0)

    def query(self) -> bool:
        """Whether the call has ended, without waiting."""
        return self._end is None or bool(self._end.query())


class Ends:
    """Events of calls on the stream of asynchronous calls of a GPU, used again and again.

    Attributes:
        stream, address: that one, and how the driver knows it.
        device: number of the GPU.
        free: events that may be recorded again. Streams that wait for one wait for what was
            recorded before.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream, self.device = communication_stream(device), device.index
        self.address: int = self.stream.cuda_stream
        self.free: list[tuple[Any, int]] = []

    def take(self) -> tuple[Any, int]:
        """A CUDA event that nobody else uses, and how the driver knows it; to be recorded before
        anybody waits for it."""
        try:
            return self.free.pop()
        except IndexError:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self.stream)  # the driver has none before
            return event, event.cuda_event


class CallEnd(Event):
    """The end of a call that a ``caller`` has made, a stream by number; an event of ``ends``, with
    its address.

    The caller's work may use the memory of the call's arguments and result. Once the caller waits
    for the end, all that the call does comes before what the caller is given then, as if its own
    work had done it: whoever may reuse that memory after the caller's work may reuse it. That
    another stream waits does not tell that, and if none does, nothing tells it.
    """

    def __init__(
        self, ends: Ends, event: Any, address: int, caller: int, used: Sequence[Tensor]
    ) -> None:
        """``used``: tensors whose memory the call reads or writes."""
        self._ends, self._end, self._address = ends, event, address
        self._caller, self._used = caller, used

    def wait(self) -> None:
        device = torch._C._cuda_getDevice()
        current = torch._C._cuda_getCurrentRawStream(device)
        driver.call("cuStreamWaitEvent", current, self._address, 0)
        # The default streams of all devices have the same number.
        if current == self._caller and device == self._ends.device:
            self._used = ()

    def __del__(self) -> None:
        for tensor in self._used:
            tensor.record_stream(self._ends.stream)
        self._ends.free.append((self._end, self._address))
