"""The streams of a rank's pipeline, and what runs on them in a trace."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from fuscoc_runtime.comm.requests import LEAST_LANES
from fuscoc_runtime.comm.streams import shared_stream


class Lanes:
    """Streams beside the user's: rows are gathered (on the way back: reduced), sent and forwarded
    at once. All that ``fork`` and ``join`` enclose is enqueued on one of them, or on the user's.

    On the CPU a call returns when its work is done; there is nothing to order.

    Attributes:
        wires: the lanes of the network, on which rounds travel in turn.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: dict[str, Any] = {}
        self._users: Any = None
        self._current: Any = None
        self.use_wires(LEAST_LANES)

    def use_wires(self, count: int) -> None:
        """Have so many lanes of the network, from the next call on."""
        self.wires = tuple(f"wire {number}" for number in range(count))
        if self._device.type == "cuda":
            names = ("gather", *self.wires, "forward")
            self._streams = {name: shared_stream(self._device, name) for name in names}

    def on(self, lane: str) -> AbstractContextManager[None]:
        """Enqueue on a lane; not inside another one."""
        return _Inside(self, self._streams[lane]) if self._streams else nullcontext()

    def mark(self) -> Any:
        """The end of what has been enqueued here so far, for ``wait``."""
        return self._current.record_event() if self._streams else None

    def wait(self, mark: Any) -> None:
        """Let what is enqueued here from now on wait for a mark."""
        if mark is not None:
            self._current.wait_event(mark)

    def fork(self, *lanes: str) -> None:
        """Lanes wait for the current stream, which is the user's: these, if the others begin by
        waiting for them or for what is marked later, or all."""
        if not self._streams:
            return
        self._users = self._current = torch.cuda.current_stream()
        mark = self.mark()
        for lane in lanes or self._streams:
            self._streams[lane].wait_event(mark)

    def join(self) -> None:
        """The user's stream waits for all lanes."""
        for stream in self._streams.values():
            self._users.wait_stream(stream)

    def enter(self, stream: Any = None) -> None:
        """Enqueue on one of the streams from now on, or on the user's again."""
        self._current = stream if stream is not None else self._users
        # Unlike the context torch.cuda.stream, asks for no device and no earlier stream.
        torch.cuda.set_stream(self._current)


class _Inside(AbstractContextManager[None]):
    """A lane while it is enqueued on; a generator would take several times as long to enter."""

    def __init__(self, lanes: Lanes, stream: Any) -> None:
        self._lanes, self._stream = lanes, stream

    def __enter__(self) -> None:
        self._lanes.enter(self._stream)

    def __exit__(self, *_: object) -> None:
        self._lanes.enter()
