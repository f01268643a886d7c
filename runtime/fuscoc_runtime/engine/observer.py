"""What an engine's calls leave to be known: counts, times, log messages, and rows lent out."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.kernels.trace import Tracer
from fuscoc_runtime.plan.links import Link

_log = logging.getLogger("fuscoc.runtime")


@dataclass
class Tally:
    """Counts calls and keeps the latest ones' host times, in milliseconds."""

    link: Link | None = None
    nodes: str = ""
    handle: Any = None
    dispatch_ms: float = 0.0
    combine_ms: float = 0.0
    num_dispatches: int = 0
    num_combines: int = 0


class Observer:
    """Told of every call of one engine, whoever makes it; ``name`` is for messages.

    Attributes:
        stream: that of asynchronous calls, if there have been any on a GPU.
    """

    stream: Any = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.tally = Tally()
        self._lent: Sequence[Tensor] = ()

    def begins_dispatch(self) -> float:
        """A window is about to change: autograd must not use rows saved from it any more. Nor those
        of a dispatch that is refused, behind which they may be saved once more."""
        _outdate(self._lent)
        return time.perf_counter()

    def dispatched(self, handle: Any, started: float) -> None:
        """The end of a dispatch, on the host."""
        tally = self.tally
        tally.handle, tally.dispatch_ms = handle, (time.perf_counter() - started) * 1e3
        tally.num_dispatches += 1
        if _log.isEnabledFor(logging.DEBUG):  # otherwise nobody needs to know how many slots
            slots, ms = handle.num_slots, tally.dispatch_ms
            number = tally.num_dispatches
            _log.debug("%s: dispatch %d: %d slots, %.3f ms", self.name, number, slots, ms)

    def combined(self, started: float) -> None:
        """The end of a combine, on the host."""
        tally = self.tally
        tally.combine_ms = (time.perf_counter() - started) * 1e3
        tally.num_combines += 1
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s: combine %d: %.3f ms", self.name, tally.num_combines, tally.combine_ms)

    def lend(self, rows: Sequence[Tensor]) -> None:
        """Rows that a user is given are views of a window."""
        self._lent = rows

    def opened(self, num_bytes: int) -> None:
        _log.info("%s: opened, %.1f MiB of windows and tables", self.name, num_bytes / 2**20)

    def closed(self) -> None:
        self._lent = ()
        _log.info("%s: closed after %d dispatches", self.name, self.tally.num_dispatches)

    def failed_at_exit(self, error: Exception) -> None:
        """What nobody is left to be told otherwise."""
        _log.error("%s: %s", self.name, error)


class TracedObserver(Observer):
    """Lets calls be spans of what the host does."""

    def __init__(self, name: str, tracer: Tracer) -> None:
        super().__init__(name)
        self._tracer = tracer

    def dispatched(self, handle: Any, started: float) -> None:
        super().dispatched(handle, started)
        self._tracer.host_since("dispatch", started)
        self._tracer.settle_so_far()  # calls that repeat others begin elsewhere

    def combined(self, started: float) -> None:
        super().combined(started)
        self._tracer.host_since("combine", started)


def _outdate(lent: Sequence[Tensor]) -> None:
    for each in lent:
        if not each.is_inference():
            torch.autograd.graph.increment_version(each)
