"""What `network.py` compares: the face of a contender, and fuscoc's own.

A call returns when its work is enqueued, or, if there is no fixed capacity, when its counts are
known.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.network_cases import Batch
from fuscoc_runtime import Shuffle


def settle(batch: Batch) -> None:
    """Wait for all that this rank's device was given."""
    if batch.moe.x.is_cuda:
        torch.cuda.synchronize()


class Clock:
    """Adds up milliseconds by part, if it runs; then parts do not overlap."""

    def __init__(self) -> None:
        self.parts: dict[str, float] | None = None

    def start(self) -> None:
        self.parts = defaultdict(float)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        if self.parts is None:
            yield
            return
        torch.cuda.synchronize()
        started = time.perf_counter()
        yield
        torch.cuda.synchronize()
        self.parts[name] += (time.perf_counter() - started) * 1e3


class Contender(ABC):
    """Two calls to time, and what they made: ``rows`` and ``result``.

    Attributes:
        worked: what the experts made of the rows, for ``combine``; else it takes the rows.
        waits: whether its calls wait for the GPU.
        has_capacity: whether there may be more rows than slots.
        window_bytes, num_bytes: of this rank, that peers can address, and that it holds from call
            to call in all; None if that is not counted.
    """

    finds_layout = False
    """Whether ``plan`` is a part of its work that its calls leave out."""
    waits = has_capacity = False

    def __init__(self, name: str, batch: Batch) -> None:
        self.name, self.batch, self.clock = name, batch, Clock()
        self.rows = self.result = batch.moe.x
        self.worked: Tensor | None = None

    def plan(self) -> None:  # noqa: B027  # most have nothing to do
        """Find the layout, unless `dispatch` does."""

    @abstractmethod
    def dispatch(self) -> None: ...

    @abstractmethod
    def combine(self) -> None: ...

    def step(self) -> None:
        """Both, one behind the other."""
        self.dispatch()
        self.combine()

    @property
    def window_bytes(self) -> int | None:
        return None

    @property
    def num_bytes(self) -> int | None:
        return None

    def close(self) -> None:  # noqa: B027  # most have nothing to do
        """Give back what it holds; collective."""

    def made(self) -> list[Tensor]:
        """What its latest calls have written."""
        return [each for each in (self.rows, self.result) if each is not self.batch.moe.x]

    def take(self, worked: Tensor) -> None:
        """As what the experts made of the rows."""
        self.worked = worked

    def verify(self) -> list[str]:
        """What is wrong with a dispatch and a combine; collective."""
        self.plan()
        for each in self.made():  # nothing earlier is taken for this
            each.view(torch.uint8).fill_(0xFF)
        settle(self.batch)
        dist.barrier()
        self.dispatch()
        num_slots = self.batch.expected[2]
        rows = self.rows[:num_slots] if self.has_capacity else self.rows
        wrong = self.batch.wrong_rows(rows)
        worked = self.rows.clone()
        if not wrong:
            worked[:num_slots] = self.batch.work(rows)
        self.take(worked)
        self.combine()
        return wrong + self.batch.wrong_result(self.result)

    def breakdown(self, iterations: int) -> dict[str, float]:
        """Milliseconds of preprocessing, rearrangement and communication, one after the other."""
        self.clock.start()
        for _ in range(iterations):
            dist.barrier()
            with self.clock.part("preprocessing"):
                self.plan()
            self.dispatch()
            self.combine()
        parts, self.clock.parts = self.clock.parts or {}, None
        return {name: total / iterations for name, total in parts.items()}


class Fuscoc(Contender):
    """A compiled artifact, as a user runs it, beside the caller's stream, which waits for it. Its
    times include everything."""

    def __init__(self, name: str, batch: Batch, shuffle: Shuffle, *, is_fixed: bool) -> None:
        super().__init__(name, batch)
        self.shuffle = shuffle
        self.has_capacity, self.waits = is_fixed, not is_fixed
        self.handle: Any = None
        self._given: dict[str, Any] = {
            "topk_idx": batch.moe.topk_idx,
            "topk_weights": batch.moe.topk_weights,
        }

    @property
    def window_bytes(self) -> int:
        return self.shuffle.memory().window_bytes

    @property
    def num_bytes(self) -> int:
        return self.shuffle.memory().num_bytes

    def close(self) -> None:
        self.shuffle.close()

    def dispatch(self) -> None:
        self.rows, self.handle, done = self.shuffle.dispatch(
            self.batch.moe.x, **self._given, async_op=True
        )
        done.wait()

    def combine(self) -> None:
        rows = self.rows if self.worked is None else self.worked
        self.result, done = self.shuffle.combine(rows, self.handle, async_op=True)
        done.wait()

    def verify(self) -> list[str]:
        wrong = super().verify()
        self.shuffle.check()
        return wrong

    def breakdown(self, iterations: int) -> dict[str, float]:
        """What precedes the first row is preprocessing; the rest rearranges as it communicates."""
        parts = {"preprocessing": 0.0, "communication": 0.0}
        for _ in range(iterations):
            dist.barrier()
            torch.cuda.synchronize()
            started = time.perf_counter()
            self.dispatch()
            self.combine()
            torch.cuda.synchronize()
            total = (time.perf_counter() - started) * 1e3
            stats = self.shuffle.stats()
            assert stats is not None
            parts["preprocessing"] += stats.planning_ms / iterations
            parts["communication"] += (total - stats.planning_ms) / iterations
        return parts


class InLine(Fuscoc):
    """On the caller's stream, as a step that needs its rows at once makes the calls."""

    def dispatch(self) -> None:
        self.rows, self.handle = self.shuffle.dispatch(self.batch.moe.x, **self._given)

    def combine(self) -> None:
        rows = self.rows if self.worked is None else self.worked
        self.result = self.shuffle.combine(rows, self.handle)


class KnownRouting(Fuscoc):
    """With the handle of an earlier dispatch: its plan is for free."""

    def dispatch(self) -> None:
        if self.handle is None:
            super().dispatch()
            return
        self.rows, self.handle, done = self.shuffle.dispatch(
            self.batch.moe.x, handle=self.handle, async_op=True
        )
        done.wait()


class Captured(InLine):
    """Each call as a graph that is replayed, and both as one."""

    def __init__(self, name: str, batch: Batch, shuffle: Shuffle, *, is_fixed: bool) -> None:
        super().__init__(name, batch, shuffle, is_fixed=is_fixed)
        self._forth, self._back, self._both = (torch.cuda.CUDAGraph() for _ in range(3))
        with torch.cuda.graph(self._forth, capture_error_mode="thread_local"):
            super().dispatch()
        self.worked = torch.zeros_like(self.rows)
        with torch.cuda.graph(self._back, capture_error_mode="thread_local"):
            super().combine()
        with torch.cuda.graph(self._both, capture_error_mode="thread_local"):
            _, handle = shuffle.dispatch(batch.moe.x, **self._given)
            self._together = shuffle.combine(self.worked, handle)

    def dispatch(self) -> None:
        self._forth.replay()

    def combine(self) -> None:
        self._back.replay()

    def step(self) -> None:
        self._both.replay()

    def made(self) -> list[Tensor]:
        return [*super().made(), self._together]

    def take(self, worked: Tensor) -> None:
        assert self.worked is not None
        self.worked.copy_(worked)

    def verify(self) -> list[str]:
        wrong = super().verify()
        self.step()
        wrong += self.batch.wrong_result(self._together)
        self.shuffle.check()
        return wrong
