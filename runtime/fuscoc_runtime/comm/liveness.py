"""After a failed wait: which rank is to blame.

The communication library only says that a connection broke, and ranks that give up break further
ones. So a failing rank first announces itself in the job's store; the culprit is among those that
announce nothing, and is known for certain if its process on this host has ended.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch._C._distributed_c10d import Store

from fuscoc_runtime.errors import FuscoRuntimeError, HopTimeoutError, NetworkError

GRACE_SECONDS = 2.0
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class ProcessId:
    """A process, told apart from later ones with the same number by when it started."""

    hostname: str
    pid: int
    start_time: str


class Liveness:
    """Finds the rank that others wait for in vain.

    Args:
        store: the job's key-value store.
        rank: this rank.
        processes: the process of every rank, this one included.
    """

    def __init__(self, store: Store, rank: int, processes: Sequence[ProcessId]) -> None:
        self._store = store
        self._rank = rank
        self._processes = processes
        # A process that cannot be seen now (another host or container) is not dead later.
        self._visible = [peer for peer in range(len(processes)) if not self.has_ended(peer)]
        self._gone: list[int] = []

    def has_ended(self, peer: int) -> bool:
        """True if this host does not run (any longer) the process of ``peer``."""
        process = self._processes[peer]
        return process.hostname != socket.gethostname() or (
            _start_time(process.pid) != process.start_time
        )

    def explain(
        self, hop: str, seconds: float, problem: object, suspect: int | None = None
    ) -> FuscoRuntimeError:
        """What it means that a wait failed after so long: who is missing, or, if ``find_missing``
        knows nobody, the ``problem``."""
        culprit = self.find_missing(suspect)
        if culprit is None:
            return NetworkError(self._rank, f"the {hop} hop", str(problem))
        return HopTimeoutError(self._rank, hop, culprit, round(seconds, 1))

    def find_missing(self, suspect: int | None = None) -> int | None:
        """The rank that has ended; else ``suspect``, for which this rank waited its full time;
        else, without one, the first rank that does not soon say that it waits too.

        ``None`` if every rank says so.
        """
        silent = [peer for peer in range(len(self._processes)) if peer != self._rank]
        try:
            self._store.set(self._key(self._rank), "waiting")
        except RuntimeError:
            # The store's host has ended too: only this host's processes can still be told.
            silent = []

        def found() -> bool:
            nonlocal silent
            silent = [peer for peer in silent if not self._has_announced(peer)]
            return bool(self._ended()) or not silent

        _poll(found, 0 if suspect is not None else GRACE_SECONDS)
        suspects = silent if suspect is None else [suspect]
        return next(iter([*self._ended(), *suspects]), None)

    def someone_ended(self) -> bool:
        """Whether a process of this host has ended, for whatever reason."""
        self._gone += [
            peer
            for peer in self._visible
            if peer != self._rank and peer not in self._gone and self.has_ended(peer)
        ]
        return bool(self._gone)

    def _ended(self) -> list[int]:
        """Visible processes that ended without announcing that they failed after another, in the
        order in which this rank saw it: once the store's host has ended nothing can be told of the
        later ones."""
        self.someone_ended()
        return [peer for peer in self._gone if not self._has_announced(peer)]

    def _has_announced(self, peer: int) -> bool:
        try:
            return self._store.check([self._key(peer)])
        except RuntimeError:
            return False  # the store's host has ended

    def _key(self, peer: int) -> str:
        return f"waiting/{peer}"


def this_process() -> ProcessId:
    """The identity of the calling process."""
    return ProcessId(socket.gethostname(), os.getpid(), _start_time(os.getpid()) or "")


def _start_time(pid: int) -> str | None:
    """When the process started, in clock ticks since boot; ``None`` if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command name, which may hold anything, ends at the last parenthesis.
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else fields[18]


def _poll(ready: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not ready() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
