"""What a rank did when: spans on lanes, for Perfetto or chrome://tracing.

On a GPU a span lasts from when its stream gets there until its work has ended, by CUDA events; on
the CPU while the host is inside. What the host does is on a lane of its own, by the host's clock.
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
from fuscoc_runtime.kernels.marks import Marks, marks_of

NOTHING = nullcontext()
HOST = "host"
CAPTURED = "captured by a CUDA graph, whose replays are not traced"
MOST_PENDING = 1024
"""Spans whose times are not read yet, before those that have ended are, at the next call."""


@dataclass(frozen=True)
class Span:
    """Seconds since the epoch, by the clock of the rank's host. Of what travels between nodes,
    ``num_bytes`` are what this rank sends."""

    rank: int
    lane: str
    name: str
    begin: float
    end: float
    num_bytes: int | None = None


@dataclass(frozen=True)
class _Closed:
    """A span, of whose begin and end there are marks."""

    lane: str
    name: str
    begin: Any
    end: Any
    num_bytes: int | None


class Tracer:
    """Collects the spans of one rank; does nothing unless ``enabled``.

    On a GPU spans are NVTX ranges too, which last while the host enqueues their work. A stream is
    known by its address, and on the CPU there is none.
    """

    def __init__(self, rank: int, device: torch.device, *, enabled: bool) -> None:
        self.enabled, self.on_gpu = enabled, device.type == "cuda"
        self._rank, self._device = rank, device
        self._spans: list[Span] = []
        self._closed: list[_Closed] = []
        self._streams: dict[int, str] = {}
        self._is_noted = False  # that what has been captured is left out

    @property
    def marks(self) -> Marks:
        """Of the GPU's streams."""
        return marks_of(self._device)

    @property
    def spans(self) -> list[Span]:
        """Those whose times are known."""
        return self._spans

    def span(self, lane: str, name: str) -> AbstractContextManager[None]:
        """A span of what is enqueued inside."""
        return self._span(lane, name) if self.enabled else NOTHING

    @contextmanager
    def _span(self, lane: str, name: str) -> Iterator[None]:
        begin = self._now()
        try:
            with self._range(lane, name):
                yield
        finally:
            self.add(lane, name, begin, self._now())

    @contextmanager
    def launch(self, name: str, stream: int | None = None) -> Iterator[None]:
        """A span of the kernel that is launched inside, on a stream, by default the current one;
        nothing but a note if a CUDA graph captures it."""
        if self.is_captured():
            self.note_capture()
            yield
            return
        if stream is None:
            stream = self.current_stream()
        lane, begin = self.lane_of(stream), self._now(stream)
        with self._range(lane, name):
            yield
        self.add(lane, name, begin, self._now(stream))

    @contextmanager
    def host(self, name: str) -> Iterator[None]:
        """A span of what the host does inside."""
        started = time.perf_counter()
        with self._range(HOST, name):
            yield
        self.host_since(name, started)

    def host_since(self, name: str, started: float) -> None:
        """A span of what the host has done since then, by ``time.perf_counter``."""
        end = time.time()
        begin = end - (time.perf_counter() - started)
        self._spans.append(Span(self._rank, HOST, name, begin, end))

    def add(self, lane: str, name: str, begin: Any, end: Any, num_bytes: int | None = None) -> None:
        """A span between two moments: of the CPU's clock, or marks of a GPU."""
        self._is_noted = False
        self._closed.append(_Closed(lane, name, begin, end, num_bytes))

    def lane_of(self, stream: int) -> str:
        """The lane of kernels on a stream: streams are numbered as they appear."""
        return self._streams.setdefault(stream, f"stream {len(self._streams)}")

    def current_stream(self) -> int:
        """Of the device."""
        if not self.on_gpu:
            return 0
        stream: int = torch._C._cuda_getCurrentRawStream(self._device.index)
        return stream

    def is_captured(self) -> bool:
        """Whether a CUDA graph captures what is enqueued now."""
        return self.on_gpu and torch.cuda.is_current_stream_capturing()

    def note_capture(self) -> None:
        """Say where calls have been left out, once for as many as follow each other."""
        if not self._is_noted:
            self._is_noted = True
            self.host_since(CAPTURED, time.perf_counter())

    def settle(self, waits: bool = True) -> None:
        """Turn marks into times: of all that was enqueued, which the host ``waits`` for, or of what
        has ended so far."""
        closed, self._closed = self._closed, []
        if not self.on_gpu:
            self._spans += [self._timed(each, each.begin, each.end) for each in closed]
            return
        if not closed:
            return
        marks, pending = self.marks, list[_Closed]()
        for each in closed:
            if waits:
                marks.wait(each.end)
        # One mark whose time is known on both clocks; the host needs microseconds to see it.
        known = marks.now()
        at = time.time()
        for each in closed:
            if not marks.has_passed(each.end):
                pending.append(each)
                continue
            begin = at - marks.seconds(each.begin, known)
            end = begin + marks.seconds(each.begin, each.end)
            self._spans.append(self._timed(each, begin, end))
            marks.give_back(each.begin, each.end)
        marks.give_back(known)
        self._closed[:0] = pending

    def settle_so_far(self) -> None:
        """As ``settle`` without waiting, if much has come together."""
        if len(self._closed) > MOST_PENDING and not self.is_captured():
            self.settle(waits=False)

    def _timed(self, each: _Closed, begin: float, end: float) -> Span:
        return Span(self._rank, each.lane, each.name, begin, end, each.num_bytes)

    def _now(self, stream: int | None = None) -> Any:
        if not self.on_gpu:
            return time.time()
        return self.marks.record(self.current_stream() if stream is None else stream)

    @contextmanager
    def _range(self, lane: str, name: str) -> Iterator[None]:
        """A range of NVTX, on a GPU."""
        if self.on_gpu:
            torch.cuda.nvtx.range_push(f"{lane}: {name}")  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            if self.on_gpu:
                torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]


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
        said = {} if span.num_bytes is None else {"args": {"bytes": span.num_bytes}}
        events.append(
            {
                "ph": "X",
                "pid": span.rank,
                "tid": lanes[span.lane],
                "name": span.name,
                "ts": round((span.begin - start) * 1e6, 3),
                "dur": round((span.end - span.begin) * 1e6, 3),
                **said,
            }
        )
    with whole_file(path) as file:
        file.write(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode())


def _label(kind: str, rank: int, lane: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": rank, "tid": lane, "name": kind, "args": {"name": name}}
