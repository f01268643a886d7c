"""NCCL's communicators of torch's groups, for what is posted to them without torch.

torch makes them and frees them. It watches only its own work: nothing ends what others have posted
when a rank is lost, so whoever finds that out aborts the communicator, for all who post to it.
"""

from __future__ import annotations

import atexit
import threading
import time
from typing import Any, Protocol
from weakref import ReferenceType, WeakKeyDictionary, WeakSet

import torch
import torch.distributed as dist

from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.kernels.commands import Communicator

ABORT_SECONDS = 5.0
"""How long an abort waits for a thread that is posting."""
END_SECONDS = 3 * ABORT_SECONDS
"""How long the end of a process waits for all aborts, which the GPU may be slow to hear of."""
POLL_SECONDS = 1e-3


class Listener(Protocol):
    """Whose kernels read what is received."""

    def hear(self, loss: FuscoRuntimeError) -> None:
        """A rank was lost: what kernels find is not what should be there. By any thread."""


_lock = threading.Lock()
_known: WeakKeyDictionary[dist.ProcessGroup, Communicator] = WeakKeyDictionary()
_listeners: WeakKeyDictionary[dist.ProcessGroup, WeakSet[Listener]] = WeakKeyDictionary()
_aborted: WeakSet[dist.ProcessGroup] = WeakSet()
_aborting: WeakSet[threading.Thread] = WeakSet()


def communicator_of(group: dist.ProcessGroup, device: torch.device) -> Communicator:
    """That of a group which has been connected; the same one for all who ask."""
    with _lock:
        if group not in _known:
            _known[group] = Communicator(_backend(group, device)._comm_ptr())
        return _known[group]


def listen(group: dist.ProcessGroup, listener: Listener) -> None:
    """Let it hear of a loss before what it has posted to the group is ended."""
    with _lock:
        _listeners.setdefault(group, WeakSet()).add(listener)


def tell(group: ReferenceType[dist.ProcessGroup], loss: FuscoRuntimeError) -> None:
    """Let all who listen hear of a loss: what they post next would meet what others have posted for
    another call. A group that has been destroyed has nobody to tell."""
    known = group()
    if known is None:
        return
    with _lock:
        listeners = [*_listeners.get(known, ())]
    for each in listeners:
        each.hear(loss)


def lose(
    group: ReferenceType[dist.ProcessGroup], device: torch.device, loss: FuscoRuntimeError
) -> None:
    """A rank of it is lost, or can follow the others no more: nobody posts to it here any more. On
    GPUs what has been posted ends, too; on the CPU, where it is the job's own group, waits end in
    time."""
    if device.type == "cuda":
        abort(group, device, loss)
    else:
        tell(group, loss)


def abort(
    group: ReferenceType[dist.ProcessGroup], device: torch.device, loss: FuscoRuntimeError
) -> None:
    """End what has been posted, in a thread that nobody has to wait for: the GPU goes on, and what
    should have been received is not there. All who listen hear of it before."""
    known = group()
    if known is None:
        return
    with _lock:
        if known in _aborted:
            return
        _aborted.add(known)
    tell(group, loss)

    def attempt() -> None:
        known, deadline = group(), time.monotonic() + ABORT_SECONDS
        if known is None:
            return
        while not communicator_of(known, device).close():
            if time.monotonic() > deadline:
                return  # it waits inside NCCL, which only the end of the process ends
            time.sleep(POLL_SECONDS)
        _backend(known, device).abort()

    thread = threading.Thread(target=attempt, name="fuscoc-abort", daemon=True)
    with _lock:
        _aborting.add(thread)
    thread.start()


@atexit.register
def _end() -> None:
    """A thread that came back from C++ while the interpreter ends would abort the process."""
    deadline = time.monotonic() + END_SECONDS
    with _lock:
        aborting = [*_aborting]
    for thread in aborting:
        thread.join(max(0.0, deadline - time.monotonic()))


def is_aborted(group: dist.ProcessGroup) -> bool:
    """Whether a rank of it was lost: shuffles that are opened later need another one."""
    return group in _aborted


def _backend(group: dist.ProcessGroup, device: torch.device) -> Any:
    backend: Any = group._get_backend(device)
    # Something is around it if TORCH_DISTRIBUTED_DEBUG is DETAIL.
    return getattr(backend, "wrapped_pg", backend)
