"""The windows of one rank: by name, grown when a larger one is asked for, never shrunk.

A window that has to grow grows by a quarter at least: sizes follow the routing, which changes with
every batch, and every growth is a collective.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from fuscoc_runtime.comm.device_memory import allocate_results, allocate_symmetric
from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.requests import Window
from fuscoc_runtime.comm.results import ResultMemory
from fuscoc_runtime.comm.shared_memory import SharedAllocator
from fuscoc_runtime.comm.subgroups import node_group
from fuscoc_runtime.errors import PreparationError

Allocate = Callable[[int], Window]
"""Bytes -> a zeroed window; collective inside the node."""


def fitting(held: Mapping[str, Window], nbytes: Mapping[str, int]) -> dict[str, Window] | None:
    """The windows that are asked for, if all are there and large enough."""
    if all(name in held and held[name].local.numel() >= size for name, size in nbytes.items()):
        return {name: held[name] for name in nbytes}
    return None


class WindowPool:
    """Windows by name. All ranks of a node ask for the same sizes in the same order."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._windows: dict[str, Window] = {}

    @property
    def held(self) -> dict[str, Window]:
        """All of them, as they are now."""
        return dict(self._windows)

    def get(self, nbytes: Mapping[str, int]) -> dict[str, Window]:
        """Windows of at least so many bytes each; only a new or grown one is zeroed."""
        for name, size in sorted(nbytes.items()):
            held = self._windows.get(name)
            if held is None or held.local.numel() < size:
                # The old one is let go first: both at once might not fit.
                outgrown = 0
                if held is not None:
                    outgrown = held.local.numel()
                    outlast_calls(held.local)
                    outlast_calls(held.peer_bases)
                held = None
                self._windows.pop(name, None)
                self._windows[name] = self._allocate(max(size, outgrown * 5 // 4))
        return {name: self._windows[name] for name in nbytes}

    def clear(self) -> None:
        """Let go of all windows."""
        self._windows.clear()

    @property
    def num_bytes(self) -> int:
        """Bytes of this rank's part of all windows."""
        return sum(window.local.numel() for window in self._windows.values())


def outlast_calls(tensor: torch.Tensor) -> None:
    """Before letting go of memory of any stream: keep it until the calls so far, which the current
    stream is behind, have ended."""
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


def outlast_process(held: object) -> None:
    """Never free it, not even at the end of the interpreter, which lets go of all that modules
    hold: to free a window waits for the GPU."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))


def allocator(members: Membership) -> Allocate:
    """How a rank gets memory that its whole node can address; collective over ``members``."""
    topology, device = members.topology, members.device
    if topology.ranks_per_node == 1:
        return lambda nbytes: private_window(nbytes, device, members.rank)
    if device.type == "cuda":
        return node_allocator(node_group(members), device, members)
    node, local_rank = topology.node(members.rank), topology.local_rank(members.rank)
    store = PrefixStore(f"node/{node}", members.store)
    ranks = topology.node_ranks(node)
    return SharedAllocator(store, local_rank, ranks, members.timeout, members.liveness)


def node_allocator(
    node_group: dist.ProcessGroup | None, device: torch.device, members: Membership | None = None
) -> Allocate:
    """How the ranks of a node share GPU memory; while ``members`` work, if they are given."""
    if node_group is None or dist.get_world_size(node_group) == 1:
        return lambda nbytes: private_window(nbytes, device, 0)  # the only rank there is
    return lambda nbytes: allocate_symmetric(nbytes, node_group, device, members)


def result_memory(
    nbytes: int, node_group: dist.ProcessGroup, device: torch.device
) -> ResultMemory | None:
    """Memory for results of so many bytes that the ranks of a node store into; none if one of them
    has none. Collective inside the node."""
    return allocate_results(nbytes, node_group, device)


def private_window(nbytes: int, device: torch.device, rank: int) -> Window:
    """A zeroed window of a node with one ``rank``: nobody else has to address it.

    Raises:
        PreparationError: there is too little memory.
    """
    try:
        local = torch.zeros(max(nbytes, 1), dtype=torch.uint8, device=device)
        bases = torch.tensor([local.data_ptr()], dtype=torch.int64, device=device)
    except RuntimeError as error:  # which would else be taken for a rank's that does not come
        raise PreparationError(rank, f"{type(error).__name__}: {error}") from error
    return Window(local[:nbytes], bases)
