"""A thread of the host that looks after kernels which wait for other ranks, and after these ranks.

Kernels have no clock: they wait until what they wait for comes, or until their host raises a word
that they poll. Whether a rank is dead, or has had time enough, only a host can tell, also while its
program is elsewhere: in a compiler, in a checkpoint, or in a graph that is replayed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Protocol
from weakref import WeakSet

PERIOD_SECONDS = 0.1

_log = logging.getLogger("fuscoc.runtime")


class Watched(Protocol):
    """Something whose kernels may have to be told to stop waiting, or that knows who has ended.

    It may be dropped while it is looked at, and is then freed by the watching thread, perhaps
    during a capture: it holds no memory that CUDA itself would have to free.
    """

    def look(self) -> None:
        """Called ten times a second, by the watching thread; must wait neither for a GPU nor for
        the network."""
        ...


_watched: WeakSet[Watched] = WeakSet()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def watch(each: Watched) -> None:
    """Look after ``each`` until it is dropped, or ``unwatch`` is called."""
    global _thread
    with _lock:
        _watched.add(each)
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_run, name="fuscoc-watch", daemon=True)
            _thread.start()


def unwatch(each: Watched) -> None:
    """Look after it no more; when this returns, nobody does."""
    with _lock:
        _watched.discard(each)


def unwatch_all() -> None:
    """Look after nothing any more: the process ends."""
    with _lock:
        _watched.clear()


def _begin_anew() -> None:
    """In a forked process, which has no such thread: what that looks after is the parent's, and it
    may have had the lock."""
    global _watched, _lock, _thread
    _watched, _lock, _thread = WeakSet(), threading.Lock(), None


os.register_at_fork(after_in_child=_begin_anew)


def _run() -> None:
    """Ends when nothing is left to look after: no thread outlives the last shuffle for long."""
    global _thread
    while True:
        time.sleep(PERIOD_SECONDS)
        with _lock:
            if not _watched:
                _thread = None
                return
            _look()


def _look() -> None:
    """In a function of its own: what it looks at must not live until the next time."""
    for each in list(_watched):
        try:
            each.look()
        except Exception:  # one broken shuffle must not leave the others unwatched
            _log.exception("looking after %r failed", each)
            _watched.discard(each)
