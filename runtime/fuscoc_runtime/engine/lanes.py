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
    """Streams beside the current one: rows are gathered (on the way back: reduced), sent and
    forwarded at once.

    On the CPU a call returns when its work is done; there is nothing to order.
    """

    def __init__(self, device: torch.device) -> None:
        self._streams: dict[Lane, Any] = {}
        if device.type == "cuda":
            self._streams = {lane: torch.cuda.Stream(device) for lane in LANES}  # type: ignore[no-untyped-call]

    @contextmanager
    def on(self, lane: Lane) -> Iterator[None]:
        """Enqueue on a lane."""
        if not self._streams:
            yield
            return
        with torch.cuda.stream(self._streams[lane]):
            yield

    def mark(self) -> Any:
        """The end of what the current stream has been given so far, for ``wait``."""
        return torch.cuda.current_stream().record_event() if self._streams else None

    def wait(self, mark: Any) -> None:
        """Let the current stream wait for a mark."""
        if mark is not None:
            torch.cuda.current_stream().wait_event(mark)

    def fork(self) -> None:
        """All lanes wait for the current stream."""
        mark = self.mark()
        for stream in self._streams.values():
            stream.wait_event(mark)

    def join(self) -> None:
        """The current stream waits for all lanes."""
        for stream in self._streams.values():
            torch.cuda.current_stream().wait_stream(stream)
