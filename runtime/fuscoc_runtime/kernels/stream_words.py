"""Words of the host that a GPU writes in the order of a stream, between kernels.

Whoever reads them knows how far the stream has got without asking CUDA: a question about an event,
from any thread, may break a graph that another thread is capturing.
"""

from __future__ import annotations

import torch

from fuscoc_runtime.kernels import driver

WORD_BYTES = 4


class StreamWords:
    """Counts that wrap at 32 bits, 0 at first.

    Attributes:
        address: of the first.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        """Streams of ``device`` write them. On the CPU, where a kernel has ended when its launch
        returns, they are written at once."""
        self._device = device
        words = torch.zeros(count, dtype=torch.int32, pin_memory=device.type == "cuda")
        self.address, self._words = words.data_ptr(), words.numpy().view("uint32")

    def __getitem__(self, index: int) -> int:
        return int(self._words[index])

    def write(self, index: int, value: int) -> None:
        """When the device's current stream gets here.

        Raises:
            RuntimeError: the driver refuses.
        """
        if self._device.type != "cuda":
            self._words[index] = value & 0xFFFFFFFF
            return
        stream = torch._C._cuda_getCurrentRawStream(self._device.index)
        address = self.address + index * WORD_BYTES
        driver.call("cuStreamWriteValue32_v2", stream, address, value & 0xFFFFFFFF, 0)
