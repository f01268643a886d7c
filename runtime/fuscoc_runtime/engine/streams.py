"""The order of all calls on a device: that in which the host makes them, on whatever streams.

Kernels of a call may fill a GPU while they wait for their peers. If two ranks ran two such calls in
different orders, each would wait for a kernel that finds no room. All ranks make their calls in the
same order, so that is the order on the device, too: of all shuffles and pools, of calls that wait
for each other on streams of their own, and of graphs that are replayed among them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import RLock
from typing import Any

import torch

from fuscoc_runtime.comm.streams import shared_stream
from fuscoc_runtime.kernels import driver

NO_STREAM = -1


def communication_stream(device: torch.device) -> Any:
    """The stream of the asynchronous calls of all shuffles on a GPU.

    One for all: all of them together keep to ``num_sms``. It has the highest priority: a kernel
    whose CTAs wait for each other should start together.
    """
    return shared_stream(device, "calls", priority=-1)


@cache
def call_order(device: torch.device) -> CallOrder:
    """The order of the calls on a device."""
    return CallOrder(device)


class CallOrder:
    """Lets every call wait, on the device, for the end of the call before it.

    One event says when the latest call has ended. A captured call becomes part of a graph that
    waits for that event when it is replayed, and records it: launching a graph is then like making
    its calls. The nodes that do so are at the graph's beginning and beside it, not between its
    kernels.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self.lock = RLock()  # threads take turns: what a call enqueues stays together
        self._latest = NO_STREAM  # of the latest eager call
        self._capture: _Capture | None = None
        if self._on_gpu:
            with torch.cuda.device(device):
                self._ended: Any = torch.cuda.Event(external=True)  # type: ignore[no-untyped-call]
                self._ended.record(torch.cuda.current_stream(device))

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Around a call, which enqueues its work on the current stream."""
        if not self._on_gpu:
            yield
            return
        with self.lock:
            stream = torch.cuda.current_stream()
            if torch.cuda.is_current_stream_capturing():
                self._capture = _Capture.of(stream, self._ended, self._capture)
                yield
                self._capture.called(stream)
                return
            # A graph that was captured may have been replayed since, on any stream.
            if self.follows(stream.cuda_stream):
                self._ended.wait(stream)
            try:
                yield
            finally:
                self._ended.record(stream)

    @property
    def ended(self) -> int:
        """The event that every call records at its end."""
        event: int = self._ended.cuda_event
        return event

    def follows(self, stream: int) -> bool:
        """Whether a call on that stream has to be told to wait for the latest one, for what
        ``ended`` tells; the next one is told to wait for it. Who asks makes the call, has the
        ``lock`` until it is enqueued, and the stream captures nothing: see `turn`, which costs the
        host more."""
        latest, self._latest = self._latest, stream
        # A graph that was captured may have been replayed since, on any stream.
        return stream != latest or self._capture is not None


class _Capture:
    """The calls of one capture. The driver's own interface adds what torch's cannot: a node that
    nothing waits for, and further nodes that it waits for."""

    def __init__(self, number: int, ended: Any, stream: Any) -> None:
        self._number, self._ended = number, ended
        self._latest = stream
        self._record: Any = None  # the node that records the event when the latest call has ended,
        self._behind = _Nodes()  # and the nodes that it waits for

    @classmethod
    def of(cls, stream: Any, ended: Any, latest: _Capture | None) -> _Capture:
        """The capture that ``stream`` takes part in, whose calls so far the stream waits for."""
        number = _capture_info(stream)[0]
        if latest is None or latest._number != number:
            ended.wait(stream)
            return cls(number, ended, stream)
        if latest._latest != stream:
            stream.wait_stream(latest._latest)
        return latest

    def called(self, stream: Any) -> None:
        """A call has been enqueued on ``stream``."""
        self._latest = stream
        _, graph, nodes = _capture_info(stream)
        event = ctypes.c_void_p(self._ended.cuda_event)
        if self._record is None:
            self._record = ctypes.c_void_p()
            record = ctypes.byref(self._record)
            driver.call("cuGraphAddEventRecordNode", record, graph, *nodes.arguments, event)
        else:
            # Earlier calls come before it anyway, and kernels that only one other waits for start
            # sooner after each other.
            self._behind.link("cuGraphRemoveDependencies", graph, self._record)
            nodes.link("cuGraphAddDependencies", graph, self._record)
        self._behind = nodes


class _Nodes:
    """Nodes of a graph, which the driver may forget."""

    def __init__(self, first: Any = None, count: int = 0) -> None:
        self._handles = (ctypes.c_void_p * count)(*(first[i] for i in range(count)))

    @property
    def arguments(self) -> tuple[Any, ctypes.c_size_t]:
        """Their array, and how many they are."""
        return self._handles, ctypes.c_size_t(len(self._handles))

    def link(self, function: str, graph: Any, to: Any) -> None:
        """Add or remove the edges from all of them to another."""
        handles, count = self.arguments
        targets = (ctypes.c_void_p * count.value)(*[to.value] * count.value)
        driver.call(function, graph, handles, targets, count)


def _capture_info(stream: Any) -> tuple[int, ctypes.c_void_p, _Nodes]:
    """The number of the capture that a stream takes part in, its graph, and the nodes that the next
    one on the stream will wait for."""
    status, number, count = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_size_t()
    graph, nodes = ctypes.c_void_p(), ctypes.POINTER(ctypes.c_void_p)()
    results = (ctypes.byref(each) for each in (status, number, graph, nodes, count))
    driver.call("cuStreamGetCaptureInfo_v2", ctypes.c_void_p(stream.cuda_stream), *results)
    return number.value, graph, _Nodes(nodes, count.value)
