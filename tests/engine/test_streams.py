"""The order of calls on several streams, with streams that only take notes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
import torch

from fuscoc_runtime.engine import executor as executor_module
from fuscoc_runtime.engine.executor import Executor
from fuscoc_runtime.engine.lanes import Lanes
from fuscoc_runtime.engine.node.engine import NodeEngine
from fuscoc_runtime.engine.process import ProcessEngine
from fuscoc_runtime.engine.streams import StreamOrder


class Stream:
    """What a CUDA stream is asked; a wait across the border of a capture fails as CUDA's does."""

    def __init__(self) -> None:
        self.capture: int | None = None
        self.waited_for: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        assert self.capture == other.capture, "cudaErrorStreamCaptureIsolation"
        self.waited_for.append(other)

    def wait_event(self, event: Stream) -> None:
        self.wait_stream(event)

    def record_event(self) -> Stream:
        return self


class Device:
    """A GPU with one current stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.main, self.side = Stream(), Stream()
        self.current = self.main
        self.order = StreamOrder(torch.device("cuda", 0))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: self.current)
        monkeypatch.setattr(torch.cuda, "stream", self.on)
        monkeypatch.setattr(
            torch.cuda, "is_current_stream_capturing", lambda: self.current.capture is not None
        )

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def call(self, stream: Stream) -> list[Stream]:
        """What a call on ``stream`` waits for."""
        stream.waited_for.clear()
        with self.on(stream):
            self.order.enter()
        return stream.waited_for

    def capture(self, number: int | None) -> None:
        self.main.capture = self.side.capture = number


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


@pytest.mark.parametrize("capture", [None, 1])
def test_calls_follow_each_other(device: Device, capture: int | None) -> None:
    device.capture(capture)
    assert device.call(device.main) == []
    assert device.call(device.main) == []
    assert device.call(device.side) == [device.main]
    assert device.call(device.main) == [device.side]


def test_a_capture_does_not_wait_for_what_was_before_it(device: Device) -> None:
    device.call(device.side)
    device.main.capture = 1
    assert device.call(device.main) == []


def test_a_capture_does_not_wait_for_an_earlier_one(device: Device) -> None:
    device.capture(1)
    device.call(device.main)
    device.call(device.side)
    device.capture(None)
    device.main.capture = 2
    assert device.call(device.main) == []


@pytest.mark.parametrize(
    ("kind", "looks"), [(NodeEngine, "_watch.raise_all"), (ProcessEngine, "_end")]
)
def test_check_waits_for_calls_on_other_streams(kind: Any, looks: str) -> None:
    done: list[str] = []
    engine = object.__new__(kind)
    engine._streams = SimpleNamespace(enter=lambda: done.append("in order"))
    owner, _, name = looks.rpartition(".")
    held = engine
    if owner:
        held = SimpleNamespace()
        setattr(engine, owner, held)
    setattr(held, name, lambda *_: done.append("looked"))
    engine.check()
    assert done == ["in order", "looked"]


def test_a_call_beside_others_keeps_its_handle(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "communication_stream", lambda _: device.side)
    members = SimpleNamespace(device=torch.device("cuda", 0))
    executor = object.__new__(Executor)
    executor.engine = SimpleNamespace(members=members, unfinished=nullcontext)  # type: ignore[assignment]
    handle = Stream()
    held = ref(handle)
    _, event = executor.beside(lambda: None, [handle], None)
    del handle
    assert held() is not None
    assert device.side.waited_for == [device.main]
    del event
    assert held() is None


def test_numbers_wait_for_a_call_beside_others(device: Device) -> None:
    executor = object.__new__(Executor)
    executor.engine = SimpleNamespace(members=SimpleNamespace(device=torch.device("cuda", 0)))  # type: ignore[assignment]
    seen: list[list[Stream]] = []
    tally = SimpleNamespace(stats=lambda: seen.append([*device.main.waited_for]))
    executor.observer = SimpleNamespace(tally=tally)  # type: ignore[assignment]
    executor._stream = None
    executor.stats()
    executor._stream = device.side
    executor.stats()
    assert seen == [[], [device.side]]


def test_an_error_on_a_lane_gives_the_user_his_stream_back(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes, now = Lanes(torch.device("cpu")), [device.main]
    lanes._streams = {"gather": device.side}
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: now[-1])
    monkeypatch.setattr(torch.cuda, "set_stream", now.append)
    lanes.fork()
    with pytest.raises(InterruptedError), lanes.on("gather"):
        raise InterruptedError
    assert now == [device.main, device.side, device.main]
    assert lanes.mark() is device.main
