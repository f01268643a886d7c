"""Windows in GPU memory that the other GPUs of the node can address over NVLink.

The only file that knows ``torch.distributed._symmetric_memory``, whose interface is still alpha.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
from torch._C._distributed_c10d import PrefixStore, Store, _SymmetricMemory
from torch.distributed.distributed_c10d import _get_process_group_store

from fuscoc_runtime.comm.gather import POLL_SECONDS
from fuscoc_runtime.comm.group import Membership, patience
from fuscoc_runtime.comm.liveness import GRACE_SECONDS
from fuscoc_runtime.comm.requests import Window
from fuscoc_runtime.comm.results import LEAST_PART, NUM_RESULTS, PART_STEP, PooledResults
from fuscoc_runtime.errors import NetworkError

_log = logging.getLogger("fuscoc.runtime")


@dataclass(frozen=True, eq=False)
class MappedWindow(Window):
    """A window and the handle that keeps the peers' memory mapped into this process."""

    handle: Any


def allocate_symmetric(
    nbytes: int,
    node_group: dist.ProcessGroup,
    device: torch.device,
    members: Membership | None = None,
) -> Window:
    """A zeroed window of ``nbytes`` for every rank of ``node_group``; collective inside it. While
    ``members`` work, of which the group is a node, others are waited for no longer than they may
    take, nor when one of them has ended.

    Raises:
        HopTimeoutError: one of the members has ended, or does not come in time.
        NetworkError: a GPU of the node has too little memory, and then all ranks raise it; or the
            GPUs cannot map each other's memory.
    """
    problem, started = "", time.monotonic()
    operation = f"mapping {nbytes} bytes of {device} for its node"
    try:
        # Not symmetric_memory.empty: its memory pool lets several tensors share one mapping.
        local = _SymmetricMemory.empty_strided_p2p((max(nbytes, 1),), (1,), torch.uint8, device)
        # Now, when the others hear of it if there is no memory left for this.
        bases = torch.empty(dist.get_world_size(node_group), dtype=torch.int64, device=device)
        # Zeros must have landed before a peer can address the window: rendezvous is a barrier.
        local.zero_()
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        problem = str(error)
    try:
        # At the rendezvous, ranks would wait in vain for one that has no memory.
        problems = _tell(problem, node_group, device, members)
        for peer, each in enumerate(problems):
            if each:
                raise NetworkError(dist.get_global_rank(node_group, peer), operation, each)
        found, handle = _mapped(local, node_group)
    except NetworkError:
        raise
    except (RuntimeError, TimeoutError) as error:
        late = isinstance(error, TimeoutError)
        # The store has perhaps ended with the one that has, or with a rank that had waited for it.
        if members is not None and (late or members.liveness.someone_ended()):
            seconds = time.monotonic() - started
            raise members.liveness.explain("window allocation", seconds, error) from error
        raise NetworkError(dist.get_rank(), operation, str(error)) from error
    return MappedWindow(local[:nbytes], bases.copy_(torch.tensor(found)), handle)


def allocate_results(
    nbytes: int, node_group: dist.ProcessGroup, device: torch.device
) -> PooledResults | None:
    """Memory for `NUM_RESULTS` results of ``nbytes`` on every rank of ``node_group``, which belongs
    to the current stream; collective inside it. None if a rank has none: there is too little, or
    its allocator makes no such pools, as where segments are expandable."""
    part_bytes, problem = -(-max(nbytes, LEAST_PART) // PART_STEP) * PART_STEP, ""
    size = NUM_RESULTS * part_bytes
    try:
        pool = torch.cuda.MemPool(symmetric_memory.get_mempool_allocator(device))
        with torch.cuda.use_mem_pool(pool):
            whole = torch.empty(size, dtype=torch.uint8, device=device)
    except RuntimeError as error:
        problem = str(error)
    if any(problems := _tell(problem, node_group, device)):
        rank = next(rank for rank, each in enumerate(problems) if each)
        _log.info("results are staged: rank %d of the node: %s", rank, problems[rank])
        return None
    bases, handle = _mapped(whole, node_group)
    begin = whole.data_ptr()
    # The tensor is let go of, and results get what it had.
    return PooledResults(pool, range(begin, begin + size), bases, handle)


def _mapped(local: torch.Tensor, node_group: dist.ProcessGroup) -> tuple[list[int], Any]:
    """Where memory of this kind begins on every rank, as mapped here, and what keeps it mapped;
    collective."""
    handle = symmetric_memory.rendezvous(local, node_group)
    offset = local.data_ptr() - handle.buffer_ptrs[dist.get_rank(node_group)]
    return [base + offset for base in handle.buffer_ptrs], handle


def _tell(
    problem: str,
    group: dist.ProcessGroup,
    device: torch.device,
    members: Membership | None = None,
) -> list[str]:
    """What stops each rank of a group; collective. By the store, since NCCL needs memory itself,
    and other threads may use the group meanwhile."""
    number = next(_allocations.setdefault(group, count()))
    store = PrefixStore(f"fuscoc/window/{number}", _get_process_group_store(group))
    names = [str(rank) for rank in range(dist.get_world_size(group))]
    store.set(names[dist.get_rank(group)], problem)
    if members is None:
        store.wait(names, timedelta(seconds=patience(group, device)))
    else:
        _wait_in_time(store, names, members)
    return [store.get(name).decode() for name in names]


def _wait_in_time(store: Store, names: list[str], members: Membership) -> None:
    deadline, is_missed = time.monotonic() + members.timeout, False
    while not store.check(names):
        if not is_missed and members.liveness.someone_ended():
            # It may be of another node, and have no part in this.
            is_missed, deadline = True, min(deadline, time.monotonic() + GRACE_SECONDS)
        if time.monotonic() > deadline:
            raise TimeoutError("a rank of the node has not said whether it has memory")
        time.sleep(POLL_SECONDS)


_allocations: WeakKeyDictionary[dist.ProcessGroup, Iterator[int]] = WeakKeyDictionary()
