"""The waits of a rank's kernels for other ranks: which of them are under way, and their end.

Kernels have no clock. A wait ends when what it waits for has come, or when the host has raised the
first of two words; the second then says for whom the wait was.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock

import torch

from fuscoc_runtime.comm.streams import shared_stream
from fuscoc_runtime.kernels.stream_words import StreamWords

ABORT, LATE = 0, 1
"""Places of the two words."""


class Waits:
    """The kernels of one rank that wait, and the words that they poll.

    Attributes:
        words: int32 [2] on the device, ``abort`` of the ABI.
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
            self.words = torch.zeros(2, dtype=torch.int32, device=device)
            self._told = torch.zeros(2, dtype=torch.int32, pin_memory=is_gpu)
            self._raised = torch.ones(1, dtype=torch.int32, pin_memory=is_gpu)
        self._beside = shared_stream(device, "stopping", priority=-1) if is_gpu else None

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
        """End all waits, and those of later launches, from any thread.

        On a GPU a copy engine writes the word: the kernels that wait may have taken all SMs.
        """
        self.are_stopped = True
        word = self.words[ABORT : ABORT + 1]
        if self._beside is None:
            word.copy_(self._raised)
            return
        with torch.cuda.stream(self._beside):
            word.copy_(self._raised, non_blocking=True)

    def resume(self) -> None:
        """Let kernels wait again, if the stop came when no wait was in vain. No launch that waits
        is under way, and ``tell`` is done."""
        if self.are_stopped and self.late() is None:
            if self._beside is not None:
                torch.cuda.current_stream().wait_stream(self._beside)
            self.words[ABORT].zero_()
            self.are_stopped = False

    def tell(self) -> None:
        """Bring to the host what ``late`` looks at, in the order of the current stream."""
        self._told.copy_(self.words, non_blocking=True)

    def late(self) -> int | None:
        """The first wait that was stopped, as known when ``tell`` was done: the place in the signal
        window of the word that it was for."""
        word = int(self._told[LATE])
        return word - 1 if word else None
