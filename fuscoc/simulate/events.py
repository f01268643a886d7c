"""Runs tasks: from event to event, at max-min fair rates.

Ends that lie closer together than ``grain`` seconds are one event, at the time of the last of them.
So a grain delays, and never hurries: every time is at least what it would be without. Its default
is a small part of the time that the busiest link needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fuscoc.simulate.fair import fair_rates
from fuscoc.simulate.tasks import Tasks

Float64Array = NDArray[np.float64]
Int64Array = NDArray[np.int64]

GRAINS = 1500
"""Events that the busiest link's time is divided into at least."""

Progress = Callable[[float], None]
"""Told the part of all tasks that has ended."""


@dataclass(frozen=True, eq=False)
class Timeline:
    """Seconds, float64 [num_tasks]: when tasks could begin, when they moved their first byte, and
    when they ended."""

    ready: Float64Array
    begin: Float64Array
    end: Float64Array

    @property
    def seconds(self) -> float:
        return float(self.end.max(initial=0.0))


class CycleError(RuntimeError):
    """Tasks wait for each other: a mistake of whoever built them."""


def busiest(tasks: Tasks, capacity: Float64Array) -> Float64Array:
    """Seconds that every link needs for all of its bytes: float64 [L]."""
    moved = np.bincount(tasks.links.items, tasks.bytes, len(capacity))
    return np.asarray(moved / capacity)


class Samples:
    """Bytes on every link over time, in at most ``num`` samples of equal length, which doubles
    whenever the time has outgrown them."""

    def __init__(self, num_links: int, length: float, num: int = 256) -> None:
        self.length = length
        self.bytes = np.zeros((num, num_links))

    def add(self, begin: float, end: float, moved: Float64Array) -> None:
        """Bytes that pass evenly from ``begin`` to ``end``: float64 [L]."""
        while end > self.length * len(self.bytes):
            pairs = self.bytes.reshape(len(self.bytes) // 2, 2, -1).sum(axis=1)
            self.bytes = np.concatenate([pairs, np.zeros_like(pairs)])
            self.length *= 2
        first, last = int(begin / self.length), min(int(end / self.length), len(self.bytes) - 1)
        edges = np.clip(np.arange(first, last + 2) * self.length, begin, end)
        self.bytes[first : last + 1] += (np.diff(edges) / (end - begin))[:, None] * moved


@dataclass
class _State:
    """``left``: bytes of every one that is ``moving``, on the link that it has most for."""

    now: float = 0.0
    moving: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    left: Float64Array = field(default_factory=lambda: np.zeros(0))
    waiting: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))


def run(
    tasks: Tasks,
    capacity: Float64Array,
    grain: float | None = None,
    samples: Samples | None = None,
    progress: Progress | None = None,
) -> Timeline:
    """When every task begins and ends. ``capacity``: bytes a second of every link.

    Raises:
        CycleError: tasks never begin.
    """
    if grain is None:
        grain = float(busiest(tasks, capacity).max(initial=0.0)) / GRAINS
    num = len(tasks)
    ready, begin, end = np.full(num, np.nan), np.full(num, np.nan), np.full(num, np.nan)
    before = tasks.num_before.copy()
    entries = np.diff(tasks.links.start)
    state = _State()
    size = np.zeros(num)  # bytes on the link that a task has most for
    some = entries > 0
    size[some] = np.maximum.reduceat(tasks.bytes, tasks.links.start[:-1][some])
    num_done = 0

    def start(found: Int64Array) -> None:
        """Tasks whose turn it is; those that take no time are over, and then what follows."""
        nonlocal num_done
        while len(found):
            ready[found] = state.now
            late = tasks.latency[found] > 0
            state.waiting = np.concatenate([state.waiting, found[late]])
            found = found[~late]
            found = move(found)
            found = finish(found)

    def move(found: Int64Array) -> Int64Array:
        """Begin to move bytes; returns the tasks that have none."""
        begin[found] = state.now
        loaded = entries[found] > 0
        state.moving = np.concatenate([state.moving, found[loaded]])
        state.left = np.concatenate([state.left, size[found[loaded]]])
        return found[~loaded]

    def finish(found: Int64Array) -> Int64Array:
        """End tasks; returns those that had waited for them alone."""
        nonlocal num_done
        if not len(found):
            return found
        end[found] = state.now
        num_done += len(found)
        places, _ = tasks.followers.places(found)
        followers = tasks.followers.items[places]
        np.subtract.at(before, followers, 1)
        return np.unique(followers[before[followers] == 0])

    start(np.flatnonzero(before == 0))
    while num_done < num:
        due = ready[state.waiting] + tasks.latency[state.waiting]
        soonest = float(due.min(initial=np.inf))
        if len(state.moving):
            places, lengths = tasks.links.places(state.moving)
            links = tasks.links.items[places]
            load = tasks.bytes[places] / np.repeat(size[state.moving], lengths)
            rates = fair_rates(np.cumsum(lengths) - lengths, links, load, capacity)
            ends = state.left / rates
            soonest = min(soonest, state.now + float(ends.min()))
        if not np.isfinite(soonest):
            raise CycleError(f"{num - num_done} tasks wait for each other")
        # The last of the ends within a grain, and not beyond the next end of a latency.
        until = soonest
        if len(state.moving):
            ends = ends + state.now
            near = ends[ends <= soonest + grain]
            until = max(until, float(near.max(initial=soonest)))
        late = due[due <= soonest + grain]
        until = max(until, float(late.max(initial=soonest)))
        if samples is not None and len(state.moving) and until > state.now:
            moved = np.minimum(rates * (until - state.now), state.left)
            on_links = np.bincount(links, load * np.repeat(moved, lengths), len(capacity))
            samples.add(state.now, until, np.asarray(on_links, np.float64))
        done = np.zeros(0, np.int64)
        if len(state.moving):
            state.left = state.left - rates * (until - state.now)
            over = ends <= until * (1 + 1e-12)
            done = state.moving[over]
            state.moving, state.left = state.moving[~over], state.left[~over]
        state.now = until
        ripe = due <= until * (1 + 1e-12)
        starting = state.waiting[ripe]
        state.waiting = state.waiting[~ripe]
        empty = move(starting)
        start(finish(np.concatenate([done, empty])))
        if progress is not None:
            progress(num_done / num)
    return Timeline(ready, begin, end)
