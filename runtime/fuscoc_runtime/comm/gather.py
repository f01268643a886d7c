"""What every rank has to say, told to all ranks, for so many seconds at most."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions

from fuscoc_runtime.comm.landing import as_bytes
from fuscoc_runtime.comm.liveness import GRACE_SECONDS, LOOK_SECONDS
from fuscoc_runtime.errors import ProtocolError

POLL_SECONDS = 1e-3

HEAD_BYTES, FRAME_BYTES = 256, 4096


class Deadline:
    """When a wait for other ranks is in vain: after so many seconds, or somewhat after it is known
    that one has ended, which may have come before."""

    def __init__(self, timeout: float, someone_ended: Callable[[], bool] = lambda: False) -> None:
        self._started, self._someone_ended = time.monotonic(), someone_ended
        self._latest = self._started + timeout

    def check(self) -> None:
        """Raises TimeoutError: it has passed."""
        now = time.monotonic()
        if now > self._latest:
            raise TimeoutError(f"nothing for {now - self._started:g} s")
        if self._someone_ended():
            self._latest = min(self._latest, now + GRACE_SECONDS)


def gather_json(
    said: Any,
    group: dist.ProcessGroup,
    device: torch.device,
    timeout: float,
    occasion: str,
    someone_ended: Callable[[], bool] = lambda: False,
) -> list[Any]:
    """What JSON can hold, of every rank that has come to the ``occasion``. Unlike pickle, which
    ``dist.all_gather_object`` takes, it is read without executing anything.

    Raises:
        ProtocolError: a rank says something else, or has come to something else.
        RuntimeError, TimeoutError: a rank does not come.
    """
    encoded = torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8)
    size = torch.tensor([len(encoded)], dtype=torch.int64, device=device)
    given = group, timeout, occasion, someone_ended
    sizes = gather_in_time(size, *given).flatten().tolist()
    padded = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
    padded[: len(encoded)] = encoded.to(device)
    rows = gather_in_time(padded, *given).cpu()
    return [_read(rank, row[:n]) for rank, (row, n) in enumerate(zip(rows, sizes, strict=True))]


def _read(rank: int, encoded: Tensor) -> Any:
    try:
        return json.loads(bytes(encoded.tolist()))
    except ValueError as error:
        raise ProtocolError(
            f"rank {rank} does not speak JSON: does it run this version of fuscoc?"
        ) from error


def gather_in_time(
    tensor: Tensor,
    group: dist.ProcessGroup,
    timeout: float,
    occasion: str,
    someone_ended: Callable[[], bool] = lambda: False,
) -> Tensor:
    """``tensor`` of every rank of ``group``, equal shapes: [num_ranks, *shape]. Nobody is waited
    for when ``someone_ended``: NCCL does not see that, and gloo does not see a rank give up.

    Raises:
        RuntimeError, TimeoutError: a rank does not come.
        ProtocolError: a rank has come to another ``occasion``; on CPUs, where that is told.
    """
    if tensor.device.type != "cuda":
        gathered = start_gather(as_bytes(tensor), group, timeout, occasion, someone_ended)()
        return gathered.view(tensor.dtype).view(-1, *tensor.shape)
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    work = dist.all_gather(parts, tensor, group=group, async_op=True)
    # NCCL's own wait only orders streams.
    deadline = Deadline(timeout, someone_ended)
    while not work.is_completed():
        deadline.check()
        time.sleep(POLL_SECONDS)
    work.wait()
    return torch.stack(parts)


def start_gather(
    sent: Tensor,
    group: dist.ProcessGroup,
    timeout: float,
    occasion: str,
    someone_ended: Callable[[], bool] = lambda: False,
    opening: str = "",
) -> Callable[[], Tensor]:
    """Begin to gather bytes of every rank on CPUs, uint8 [n]. Result: a call that waits for them,
    [num_ranks, n], no longer than ``timeout`` seconds in all. ``opening`` tells the occasion from
    those of the same words after another opening.

    Ranks that have made different calls send different numbers of bytes, and gloo ends a process
    that gets more than it expects. So the first bytes travel in a frame of always the same size,
    behind how many there are and what for.

    What a rank has sent in a gather that it has given up since, for another rank had not come, gets
    there when that one comes to the next. So ranks that find themselves at different occasions send
    their frames once more, until all of them hear from each what it has said before.

    Raises, when it is waited for:
        ProtocolError: ranks have come to different occasions, as all of them say.
        RuntimeError, TimeoutError: a rank does not come.
    """
    what = f"{sent.numel()} bytes{opening and f', opening {opening}'}"
    head = f"{occasion} ({what})".encode()[:HEAD_BYTES].ljust(HEAD_BYTES, b"\0")
    frame, room = sent.new_zeros(FRAME_BYTES), FRAME_BYTES - HEAD_BYTES
    frame[:HEAD_BYTES] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
    frame[HEAD_BYTES : HEAD_BYTES + sent.numel()] = sent[:room]
    framed = _start(frame, group)

    def arrived() -> Tensor:
        deadline = Deadline(timeout, someone_ended)
        frames, before = framed(deadline), None
        while problem := _difference(frames[:, :HEAD_BYTES]):
            heads = frames[:, :HEAD_BYTES]
            if before is not None and torch.equal(heads, before):
                raise ProtocolError(problem)
            frames, before = _start(frame, group)(deadline), heads
        rows = frames[:, HEAD_BYTES : HEAD_BYTES + sent.numel()]
        if sent.numel() > room:
            rows = torch.cat([rows, _start(sent[room:], group)(deadline)], dim=1)
        return rows.contiguous()

    return arrived


def _start(sent: Tensor, group: dist.ProcessGroup) -> Callable[[Deadline], Tensor]:
    gathered, options = sent.new_empty(group.size() * sent.numel()), AllgatherOptions()
    options.asyncOp = True
    # ``dist.all_gather_single`` does the same, and looks at tensors and group first.
    work = group._allgather_base(gathered, sent, options)

    def arrived(deadline: Deadline) -> Tensor:
        finish(work, deadline)
        return gathered.view(-1, sent.numel())

    return arrived


def _difference(heads: Tensor) -> str:
    """How what ranks have come to, uint8 [num_ranks, HEAD_BYTES], differs, if it does."""
    first, *others = (bytes(each).rstrip(b"\0").decode(errors="replace") for each in heads.numpy())
    for rank, theirs in enumerate(others, 1):
        if theirs != first:
            return f"rank {rank} has come to {theirs} where rank 0 has come to {first}"
    return ""


def finish(work: dist.Work, deadline: Deadline) -> None:
    """Wait for a collective of gloo's. What it sends one by one takes no such wait: one that ends
    without it breaks all connections of the group.

    Raises:
        RuntimeError, TimeoutError: it has failed; a rank does not come.
    """
    while True:
        try:
            work.wait(timedelta(seconds=LOOK_SECONDS))
            break
        except RuntimeError:
            if work.is_completed():
                work.wait()  # raises what it has failed by, unless it has ended just now
                break
        deadline.check()
    keep_until_next([work])


def keep_until_next(works: list[dist.Work]) -> None:
    """Keep works of gloo that have ended, until others have.

    Otherwise a thread of gloo's may be the last to let go of them, and of Python's tensors in them,
    for which it needs the interpreter: that aborts a process that is ending just then.
    """
    _ended[:] = works


_ended: list[dist.Work] = []
