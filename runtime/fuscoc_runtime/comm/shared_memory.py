"""Windows in shared memory: a node's ranks store into each other's pages, without a GPU."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
from torch._C._distributed_c10d import PrefixStore, Store

from fuscoc_runtime.comm.liveness import Liveness
from fuscoc_runtime.comm.requests import Window
from fuscoc_runtime.errors import FuscoRuntimeError, NetworkError

SHARED_MEMORY = Path("/dev/shm")

T = TypeVar("T")


class SharedAllocator:
    """Allocates a node's windows; every call is collective inside the node.

    One file holds the parts of all ranks. It never has a name: the others open it where the node's
    first rank has it open. So its pages live exactly as long as somebody has them mapped, and
    nothing stays behind, whenever and however the processes end.

    Args:
        store: of this node's ranks and this purpose alone. They meet here rather than in a process
            group, which would have to be created by all ranks of the job.
        ranks: the node's ranks, for messages.
        timeout: seconds that a rank may be late.
        liveness: knows who is to blame for one that does not come.
    """

    def __init__(
        self, store: Store, local_rank: int, ranks: range, timeout: float, liveness: Liveness
    ) -> None:
        self._store = store
        self._local_rank = local_rank
        self._ranks = ranks
        self._timeout = timeout
        self._liveness = liveness
        self._num_allocated = 0

    def __call__(self, nbytes: int) -> Window:
        """A zeroed window of ``nbytes`` on every rank of the node.

        Raises:
            HopTimeoutError: a rank has ended, or does not come in time.
            NetworkError: shared memory is too small or missing, on any rank of the node.
        """
        meeting = PrefixStore(f"window/{self._num_allocated}", self._store)
        self._num_allocated += 1
        num_peers = len(self._ranks)
        part_bytes = -(-max(nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        total_bytes = part_bytes * num_peers
        fd = None
        try:
            if self._local_rank == 0:
                fd, problem = _attempt(lambda: _create(total_bytes))
                self._tell(meeting, "file", f"/proc/{os.getpid()}/fd/{fd}", problem)
            file = self._hear(meeting, "file", total_bytes)
            mapping, problem = _attempt(lambda: self._map(file, total_bytes))
            self._tell(meeting, f"mapped/{self._local_rank}", "", problem)
            for peer in range(num_peers):
                self._hear(meeting, f"mapped/{peer}", total_bytes, peer)
        finally:
            if fd is not None:
                os.close(fd)
        assert mapping is not None
        # frombuffer keeps the mapping alive for as long as any view of it lives.
        parts = torch.frombuffer(mapping, dtype=torch.uint8).view(num_peers, -1)
        bases = [part.data_ptr() for part in parts]
        return Window(parts[self._local_rank][:nbytes], torch.tensor(bases, dtype=torch.int64))

    def _tell(self, meeting: Store, key: str, text: str, problem: str) -> None:
        meeting.set(key, f"{text}\n{problem}")

    def _hear(self, meeting: Store, key: str, total_bytes: int, peer: int = 0) -> str:
        try:
            meeting.wait([key], timedelta(seconds=self._timeout))
        except RuntimeError as error:
            raise self._missing(peer, self._timeout, error) from error
        text, problem = meeting.get(key).decode().split("\n", 1)
        if problem:
            operation = f"mapping {total_bytes} bytes of {SHARED_MEMORY}"
            raise NetworkError(self._ranks[peer], operation, problem)
        return text

    def _map(self, file: str, nbytes: int) -> mmap.mmap:
        try:
            fd = os.open(file, os.O_RDWR)
        except FileNotFoundError as error:
            raise self._missing(0, 0.0, error) from error
        try:
            return mmap.mmap(fd, nbytes)
        finally:
            os.close(fd)

    def _missing(self, peer: int, seconds: float, problem: Exception) -> FuscoRuntimeError:
        return self._liveness.explain("window allocation", seconds, problem, self._ranks[peer])


def _attempt(action: Callable[[], T]) -> tuple[T | None, str]:
    """(result, ""), or (``None``, what the system says is wrong)."""
    try:
        return action(), ""
    except OSError as error:
        return None, error.strerror or str(error)


def _create(nbytes: int) -> int:
    fd = os.open(SHARED_MEMORY, os.O_TMPFILE | os.O_RDWR, 0o600)
    try:
        # Reserves the pages now: a full /dev/shm would otherwise be a SIGBUS at some later store.
        os.posix_fallocate(fd, 0, nbytes)
    except OSError:
        os.close(fd)
        raise
    return fd
