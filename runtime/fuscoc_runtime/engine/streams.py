"""Calls of one engine share its buffers, so they follow each other, whatever stream they are on."""

from __future__ import annotations

from typing import Any

import torch

from fuscoc_runtime.comm.streams import shared_stream


def communication_stream(device: torch.device) -> Any:
    """The stream of the asynchronous calls of all shuffles on a GPU.

    One for all: they follow each other, so what waits for peers never takes the SMs that another
    of them waits for, and all together keep to ``num_sms``. It has the highest priority: a kernel
    whose CTAs wait for each other should start together.
    """
    return shared_stream(device, "calls", priority=-1)


class StreamOrder:
    """Keeps calls in order: of the user, of asynchronous calls, and of autograd, which runs the
    backward pass of a call on the stream of that call. Costs nothing while the stream is the same.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last: tuple[Any, bool] | None = None  # stream, and whether a graph was captured

    def enter(self) -> None:
        """Before a call: let the current stream wait for that of the call before."""
        if self._device.type != "cuda":
            return
        stream = torch.cuda.current_stream(self._device)
        capturing = torch.cuda.is_current_stream_capturing()
        if self._last is not None and self._last != (stream, capturing):
            before, was_capturing = self._last
            # A capture is an order of its own: what it waits for must be captured with it.
            if was_capturing == capturing and (not capturing or _is_capturing(before)):
                stream.wait_stream(before)
        self._last = (stream, capturing)


def _is_capturing(stream: Any) -> bool:
    """Whether the capture that a stream took part in goes on."""
    with torch.cuda.stream(stream):
        return torch.cuda.is_current_stream_capturing()
