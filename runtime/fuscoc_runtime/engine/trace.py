"""What a rank did when: spans on lanes, for Perfetto or chrome://tracing.

On a GPU a span lasts from when its stream gets there until its work has ended, by CUDA events. A
span of the wire lasts, on a GPU, as long as its round travels; on the CPU from its start until this
rank has seen its end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fuscoc_runtime.files import whole_file

NOTHING = nullcontext()


@dataclass(frozen=True)
class Span:
    """Seconds since the epoch, by the clock of the rank's host."""

    rank: int
    lane: str
    name: str
    begin: float
    end: float


class Tracer:
    """Collects the spans of one rank; does nothing unless ``enabled``.

    On a GPU spans are NVTX ranges too, which last while the host enqueues their work.
    """

    def __init__(self, rank: int, device: torch.device, *, enabled: bool) -> None:
        self.enabled, self.on_gpu = enabled, device.type == "cuda"
        self.spans: list[Span] = []
        self._rank = rank
        self._open: dict[int, tuple[str, str, Any]] = {}
        self._closed: list[tuple[str, str, Any, Any]] = []
        self._number = 0

    def begin(self, lane: str, name: str) -> int:
        """Begin a span on the current stream; ``end`` takes what is returned."""
        self._number += 1
        if self.enabled:
            self._open[self._number] = lane, name, self._now()
        return self._number

    def end(self, number: int) -> None:
        """End a span on the current stream."""
        if number in self._open:
            self._closed.append((*self._open.pop(number), self._now()))

    def span(self, lane: str, name: str) -> AbstractContextManager[None]:
        """A span of what is enqueued inside."""
        return self._span(lane, name) if self.enabled else NOTHING

    @contextmanager
    def _span(self, lane: str, name: str) -> Iterator[None]:
        number = self.begin(lane, name)
        if self.on_gpu:
            torch.cuda.nvtx.range_push(f"{lane}: {name}")  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            if self.on_gpu:
                torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
            self.end(number)

    def settle(self) -> None:
        """Turn marks into times; all that was enqueued has ended."""
        if not self._closed:
            return
        if self.on_gpu:
            # One event whose time is known on both clocks; the host needs microseconds to see it.
            known = self._now()
            known.synchronize()
            at = time.time()
        for lane, name, begin, end in self._closed:
            if self.on_gpu:
                begin, end = (at - mark.elapsed_time(known) * 1e-3 for mark in (begin, end))
            self.spans.append(Span(self._rank, lane, name, begin, end))
        self._closed.clear()

    def _now(self) -> Any:
        if not self.on_gpu:
            return time.time()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def write_trace(path: str | Path, spans: Iterable[Span]) -> None:
    """Write spans of any ranks in Chrome's trace format: a process a rank, a thread a lane."""
    ordered = sorted(spans, key=lambda span: (span.rank, span.begin))
    start = min((span.begin for span in ordered), default=0.0)
    lanes = {lane: number for number, lane in enumerate(sorted({span.lane for span in ordered}))}
    events: list[dict[str, Any]] = []
    for rank in sorted({span.rank for span in ordered}):
        events.append(_label("process_name", rank, 0, f"rank {rank}"))
        events += [_label("thread_name", rank, number, lane) for lane, number in lanes.items()]
    for span in ordered:
        events.append(
            {
                "ph": "X",
                "pid": span.rank,
                "tid": lanes[span.lane],
                "name": span.name,
                "ts": round((span.begin - start) * 1e6, 3),
                "dur": round((span.end - span.begin) * 1e6, 3),
            }
        )
    with whole_file(path) as file:
        file.write(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode())


def _label(kind: str, rank: int, lane: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": rank, "tid": lane, "name": kind, "args": {"name": name}}
