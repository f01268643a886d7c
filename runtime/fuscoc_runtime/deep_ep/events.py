"""Events, and the stream beside the current one, as DeepEP has them; on a CPU calls have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from fuscoc_runtime.defaults import on_the_cpu_by_default

T = TypeVar("T")


class EventHandle:
    """What the current stream has been given when this is made."""

    def __init__(self) -> None:
        self.event: torch.cuda.Event | None = None
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.event.record()

    def current_stream_wait(self) -> None:
        """Let the current stream wait for it, without the host."""
        if self.event is not None:
            torch.cuda.current_stream().wait_event(self.event)


class EventOverlap:
    """The end of a call, or what ``Buffer.capture`` has seen; ``event`` is None if nobody asked.

    As a context, it lets the current stream wait where the block ends.
    """

    def __init__(
        self, event: EventHandle | None = None, extra_tensors: Sequence[Tensor] | None = None
    ) -> None:
        self.event, self.extra_tensors = event, extra_tensors
        self._hook: Callable[[], Any] | None = None
        self._releases = False

    def current_stream_wait(self, release_handle: bool = False) -> None:
        """Let the current stream wait; with ``release_handle`` what is kept for it is let go of."""
        assert self.event is not None, "the call was made without async_finish"
        self.event.current_stream_wait()
        if self._hook is not None:
            hook, self._hook = self._hook, None
            hook()
        if release_handle:
            self.event = self.extra_tensors = None

    def register_hook_after_wait(self, hook_after_wait: Callable[[], Any]) -> None:
        """Call this once, after the next ``current_stream_wait``."""
        assert self._hook is None, "there is a hook already"
        self._hook = hook_after_wait

    def __call__(self, release_handle: bool = False) -> Self:
        """``with event(release_handle=True): …``"""
        self._releases = release_handle
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.event is not None:
            self.current_stream_wait(self._releases)
        self._releases = False


class Beside:
    """Makes calls on a stream of their own, or on the current one."""

    @cached_property
    def stream(self) -> torch.cuda.Stream:
        """The communication stream of the current GPU."""
        return torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]

    def run(
        self,
        work: Callable[[], T],
        previous_event: EventOverlap | EventHandle | None,
        is_async: bool,
        given: Iterable[Tensor | None],
        made: Callable[[T], Iterable[Tensor | None]],
    ) -> tuple[T, EventOverlap]:
        """``work()``, and the event of its end if it ``is_async``.

        It waits for ``previous_event``, else for the current stream. ``given`` is what it reads,
        ``made`` what of its result the caller will use.
        """
        with torch.no_grad(), on_the_cpu_by_default():
            before = (
                previous_event.event if isinstance(previous_event, EventOverlap) else previous_event
            )
            return self._run(work, before, is_async, given, made)

    def _run(
        self,
        work: Callable[[], T],
        before: EventHandle | None,
        is_async: bool,
        given: Iterable[Tensor | None],
        made: Callable[[T], Iterable[Tensor | None]],
    ) -> tuple[T, EventOverlap]:
        tensors = [each for each in given if each is not None]
        if not is_async or not any(each.is_cuda for each in tensors):
            if before is not None:
                before.current_stream_wait()
            return work(), EventOverlap(EventHandle() if is_async else None)
        current = torch.cuda.current_stream()
        if before is None:
            self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            if before is not None:
                before.current_stream_wait()
            result = work()
            end = EventHandle()
        for each in tensors:
            each.record_stream(self.stream)
        for made_here in made(result):
            if made_here is not None:
                made_here.record_stream(current)
        return result, EventOverlap(end)
