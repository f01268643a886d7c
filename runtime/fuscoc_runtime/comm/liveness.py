"""Which rank is to blame for a wait that is in vain.

Every rank looks at two other processes of its host: at the next that still runs, in a ring, and at
one more by turns, because who should look may itself be stopped. Who sees one end writes so on a
board in the job's store. Ranks that wait read the board, which is one key: all ranks together look
twice as many times as they are, and those of other hosts learn it, too. Whether a process runs its
operating system says: a rank that is late, however late, is not taken for dead.

A host that ends with all its ranks has nobody left to say so. Ranks that wait for it fail when the
communication library does, or in time; the library only says that a connection broke, and ranks
that give up break further ones. So a failing rank first announces itself in the store, and who then
is silent is to blame; first of all on a host where nobody speaks, as one that speaks would have
seen another end. One rank alone goes through all others for that, and tells what it found.

The store may end with the rank that has it. So a rank that has failed does not end before all have
had time to announce themselves, too.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from itertools import cycle
from pathlib import Path
from weakref import WeakSet

from torch._C._distributed_c10d import Store

from fuscoc_runtime.comm.watch import unwatch, unwatch_all, watch
from fuscoc_runtime.errors import FuscoRuntimeError, HopTimeoutError, NetworkError

LOOK_SECONDS = 0.25
"""How often a rank looks at others, and a waiting one at the board."""
GRACE_SECONDS = 2.0
"""How long a rank that has failed waits for what the others say."""
POLL_SECONDS = 0.1
SEARCH_SECONDS = 5 * GRACE_SECONDS
"""How long the store may take for all of that: a network that is gone answers nothing."""

ENDED = "it has ended, or given up: was it killed, did it fail, or did it make fewer calls?"
"""What is known of a rank on the board."""
SAME = "do the ranks make the same calls?"

BOARD, NUM_WAITING, SEARCHES, CULPRIT = "ended", "num_waiting", "searches", "culprit"
NOBODY = "nobody"


@dataclass(frozen=True)
class ProcessId:
    """A process, told apart from later ones with the same number by when it started.

    Attributes:
        table: the host, its boot and the namespace in which ``pid`` is its number.
    """

    table: str
    pid: int
    start_time: str


class Liveness:
    """Finds the rank that others wait for in vain. To be ``close``-d, or dropped.

    Args:
        store: the job's key-value store.
        rank: this rank.
        processes: the process of every rank, this one included.
    """

    def __init__(self, store: Store, rank: int, processes: Sequence[ProcessId]) -> None:
        self._store = store
        self._rank = rank
        self._processes = processes
        table, others = processes[rank].table, (*range(rank + 1, len(processes)), *range(rank))
        # A process that cannot be seen now, because of a sandbox perhaps, is not dead later.
        self._neighbours = [
            peer for peer in others if processes[peer].table == table and not self._has_ended(peer)
        ]
        self._gone: list[int] = []
        self._waits: dict[int, str] = {}  # hops of ranks that have failed, too, as far as asked for
        self._turns = cycle(tuple(self._neighbours))
        self._looked = self._read = 0.0
        self._reader: threading.Thread | None = None
        self._has_announced_itself = False
        if self._neighbours:
            watch(self)

    def close(self) -> None:
        """Look at nobody any more: what ends from now on may."""
        unwatch(self)

    def look(self) -> None:
        """By the watching thread: at one by turns, and at the next that runs."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        peer = next(self._turns, self._rank)
        if peer in self._neighbours:
            self._look_at(peer)
        while self._neighbours and self._look_at(self._neighbours[0]):
            pass

    def someone_ended(self) -> bool:
        """Whether a rank's process is known to have ended, for whatever reason. Waits for nothing,
        so it may be known a moment after the first question."""
        now = time.monotonic()
        is_reading = self._reader is not None and self._reader.is_alive()
        if not self._gone and not is_reading and now - self._read >= LOOK_SECONDS:
            self._read = now
            self._reader = _beside(lambda: self._read_board(self._board))
        return bool(self._gone)

    def give_up(self) -> None:
        """This rank comes to no call any more: others are told as if it had ended, and do not wait
        for it until their time is up."""
        _beside(partial(self._post, self._rank))

    def explain(
        self, hop: str, seconds: float, problem: object, suspect: int | None = None
    ) -> FuscoRuntimeError:
        """What it means that a wait failed after so long: who is missing, or, if ``find_missing``
        knows nobody, the ``problem``."""
        culprit = self.find_missing(suspect, hop)
        if culprit is None:
            return NetworkError(self._rank, f"the {hop} hop", str(problem))
        return self.lost(hop, seconds, culprit)

    def lost(self, hop: str, seconds: float, peer: int) -> HopTimeoutError:
        """What is known of a rank for which this one has waited so long."""
        known: tuple[str, ...] = (ENDED,) if peer in self._gone else ()
        if not known and peer in self._waits:
            known = (f"it waits, too, in the {self._waits[peer]} hop: {SAME}",)
        return HopTimeoutError(self._rank, hop, peer, round(seconds, 1), *known)

    def find_missing(self, suspect: int | None = None, hop: str = "") -> int | None:
        """The rank that has ended; else ``suspect``, for which this rank waited; else, without one,
        a rank that does not soon say that it waits too. The others can hear from now on in which
        ``hop`` this rank waits.

        ``None`` if every rank says so.
        """
        for peer in self._neighbours:
            self._look_at(peer)
        found: list[int | None] = []

        def search() -> None:
            self._announce(hop)
            found.append(culprit := self._search(suspect))
            if culprit is not None and self._store.check([_waiting(culprit)]):
                self._waits[culprit] = self._store.get(_waiting(culprit)).decode()

        _beside(search).join(SEARCH_SECONDS)
        # The store's host has ended or is out of reach: this host's processes can still be told, of
        # which one that has it may take a moment to end.
        deadline = time.monotonic() + GRACE_SECONDS
        while not (found or self._gone) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            for peer in self._neighbours:
                self._look_at(peer)
        return found[0] if found else next(iter(self._gone), suspect)

    def find_ended(self) -> int | None:
        """The rank that is known to have ended, and did not fail after another; if there is none,
        nobody is to blame. Waits for the store alone."""
        for peer in self._neighbours:
            self._look_at(peer)
        found: list[int | None] = []
        _beside(lambda: found.append(self._ended_unannounced())).join(GRACE_SECONDS)
        return found[0] if found else next(iter(self._gone), None)

    def _search(self, suspect: int | None) -> int | None:
        # A broken connection is known before the other host has looked who ended there.
        patience = GRACE_SECONDS if suspect is None else 2 * LOOK_SECONDS
        deadline = time.monotonic() + patience
        while (found := self._ended_unannounced()) is None and time.monotonic() < deadline:
            if self._store.add(NUM_WAITING, 0) == len(self._processes):
                return suspect
            time.sleep(POLL_SECONDS)
        if found is not None or suspect is not None:
            return found if found is not None else suspect
        return self._silent()

    def _announce(self, hop: str) -> None:
        if not self._has_announced_itself:
            self._has_announced_itself = True
            self._store.set(_waiting(self._rank), hop)
            self._store.add(NUM_WAITING, 1)
            _beside(self._stay)

    def _stay(self) -> None:
        """The end of the process waits for this: the store may end with it, and others that fail
        for the same reason could not tell any more who ended before them."""
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline and self._num_heard() < len(self._processes):
            time.sleep(POLL_SECONDS)

    def _num_heard(self) -> int:
        """Ranks that have failed, or cannot any more."""
        silent = [peer for peer in self._gone if not self._board.check([_waiting(peer)])]
        return self._board.add(NUM_WAITING, 0) + len(silent)

    def _ended_unannounced(self) -> int | None:
        """The first process that is known to have ended and did not fail after another."""
        self._read_board(self._store)
        unannounced = (peer for peer in self._gone if not self._store.check([_waiting(peer)]))
        return next(unannounced, None)

    def _silent(self) -> int | None:
        """Whom the first rank that searches finds."""
        if self._store.add(SEARCHES, 1) > 1:
            with suppress(RuntimeError):  # who searches has ended, too: this rank does it again
                self._store.wait([CULPRIT], timedelta(seconds=GRACE_SECONDS))
                return self._told(self._store.get(CULPRIT).decode())
        ranks = range(len(self._processes))
        silent = [peer for peer in ranks if not self._store.check([_waiting(peer)])]
        heard = {self._processes[peer].table for peer in set(ranks).difference(silent)}
        silent.sort(key=lambda peer: self._processes[peer].table in heard)
        culprit = str(silent[0]) if silent else NOBODY
        self._store.set(CULPRIT, culprit)
        return self._told(culprit)

    def _told(self, culprit: str) -> int | None:
        """Whom the search found, if it is not this rank, which was late."""
        return None if culprit in (NOBODY, str(self._rank)) else int(culprit)

    def _has_ended(self, peer: int) -> bool:
        process = self._processes[peer]
        return _start_time(process.pid) != process.start_time

    def _look_at(self, peer: int) -> bool:
        """Whether it has ended. If so all are told, and nobody looks again."""
        if not self._has_ended(peer):
            return False
        self._neighbours = [each for each in self._neighbours if each != peer]
        self._note([peer])
        _beside(partial(self._post, peer))
        return True

    def _note(self, ended: Sequence[int]) -> None:
        known = {self._rank, *self._gone}
        self._gone += [peer for peer in ended if peer not in known]

    @cached_property
    def _board(self) -> Store:
        """The store by a connection of its own: another thread may wait in the other for long."""
        board: Store = self._store.clone()  # type: ignore[attr-defined]
        return board

    def _post(self, peer: int) -> None:
        """Add a rank to the board, to which others may add at the same time."""
        known = ""
        while str(peer) not in known.split():
            known = self._board.compare_set(BOARD, known, f"{known}{peer} ").decode()

    def _read_board(self, store: Store) -> None:
        if store.check([BOARD]):
            self._note([int(peer) for peer in store.get(BOARD).decode().split()])


def this_process() -> ProcessId:
    """The identity of the calling process."""
    pid = os.getpid()
    return ProcessId(_process_table(), pid, _start_time(pid) or "")


def _process_table() -> str:
    """Where processes have their numbers: the same for those that see each other."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return socket.gethostname()
    return f"{socket.gethostname()} {boot} {namespace}"


def _start_time(pid: int) -> str | None:
    """When the process started, in clock ticks since boot; ``None`` if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command name, which may hold anything, ends at the last parenthesis.
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else fields[18]


def _waiting(rank: int) -> str:
    return f"waiting/{rank}"


_running: WeakSet[threading.Thread] = WeakSet()


def _beside(work: Callable[[], None]) -> threading.Thread:
    """Start ``work``, which may wait for the store, in a thread that nobody has to wait for before
    the process ends."""

    def attempt() -> None:
        with suppress(RuntimeError):  # the store's host has ended
            work()

    thread = threading.Thread(target=attempt, name="fuscoc-liveness", daemon=True)
    _running.add(thread)
    thread.start()
    return thread


@atexit.register
def _end() -> None:
    """Ranks end at about the same time, and who sees another end writes so into the store: a thread
    that came back from there, from C++, while the interpreter ends would abort the process."""
    unwatch_all()
    deadline = time.monotonic() + GRACE_SECONDS
    for thread in list(_running):
        thread.join(max(0.0, deadline - time.monotonic()))
