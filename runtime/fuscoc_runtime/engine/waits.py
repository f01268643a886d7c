"""The waits of a rank's kernels for other ranks: which are under way, how long they may last, and
their end.

Kernels have no clock. A wait ends when what it waits for has come, or when the host has raised a
word; another one then says for whom the wait was.

The word that is raised lies in the host's memory, where kernels look now and then, and raising it
takes no call of CUDA. A copy to the GPU may not get through: another thread that is in a copy,
which is behind the kernels that wait, has the driver's lock, and a GPU with many streams has no
queue left.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from threading import Lock

import torch

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.kernels.stream_words import StreamWords

LOOK_SECONDS = 1.0
"""Waits that are shorter are no reason to ask whether the others are alive."""

GRACE_SECONDS = 1.0
"""What a rank has done before it ended may still be on its way. Less than the grace of a host that
waits for its kernels: these know whom they have waited for."""


class Waits:
    """The kernels of one rank that wait, and the words that end their waits.

    Attributes:
        abort_word: int32 [1] in the host's memory, ``abort`` of the ABI.
        late_word: int32 [1] on the device, ``late`` of the ABI.
        are_stopped: whether the host has raised the first one.
        lock: held from a look at what is under way to stopping it, and while waits begin again.
    """

    def __init__(self, kernels: Iterable[str], device: torch.device) -> None:
        self.are_stopped, self.lock = False, Lock()
        self._numbers = dict.fromkeys(kernels, 0)
        self._at = {kernel: index for index, kernel in enumerate(self._numbers)}
        self._begun = StreamWords(len(self._at), device)
        self._ended = StreamWords(len(self._at), device)
        self._is_gpu = is_gpu = device.type == "cuda"
        with torch.inference_mode(False):  # other threads write to them, in modes of their own
            self.abort_word = torch.zeros(1, dtype=torch.int32, pin_memory=is_gpu)
            self.late_word = torch.zeros(1, dtype=torch.int32, device=device)
            self._told = torch.zeros(1, dtype=torch.int32, pin_memory=is_gpu)
        self._abort = self.abort_word.numpy()

    def begin(self, kernel: str) -> None:
        """Before a launch, on its stream. Nothing where the kernel does not wait."""
        index = self._at.get(kernel)
        if index is None:
            return
        with self.lock:
            if self.are_stopped and not self._is_gpu:
                # Perhaps an earlier launch has only worked for long.
                self.tell()
                self.resume()
            self._numbers[kernel] += 1
        # Not under the lock: where the stream is full, this lasts until waits are stopped.
        self._begun.write(index, self._numbers[kernel])

    def end(self, kernel: str) -> None:
        """After the launch."""
        index = self._at.get(kernel)
        if index is not None:
            self._ended.write(index, self._numbers[kernel])

    def under_way(self) -> set[tuple[str, int]]:
        """Kernels that have begun and not ended, with the numbers of their launches."""
        ended = {kernel: self._ended[index] for kernel, index in self._at.items()}
        begun = {(kernel, self._begun[index]) for kernel, index in self._at.items()}
        return begun - set(ended.items())

    def stop(self) -> None:
        """End all waits, and those of later launches, from any thread: kernels see a plain write
        of the host soon, and need nothing else that was written before it."""
        self.are_stopped = True
        self._abort[0] = 1

    def resume(self) -> None:
        """Let kernels wait again, if the stop came when no wait was in vain. No launch that waits
        is under way, and ``tell`` is done.

        Nobody reads the word meanwhile, and later launches see what the host wrote before them.
        """
        if self.are_stopped and self.late() is None:
            self._abort[0] = 0
            self.are_stopped = False

    def tell(self) -> None:
        """Bring to the host what ``late`` looks at, in the order of the current stream."""
        self._told.copy_(self.late_word, non_blocking=True)

    def late(self) -> int | None:
        """The first wait that was stopped, as known when ``tell`` was done: the place in the signal
        window of the word that it was for."""
        word = int(self._told[0])
        return word - 1 if word else None


class Patience:
    """Stops the waits of kernels that have been waiting for the members' time-out, or still are a
    second after a rank of this host has ended. To be ``watch``-ed.

    The time counts from when a kernel has begun: other work that the user's stream does before it
    is nobody's delay.
    """

    def __init__(self, waits: Waits, members: Membership) -> None:
        self._waits, self._members = waits, members
        self._since: dict[tuple[str, int], float] = {}
        self._bereft: float | None = None  # since when a rank has been known to have ended

    def look(self) -> None:
        """Stop what is in vain, if anything is."""
        now = time.monotonic()
        with self._waits.lock:
            under_way = self._waits.under_way()
            self._since = {each: self._since.get(each, now) for each in under_way}
            if not self._waits.are_stopped and self._is_in_vain(now):
                self._waits.stop()

    def _is_in_vain(self, now: float) -> bool:
        waited = now - min(self._since.values(), default=now)
        if waited < LOOK_SECONDS:
            return False
        if self._bereft is None and self._members.liveness.someone_ended():
            self._bereft = now
        if self._bereft is not None and now - self._bereft >= GRACE_SECONDS:
            return True
        return waited > self._members.timeout
