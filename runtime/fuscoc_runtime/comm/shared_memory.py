"""Windows in POSIX shared memory: a node's ranks store into each other's pages, without a GPU."""

from __future__ import annotations

import mmap
import os
import secrets
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist

from fuscoc_runtime.comm.requests import Window
from fuscoc_runtime.errors import NetworkError

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "fuscoc-"


def allocate_shared(nbytes: int, node_group: dist.ProcessGroup) -> Window:
    """A zeroed window of ``nbytes`` for every rank of ``node_group``; collective inside it.

    One file holds the parts of all ranks. It has a random name, is created exclusively, and is
    unlinked as soon as every rank has mapped it: from then on the pages live exactly as long as
    the mappings, so nothing stays behind, however the processes end.

    Raises:
        NetworkError: shared memory is too small or missing, on any rank of the node.
    """
    local_rank, num_peers = dist.get_rank(node_group), dist.get_world_size(node_group)
    part_bytes = -(-max(nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    name, problem = "", ""
    if local_rank == 0:
        try:
            name = _create(part_bytes * num_peers)
        except OSError as error:
            problem = f"{SHARED_MEMORY}: {error.strerror}"
    announced: list[str] = [name, problem]
    dist.broadcast_object_list(announced, group=node_group, group_src=0)
    name, problem = announced
    mapping = None
    try:
        if not problem:
            mapping = _map(name, part_bytes * num_peers)
    except OSError as error:
        problem = f"{SHARED_MEMORY / name}: {error.strerror}"
    problems = _gather(problem, node_group)
    if local_rank == 0 and name:
        (SHARED_MEMORY / name).unlink(missing_ok=True)
    for peer, text in enumerate(problems):
        if text:
            rank = dist.get_global_rank(node_group, peer)
            raise NetworkError(rank, f"mapping {part_bytes * num_peers} bytes for its node", text)
    # frombuffer keeps the mapping alive for as long as any view of it lives.
    parts = torch.frombuffer(cast(mmap.mmap, mapping), dtype=torch.uint8).view(num_peers, -1)
    bases = [part.data_ptr() for part in parts]
    return Window(parts[local_rank][:nbytes], torch.tensor(bases, dtype=torch.int64))


def unlink_leftovers(pid: int) -> None:
    """Remove what a process left that was killed between creating a window and unlinking it."""
    for path in SHARED_MEMORY.glob(f"{PREFIX}{pid}-*"):
        path.unlink(missing_ok=True)


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


def _map(name: str, nbytes: int) -> mmap.mmap:
    fd = os.open(SHARED_MEMORY / name, os.O_RDWR)
    try:
        return mmap.mmap(fd, nbytes)
    finally:
        os.close(fd)


def _gather(text: str, group: dist.ProcessGroup) -> list[str]:
    gathered: list[str] = [""] * dist.get_world_size(group)
    dist.all_gather_object(gathered, text, group=group)
    return gathered
