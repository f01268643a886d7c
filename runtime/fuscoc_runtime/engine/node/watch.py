"""Errors that kernels record on the device, raised on the host without making it wait."""

from __future__ import annotations

from typing import Any

import torch

from fuscoc_runtime.engine.node.state import NodeKernels, Trouble, parse_state
from fuscoc_runtime.errors import (
    FuscoRuntimeError,
    HopTimeoutError,
    KeyRangeError,
    NoSlotError,
    RefusedCallError,
)
from fuscoc_runtime.scalar import render
from fuscoc_runtime.schema import PackedTarget, ShuffleSpec


def find_error(
    shuffle: ShuffleSpec, rank: int, timeout: float, capacity: int, before: Trouble, now: Trouble
) -> FuscoRuntimeError | None:
    """What has gone wrong since ``before``; a wait that was given up stays wrong for good."""
    assert isinstance(shuffle.target, PackedTarget)
    if now.refusing is not None:
        return RefusedCallError(rank, now.refusing)
    if now.late is not None:
        peer, stage = now.late
        return HopTimeoutError(rank, stage, peer, timeout)
    if now.bad_keys > before.bad_keys:
        count = now.bad_keys - before.bad_keys
        return KeyRangeError(rank, render(shuffle.target.key), count, shuffle.target.num_keys - 1)
    if now.overflowed > before.overflowed:
        return NoSlotError(rank, now.overflowed - before.overflowed, capacity)
    return None


class ErrorWatch:
    """Reads a node shuffle's state on a stream of its own, beside the kernels.

    A copy starts with every call and is looked at by the next call that finds it finished. On the
    CPU, where every call has waited for its kernels, the state itself is looked at.
    """

    def __init__(self, node: NodeKernels, shuffle: ShuffleSpec, rank: int, timeout: float) -> None:
        self._node, self._shuffle, self._rank, self._timeout = node, shuffle, rank, timeout
        self._told = Trouble(None, None, 0, 0)
        if node.state.device.type == "cpu":
            return
        self._stream: Any = torch.cuda.Stream(node.state.device)  # type: ignore[no-untyped-call]
        self._seen = torch.zeros(node.state.shape, dtype=torch.int32, pin_memory=True)
        self._copied: Any = None  # an event

    def raise_seen(self) -> None:
        """Raise what earlier calls did wrong, as far as it is known by now. Never waits."""
        if self._node.state.device.type == "cpu":
            self.raise_all()
            return
        if torch.cuda.is_current_stream_capturing():
            return
        if self._copied is not None:
            if not self._copied.query():
                return
            self._raise_new(parse_state(self._seen.tolist()))
        with torch.cuda.stream(self._stream):
            self._seen.copy_(self._node.state, non_blocking=True)
            self._copied = self._stream.record_event()

    def raise_all(self) -> None:
        """Wait for the current stream and raise what went wrong."""
        self._raise_new(parse_state(self._node.state.tolist()))

    def raise_untold(self, so_far: bool = False) -> None:
        """As ``raise_all``, but not again what has been raised before; of calls that go on, what is
        known ``so_far``, without waiting for them."""
        on_gpu = self._node.state.device.type != "cpu"
        with torch.cuda.stream(self._stream if so_far and on_gpu else None):
            now = parse_state(self._node.state.tolist())
        if now != self._told:
            self._raise_new(now)

    def _raise_new(self, now: Trouble) -> None:
        self._copied = None  # a copy still on its way is older than ``now``
        before, self._told = self._told, now
        capacity = self._node.limits.capacity
        error = find_error(self._shuffle, self._rank, self._timeout, capacity, before, now)
        if error is not None:
            raise error
