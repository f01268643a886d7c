"""The order of calls on several streams, with streams that only take notes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
import torch

from fuscoc_runtime.engine import ends, streams
from fuscoc_runtime.engine.node.engine import NodeEngine
from fuscoc_runtime.engine.node.repeats import Repeats
from fuscoc_runtime.engine.observer import Observer
from fuscoc_runtime.engine.process import ProcessEngine
from fuscoc_runtime.face import executor as executor_module
from fuscoc_runtime.face.executor import Executor
from fuscoc_runtime.kernels import driver
from fuscoc_runtime.kernels.commands import Turn

GPU = torch.device("cuda", 0)


class Stream:
    """What a CUDA stream is asked; a wait across the border of a capture fails as CUDA's does."""

    def __init__(self) -> None:
        self.cuda_stream = id(self)
        self.capture: int | None = None
        self.waited_for: list[object] = []

    def wait_stream(self, other: Stream) -> None:
        assert self.capture == other.capture, "cudaErrorStreamCaptureIsolation"
        self.waited_for.append(other)

    def wait_event(self, event: Stream) -> None:
        self.wait_stream(event)

    def record_event(self) -> Stream:
        return self


class End:
    """The event that ends calls: external, so that captures may wait for it and record it."""

    cuda_event = 77

    def __init__(self, external: bool = False) -> None:
        assert external
        self.recorded: list[Stream] = []

    def record(self, stream: Stream) -> None:
        assert stream.capture is None, "this would be a node between kernels"
        self.recorded.append(stream)

    def wait(self, stream: Stream) -> None:
        stream.waited_for.append(self)


class Device:
    """A GPU with one current stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.main, self.side = Stream(), Stream()
        self.current = self.main
        self.records, self.number = 0, 0
        self.waits: list[tuple[int, int]] = []  # of streams for events
        monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
        monkeypatch.setattr(torch.cuda, "Event", End)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: self.current)
        monkeypatch.setattr(torch.cuda, "stream", self.on)
        monkeypatch.setattr(
            torch.cuda, "is_current_stream_capturing", lambda: self.current.capture is not None
        )
        self.last = 0  # the node that the next one of the capture will wait for
        self.ends: set[int] = set()  # those that the node waits for which records the end
        monkeypatch.setattr(streams, "_capture_info", self.info)
        monkeypatch.setattr(driver, "call", self.change)
        self.order = streams.CallOrder(torch.device("cuda", 0))

    def info(self, stream: Stream) -> tuple[Any, None, Any]:
        return stream.capture, None, streams._Nodes([self.last], 1)

    def change(self, function: str, *arguments: Any) -> None:
        """As the driver: an edge is removed only where there is one, and added only once."""
        if function == "cuStreamWaitEvent":
            self.waits.append(arguments[:2])
            return
        if function == "cuGraphAddEventRecordNode":
            self.records += 1
            self.ends = set(arguments[2][: arguments[3].value])
            return
        nodes = set(arguments[1][: arguments[3].value])
        if function == "cuGraphAddDependencies":
            assert not nodes & self.ends
            self.ends |= nodes
        else:
            assert function == "cuGraphRemoveDependencies"
            assert nodes <= self.ends
            self.ends -= nodes

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def call(self, stream: Stream) -> list[object]:
        """What a call on ``stream`` waits for."""
        stream.waited_for.clear()
        with self.on(stream), self.order.turn():
            self.last += 1
        return stream.waited_for

    def capture(self, number: int | None) -> None:
        self.main.capture = self.side.capture = number

    @property
    def end(self) -> Any:
        return self.order._ended


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def test_a_device_has_one_order(device: Device) -> None:
    assert streams.call_order(torch.device("cuda", 1)) is streams.call_order(torch.device("cuda:1"))
    streams.call_order.cache_clear()


def test_calls_follow_each_other(device: Device) -> None:
    """Each waits for the end of the one before, and not for what its stream was given since."""
    device.call(device.main)
    assert device.call(device.main) == []
    assert device.call(device.side) == [device.end]
    assert device.call(device.main) == [device.end]
    assert device.end.recorded[1:] == [device.main, device.main, device.side, device.main]


def test_lists_among_calls(device: Device) -> None:
    """A list on another stream than the latest call waits for it."""

    def follows(stream: Stream) -> bool:
        with device.order.lock:
            return device.order.follows(stream.cuda_stream)

    device.call(device.main)
    assert not follows(device.main)
    assert follows(device.side)
    assert device.call(device.side) == []
    assert device.call(device.main) == [device.end]
    device.capture(1)
    device.call(device.main)
    device.capture(None)
    assert follows(device.main)  # the graph may have been replayed


class Used:
    """A tensor, as far as the allocator is told of it."""

    def __init__(self) -> None:
        self.told: list[Stream] = []

    def record_stream(self, stream: Stream) -> None:
        self.told.append(stream)


@pytest.fixture
def repeats(device: Device, monkeypatch: pytest.MonkeyPatch) -> Repeats:
    """Those of an engine on that GPU, whose events are numbered from 100 on."""
    numbers = itertools.count(100)

    def event() -> Any:
        return SimpleNamespace(cuda_event=next(numbers), record=lambda _: None)

    monkeypatch.setattr(torch.cuda, "Event", event)
    monkeypatch.setattr(ends, "communication_stream", lambda _: device.side)
    for name, said in (
        ("getCurrentRawStream", lambda _: device.current.cuda_stream),
        ("getDevice", lambda: device.number),
        ("isCurrentStreamCapturing", lambda: device.current.capture is not None),
    ):
        monkeypatch.setattr(torch._C, f"_cuda_{name}", said, raising=False)
    repeats = Repeats.__new__(Repeats)
    repeats._order, repeats._watch = device.order, SimpleNamespace(loss=None)
    repeats._node, repeats._observer = SimpleNamespace(is_out_of_step=False), Observer("")
    repeats._watch_streams(ends.Ends(GPU))
    return repeats


def begun(repeats: Repeats, *used: Any) -> tuple[Any, Any]:
    """Of an asynchronous call, its turn and its end."""
    found = repeats._begin(True, used)
    assert found is not None
    turn, end = found
    return turn, end


def test_repeats_beside_other_work(device: Device, repeats: Repeats) -> None:
    """A list on the stream of asynchronous calls waits for the current one as far as it is now; on
    the current one there is nothing to wait for."""
    current = device.main.cuda_stream
    device.call(device.main)
    turn, end = begun(repeats)
    ended = device.end.cuda_event
    assert turn == Turn(device.side.cuda_stream, current, 100, ended, ended, 101)
    end.wait()
    assert device.waits == [(current, 101)]
    assert repeats._begin(False, ()) == (Turn(current, awaited=ended, ended=ended), None)
    assert repeats._begin(False, ()) == (Turn(current, ended=ended), None)
    device.capture(1)
    assert repeats._begin(False, ()) is None
    device.capture(None)
    device.number = 1
    assert repeats._begin(False, ()) is None


def test_events_are_used_again(repeats: Repeats) -> None:
    """Not while somebody may still ask for them."""
    told = []
    for kept in (True, False, True, True):
        turn, end = begun(repeats)
        told.append((Turn(*turn).told, end if kept else None))
        del end
    assert [number for number, _ in told] == [101, 102, 102, 103]


@pytest.mark.parametrize(
    ("waits_on", "number", "tells"),
    [("main", 0, False), ("side", 0, True), ("main", 1, True), (None, 0, True)],
    ids=["caller", "another stream", "another device", "nobody"],
)
def test_memory_outlasts_a_call(
    device: Device, repeats: Repeats, waits_on: str | None, number: int, tells: bool
) -> None:
    """The allocator is told of the stream of calls unless the caller's waits for the end. Until
    then memory is kept."""
    used: Any = Used()  # in a tensor's place
    told, held = used.told, ref(used)
    _, end = begun(repeats, used)
    del used
    assert held() is not None
    if waits_on is not None:
        device.number = number
        with device.on(getattr(device, waits_on)):
            end.wait()
    assert (held() is None) == (not tells)
    assert told == []
    del end
    assert held() is None
    assert told == [device.side] * tells


def test_memory_outlasts_a_wait_that_fails(
    device: Device, repeats: Repeats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of a graph for what is not in it."""

    def refuse(*_: object) -> None:
        raise RuntimeError("cuStreamWaitEvent failed with CUDA error 905")

    used: Any = Used()
    _, end = begun(repeats, used)
    monkeypatch.setattr(driver, "call", refuse)
    with pytest.raises(RuntimeError, match="905"):
        end.wait()
    del end
    assert used.told == [device.side]


def test_a_call_that_fails_is_over(device: Device) -> None:
    device.call(device.main)
    with pytest.raises(InterruptedError), device.order.turn():
        raise InterruptedError
    assert len(device.end.recorded) == 3


def test_calls_of_a_capture(device: Device) -> None:
    """Replays wait for the call before, and record the end of the last of theirs, once and beside
    their kernels; the calls of one graph follow each other in it."""
    device.call(device.side)
    device.capture(1)
    assert device.call(device.main) == [device.end]
    assert device.call(device.main) == []
    assert device.call(device.side) == [device.main]
    assert (device.records, device.ends) == (1, {device.last})


def test_a_capture_goes_on_after_a_call_that_fails(device: Device) -> None:
    device.capture(1)
    with pytest.raises(InterruptedError), device.order.turn():
        raise InterruptedError
    assert device.call(device.side) == [device.main]
    with device.order.turn(), device.order.turn():  # a call that is made of another
        pass
    assert (device.records, device.ends) == (1, {device.last})


def test_captures_are_apart(device: Device) -> None:
    device.capture(1)
    device.call(device.main)
    device.capture(2)
    assert device.call(device.side) == [device.end]
    assert (device.records, device.ends) == (2, {device.last})


def test_calls_after_a_capture_wait_for_replays(device: Device) -> None:
    """They come unseen, on whichever stream."""
    device.call(device.main)
    device.capture(1)
    device.call(device.main)
    device.capture(None)
    assert device.call(device.main) == [device.end]
    assert device.call(device.main) == [device.end]


@pytest.mark.parametrize(
    ("kind", "looks"), [(NodeEngine, "_watch.raise_new"), (ProcessEngine, "_end")]
)
def test_check_takes_its_turn(kind: Any, looks: str) -> None:
    done: list[str] = []
    engine = object.__new__(kind)
    engine.reply = None

    @contextmanager
    def turn() -> Iterator[None]:
        done.append("in order")
        yield

    engine.order = engine._order = SimpleNamespace(turn=turn)
    engine.members = SimpleNamespace(device=torch.device("cpu"))
    engine.machine = SimpleNamespace(current_device=nullcontext)
    owner, _, name = looks.rpartition(".")
    held = engine
    if owner:
        held = SimpleNamespace(blaming=nullcontext)
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
    watch = SimpleNamespace(blaming=nullcontext)
    executor.engine = SimpleNamespace(members=members, watch=watch)  # type: ignore[assignment]
    executor.observer = Observer("")
    handle = Stream()
    held = ref(handle)
    _, event = executor.beside(lambda: None, [handle], None)
    del handle
    assert held() is not None
    assert device.side.waited_for == [device.main]
    del event
    assert held() is None


def test_numbers_wait_for_a_call_beside_others(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = object.__new__(Executor)
    executor.engine = SimpleNamespace(  # type: ignore[assignment]
        members=SimpleNamespace(device=torch.device("cuda", 0)), settle=lambda: None
    )
    executor.into = None
    seen: list[list[object]] = []
    executor.observer = Observer("")
    monkeypatch.setattr(
        executor_module, "shuffle_stats", lambda tally, _: seen.append([*device.main.waited_for])
    )
    executor.stats()
    executor.observer.stream = device.side
    executor.stats()
    assert seen == [[], [device.side]]
