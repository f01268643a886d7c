"""The streams of a rank's pipeline, and what runs on them in a trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

Lane = Literal["gather", "wire 0", "wire 1", "forward"]
WIRES: tuple[Lane, ...] = ("wire 0", "wire 1")
LANES: tuple[Lane, ...] = ("gather", *WIRES, "forward")


class Lanes:
    """Streams beside the user's: rows are gathered (on the way back: reduced), sent and forwarded
    at once. All that ``fork`` and ``join`` enclose is enqueued on one of them, or on the user's.

    On the CPU a call returns when its work is done; there is nothing to order.
    """

    def __init__(self, device: torch.device) -> None:
        self._streams: dict[Lane, Any] = {}
        self._users: Any = None
        self._current: Any = None
        if device.type == "cuda":
            self._streams = {lane: torch.cuda.Stream(device) for lane in LANES}  # type: ignore[no-untyped-call]

    @contextmanager
    def on(self, lane: Lane) -> Iterator[None]:
        """Enqueue on a lane; not inside another one."""
        if not self._streams:
            yield
            return
        self._enter(self._streams[lane])
        try:
            yield
        finally:
            self._enter(self._users)

    def mark(self) -> Any:
        """The end of what has been enqueued here so far, for ``wait``."""
        return self._current.record_event() if self._streams else None

    def wait(self, mark: Any) -> None:
        """Let what is enqueued here from now on wait for a mark."""
        if mark is not None:
            self._current.wait_event(mark)

    def fork(self) -> None:
        """All lanes wait for the current stream, which is the user's."""
        if not self._streams:
            return
        self._users = self._current = torch.cuda.current_stream()
        mark = self.mark()
        for stream in self._streams.values():
            stream.wait_event(mark)

    def join(self) -> None:
        """The user's stream waits for all lanes."""
        for stream in self._streams.values():
            self._users.wait_stream(stream)

    def _enter(self, stream: Any) -> None:
        # Unlike the context torch.cuda.stream, asks for no device and no earlier stream.
        torch.cuda.set_stream(stream)
        self._current = stream
