"""Windows in POSIX shared memory: a node's ranks store into each other's pages, without a GPU."""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
from torch._C._distributed_c10d import PrefixStore, Store

from fuscoc_runtime.comm.requests import Window
from fuscoc_runtime.errors import NetworkError

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "fuscoc-"

T = TypeVar("T")


class SharedAllocator:
    """Allocates a node's windows; every call is collective inside the node.

    One file holds the parts of all ranks. It has a random name, is created exclusively, and is
    unlinked as soon as every rank has mapped it: from then on the pages live exactly as long as
    the mappings, so nothing stays behind, however the processes end.

    Args:
        store: of this node's ranks and this purpose alone. They meet here rather than in a process
            group, which would have to be created by all ranks of the job.
        ranks: the node's ranks, for messages.
        timeout: seconds that a rank may be late.
    """

    def __init__(self, store: Store, local_rank: int, ranks: range, timeout: float) -> None:
        self._store = store
        self._local_rank = local_rank
        self._ranks = ranks
        self._timeout = timedelta(seconds=timeout)
        self._num_allocated = 0

    def __call__(self, nbytes: int) -> Window:
        """A zeroed window of ``nbytes`` on every rank of the node.

        Raises:
            NetworkError: shared memory is too small or missing, on any rank of the node.
        """
        meeting = PrefixStore(f"window/{self._num_allocated}", self._store)
        self._num_allocated += 1
        num_peers = len(self._ranks)
        part_bytes = -(-max(nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        total_bytes = part_bytes * num_peers
        name = ""
        try:
            if self._local_rank == 0:
                name, problem = _attempt(lambda: _create(total_bytes), "")
                self._tell(meeting, "name", name, problem)
            name = self._hear(meeting, "name", total_bytes)
            mapping, problem = _attempt(lambda: _map(name, total_bytes), None)
            self._tell(meeting, f"mapped/{self._local_rank}", "", problem)
            for peer in range(num_peers):
                self._hear(meeting, f"mapped/{peer}", total_bytes, peer)
        finally:
            if self._local_rank == 0 and name:
                (SHARED_MEMORY / name).unlink(missing_ok=True)
        assert mapping is not None
        # frombuffer keeps the mapping alive for as long as any view of it lives.
        parts = torch.frombuffer(mapping, dtype=torch.uint8).view(num_peers, -1)
        bases = [part.data_ptr() for part in parts]
        return Window(parts[self._local_rank][:nbytes], torch.tensor(bases, dtype=torch.int64))

    def _tell(self, meeting: Store, key: str, text: str, problem: str) -> None:
        meeting.set(key, f"{text}\n{problem}")

    def _hear(self, meeting: Store, key: str, total_bytes: int, peer: int = 0) -> str:
        meeting.wait([key], self._timeout)
        text, problem = meeting.get(key).decode().split("\n", 1)
        if problem:
            operation = f"mapping {total_bytes} bytes of {SHARED_MEMORY}"
            raise NetworkError(self._ranks[peer], operation, problem)
        return text


def unlink_leftovers(pid: int) -> None:
    """Remove what a process left that was killed between creating a window and unlinking it."""
    for path in SHARED_MEMORY.glob(f"{PREFIX}{pid}-*"):
        path.unlink(missing_ok=True)


def _attempt(action: Callable[[], T], otherwise: T) -> tuple[T, str]:
    """(result, "") or (``otherwise``, what the system says is wrong)."""
    try:
        return action(), ""
    except OSError as error:
        return otherwise, error.strerror or str(error)


def _create(nbytes: int) -> str:
    name = f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
    fd = os.open(SHARED_MEMORY / name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        # Reserves the pages now: a full /dev/shm would otherwise be a SIGBUS at some later store.
        os.posix_fallocate(fd, 0, nbytes)
    except OSError:
        (SHARED_MEMORY / name).unlink()
        raise
    finally:
        os.close(fd)
    return name


def _map(name: str, nbytes: int) -> mmap.mmap | None:
    fd = os.open(SHARED_MEMORY / name, os.O_RDWR)
    try:
        return mmap.mmap(fd, nbytes)
    finally:
        os.close(fd)
