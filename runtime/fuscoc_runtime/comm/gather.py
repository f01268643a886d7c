"""What every rank has to say, told to all ranks, for so many seconds at most."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fuscoc_runtime.errors import ProtocolError

POLL_SECONDS = 1e-3


def gather_json(
    said: Any, group: dist.ProcessGroup, device: torch.device, timeout: float
) -> list[Any]:
    """What JSON can hold, of every rank. Unlike pickle, which ``dist.all_gather_object`` takes, it
    is read without executing anything.

    Raises:
        ProtocolError: a rank says something else.
        RuntimeError, TimeoutError: a rank does not come.
    """
    encoded = torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8)
    size = torch.tensor([len(encoded)], dtype=torch.int64, device=device)
    sizes = gather_in_time(size, group, timeout).flatten().tolist()
    padded = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
    padded[: len(encoded)] = encoded.to(device)
    rows = gather_in_time(padded, group, timeout).cpu()
    return [_read(rank, row[:n]) for rank, (row, n) in enumerate(zip(rows, sizes, strict=True))]


def _read(rank: int, encoded: Tensor) -> Any:
    try:
        return json.loads(bytes(encoded.tolist()))
    except ValueError as error:
        raise ProtocolError(
            f"rank {rank} does not speak JSON: does it run this version of fuscoc?"
        ) from error


def gather_in_time(tensor: Tensor, group: dist.ProcessGroup, timeout: float) -> Tensor:
    """``tensor`` of every rank of ``group``, equal shapes: [num_ranks, *shape].

    Raises:
        RuntimeError, TimeoutError: a rank does not come.
    """
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    work = dist.all_gather(parts, tensor, group=group, async_op=True)
    if tensor.device.type == "cuda":
        # NCCL's own wait only orders streams.
        deadline = time.monotonic() + timeout
        while not work.is_completed():
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing for {timeout:g} s")
            time.sleep(POLL_SECONDS)
        work.wait()
    else:
        work.wait(timedelta(seconds=timeout))
        keep_until_next([work])
    return torch.stack(parts)


def keep_until_next(works: list[dist.Work]) -> None:
    """Keep works of gloo that have ended, until others have.

    Otherwise a thread of gloo's may be the last to let go of them, and of Python's tensors in them,
    for which it needs the interpreter: that aborts a process that is ending just then.
    """
    _ended[:] = works


_ended: list[dist.Work] = []
