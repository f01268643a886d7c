"""What planning reports to the host of calls whose sizes are exact."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch

from fuscoc_runtime.kernels.trace import Tracer
from fuscoc_runtime.room import room_for

# Verdicts; see kernels/device/verdicts.py.
GOES, GROWS, REFUSES = range(3)
BUSY_SECONDS = 20e-3
PAUSE_SECONDS = 100e-6
LOOK_SECONDS = 1.0
"""How often a wait asks whether the GPU is still at work at all."""


@dataclass(frozen=True)
class Planned:
    """What all ranks know alike of one call, before its rows move.

    Attributes:
        slots: of every rank.
        sources: source segments of every rank; -1 if it refuses the call.
        num_rows: rows of this rank.
        is_aborted: whether nothing here is true, since waits were ended.
        verdict: what the nodes have found, where some of it only one of them can.
    """

    slots: tuple[int, ...]
    sources: tuple[int, ...]
    num_rows: int
    is_aborted: bool
    verdict: int = GOES


@dataclass(frozen=True)
class Other:
    """A call along a known routing, of dispatch ``number``, of which the rank at place ``peer`` of
    the node has said that its routing is that of dispatch ``theirs``; -1 if it refused the call."""

    peer: int
    number: int
    theirs: int


class Report:
    """Words in the host's memory, which kernels write.

    Every word of a call has its epoch in the upper half, so they may come in any order. There are
    the slots of every rank that there is room for, its sources, three words, and what others have
    said; see kernels/device/words.py.
    """

    def __init__(
        self,
        device: torch.device,
        num_ranks: int,
        is_judged: bool = False,
        tracer: Tracer | None = None,
    ) -> None:
        """``is_judged``: whether there are verdicts. A ``tracer`` is told of waits."""
        self._waiting: Callable[[], AbstractContextManager[None]]
        self._waiting = nullcontext if tracer is None else partial(tracer.host, "wait for counts")
        self._device, self._num_ranks, self._is_judged = device, num_ranks, is_judged
        self._room, on_gpu = room_for(num_ranks), device.type == "cuda"
        self._others = 2 * self._room + 3
        self._awaited = self._others - (not is_judged)
        self.words = torch.zeros(self._others + self._room, dtype=torch.int64, pin_memory=on_gpu)
        self._seen = self.words.numpy()

    def wait(self, epoch: int) -> Planned:
        """What planning says of the call of that epoch, when it has come: the one wait of a host
        for its device. Kernels end in any case, as the watching thread sees to it."""
        with self._waiting():
            self._wait(epoch)
        low = [signed(word) for word in self._seen[: self._others].tolist()]
        *_, num_rows, is_aborted, verdict = low
        return Planned(
            tuple(low[: self._num_ranks]),
            tuple(low[self._room : self._room + self._num_ranks]),
            num_rows,
            is_aborted != 0 or (self._is_judged and verdict < 0),
            verdict if self._is_judged else GOES,
        )

    def _wait(self, epoch: int) -> None:
        started = time.monotonic()
        look = LOOK_SECONDS
        while not self._has(epoch):
            waited = time.monotonic() - started
            if waited > look:
                look += LOOK_SECONDS
                torch.cuda.current_stream(self._device).query()  # raises if a kernel has failed
            if waited > BUSY_SECONDS:
                time.sleep(PAUSE_SECONDS)
            else:
                os.sched_yield()

    def take_others(self) -> list[Other]:
        """What peers have said of calls meanwhile, each once."""
        others = []
        told = self._seen[self._others :]
        for peer in told.nonzero()[0].tolist():
            word = int(told[peer])
            told[peer] = 0
            others.append(Other(peer, word >> 32, signed(word)))
        return others

    def _has(self, epoch: int) -> bool:
        return bool((self._seen[: self._awaited] >> 32 == signed(epoch)).all())


def signed(word: int) -> int:
    """The lower half of a word, as an int32."""
    low = word & 0xFFFFFFFF
    return low - (low >> 31 << 32)
