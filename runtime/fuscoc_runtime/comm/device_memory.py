"""Windows in GPU memory that the other GPUs of the node can address over NVLink.

The only file that knows ``torch.distributed._symmetric_memory``, whose interface is still alpha.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
from torch._C._distributed_c10d import _SymmetricMemory

from fuscoc_runtime.comm.requests import Window
from fuscoc_runtime.errors import NetworkError


@dataclass(frozen=True, eq=False)
class MappedWindow(Window):
    """A window and the handle that keeps the peers' memory mapped into this process."""

    handle: Any


def allocate_symmetric(nbytes: int, node_group: dist.ProcessGroup, device: torch.device) -> Window:
    """A zeroed window of ``nbytes`` for every rank of ``node_group``; collective inside it.

    Raises:
        NetworkError: the GPUs of the node cannot map each other's memory.
    """
    rank = dist.get_rank(node_group)
    try:
        # Not symmetric_memory.empty: its memory pool lets several tensors share one mapping.
        local = _SymmetricMemory.empty_strided_p2p((max(nbytes, 1),), (1,), torch.uint8, device)
        # Zeros must have landed before a peer can address the window: rendezvous is a barrier.
        local.zero_()
        torch.cuda.synchronize(device)
        handle = symmetric_memory.rendezvous(local, node_group)
    except RuntimeError as error:
        operation = f"mapping {nbytes} bytes of {device} for its node"
        raise NetworkError(dist.get_rank(), operation, str(error)) from error
    offset = local.data_ptr() - handle.buffer_ptrs[rank]
    bases = [base + offset for base in handle.buffer_ptrs]
    return MappedWindow(
        local[:nbytes], torch.tensor(bases, dtype=torch.int64, device=device), handle
    )
