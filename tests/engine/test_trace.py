"""Traces: what is collected, what Perfetto is given, and how much of the time is idle."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import pytest
import torch

from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.kernels import trace
from fuscoc_runtime.kernels.commands import Launch
from fuscoc_runtime.kernels.marks import Marks
from fuscoc_runtime.kernels.trace import CAPTURED, Span, Tracer, write_trace
from fuscoc_runtime.kernels.traced import MarkedList, TracedList
from fuscoc_runtime.run import run
from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.engine.lockstep import round_trip
from tests.engine.test_commands import STREAM, Recorded, beside_a_list, made

TEXT = specs.routed("f32")


def test_nothing_is_collected_unasked() -> None:
    tracer = Tracer(0, torch.device("cpu"), enabled=False)
    with tracer.span("plan", "all"):
        pass
    tracer.settle()
    assert not tracer.spans


def test_a_file_for_perfetto(tmp_path: Path) -> None:
    spans = [Span(1, "plan", "b", 10.5, 11.0), Span(0, "wire 0", "a", 10.0, 10.25)]
    write_trace(tmp_path / "trace.json", spans)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    shown = [(e["pid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert shown == [(0, "a", 0.0, 250000.0), (1, "b", 500000.0, 500000.0)]
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    named = [lanes[e["pid"], e["tid"]] for e in events if e["ph"] == "X"]
    assert named == ["wire 0", "plan"]


def test_bytes_that_travel(tmp_path: Path) -> None:
    spans = [Span(0, "wire 0", "a", 1.0, 2.0, 24), Span(0, "host", "b", 1.0, 2.0)]
    write_trace(tmp_path / "trace.json", spans)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [e.get("args") for e in events if e["ph"] == "X"] == [{"bytes": 24}, None]


class Clock(Marks):
    """A GPU on which a second passes with every event that is recorded; events behind ``now`` have
    not passed. What is recorded by C is told by `recorded`."""

    def __init__(self) -> None:
        self.made, self.at, self._free = 0, dict[int, float](), list[int]()
        self.until = float("inf")

    def new(self) -> int:
        if self._free:
            return self._free.pop()
        self.made += 1
        return self.made

    def recorded(self, event: int) -> None:
        self.at[event] = float(len(self.at)) if event not in self.at else max(self.at.values()) + 1

    def record(self, stream: int) -> int:
        self.recorded(event := self.new())
        return event

    def now(self) -> int:
        return self.record(0)

    def wait(self, event: int) -> None:
        assert self.has_passed(event), "waits for what does not pass"

    def has_passed(self, event: int) -> bool:
        return self.at[event] <= self.until

    def seconds(self, one: int, other: int) -> float:
        return self.at[other] - self.at[one]


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> tuple[Tracer, Clock]:
    """A tracer of a GPU that is none."""
    for name in ("range_push", "range_pop"):
        monkeypatch.setattr(torch.cuda.nvtx, name, lambda *_: None)
    monkeypatch.setattr(Tracer, "is_captured", lambda self: False)
    clock = Clock()
    monkeypatch.setattr(trace, "marks_of", lambda device: clock)
    return Tracer(0, torch.device("cuda", 0), enabled=True), clock


def durations(spans: list[Span]) -> list[tuple[str, str, float]]:
    return [(s.lane, s.name, round(s.end - s.begin, 6)) for s in spans if s.lane != "host"]


def test_a_list_of_a_gpu(on_gpu: tuple[Tracer, Clock]) -> None:
    """Every command with work is a span, exchanges with what this rank sends, the host's part is
    one, too; and again with the events of the first call."""
    tracer, clock = on_gpu
    commands, taken, whole = beside_a_list()
    driver = Recorded(taken)
    listed = TracedList(torch.device("cpu"), commands, (), tracer)
    for each in commands:
        if isinstance(each, Launch):
            each.kernel.spec.name = f"kernel {each.programs}"
    listed._marked = MarkedList(commands, listed.names, driver.calls)
    before = None
    for _ in range(2):
        driver.notes.clear()
        numbers = listed.numbers({"a": 5, "b.x": 0, "c": 2})
        numbers[0] = STREAM
        listed.submit(numbers)
        for note in driver.notes:
            if note[0] == "record" and note[1] not in (21, 22):
                clock.recorded(note[1])
        begun = len(tracer.spans)
        tracer.settle()
        assert [note[0] for note in driver.notes] == [note[0] for note in whole]
        found = tracer.spans[begun - 1 :]
        assert durations(found) == [
            ("stream 0", "kernel c", 1.0),
            ("wire 0", "exchange 0", 1.0),
            ("wire 1", "exchange 1", 1.0),
            ("stream 0", "kernel c", 1.0),
        ]
        assert [s.num_bytes for s in found if s.lane != "host"] == [None, 5, 16, None]
        assert [s.name for s in found if s.lane == "host"] == ["enqueue"]
        assert before in (None, clock.made)
        before = clock.made


def test_what_has_not_ended_waits(on_gpu: tuple[Tracer, Clock]) -> None:
    """Where nobody waits for it, as behind a rank that is lost."""
    tracer, clock = on_gpu
    for name in ("a", "b"):
        with tracer.launch(name, stream=3):
            pass
    clock.until = 1
    tracer.settle(waits=False)
    assert durations(tracer.spans) == [("stream 0", "a", 1.0)]
    clock.until = float("inf")
    tracer.settle()
    assert durations(tracer.spans) == [("stream 0", "a", 1.0), ("stream 0", "b", 1.0)]


def test_what_a_graph_captures_is_left_out(
    on_gpu: tuple[Tracer, Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note says so, once for all that is captured."""
    tracer, clock = on_gpu
    monkeypatch.setattr(Tracer, "is_captured", lambda self: True)
    monkeypatch.setattr(Tracer, "current_stream", lambda self: STREAM)
    driver = Recorded({0x1000: 1})
    commands, _ = made([(["a"], "c", True)], ctypes.c_int64(), [])
    listed = TracedList(torch.device("cpu"), commands, (), tracer)
    listed._calls = driver.calls
    listed._marked = MarkedList(commands, listed.names, driver.calls)
    for _ in range(2):
        listed.submit(listed.numbers({"a": 5, "c": 2}))
        with tracer.launch("a kernel", STREAM):
            pass
    assert [note[0] for note in driver.notes] == ["launch"] * 2
    tracer.settle()
    assert [(s.lane, s.name) for s in tracer.spans] == [("host", CAPTURED)]
    assert not clock.at


def test_every_step_of_every_rank_is_there() -> None:
    shuffle = LockstepShuffle(specs.artifact(TEXT), topology=Topology(3, 2))
    for machine in shuffle.machines:
        machine.tracer.enabled = True
    dispatched = round_trip(shuffle, generate(shuffle.spec, shuffle.topology, 6, 0))
    for machine, each in zip(shuffle.machines, dispatched, strict=True):
        machine.tracer.settle()
        stages = [f"stage {number}" for number in range(each.handle.plan.wire.num_stages)]
        assert len(stages) > 1
        by_begin = sorted(machine.tracer.spans, key=lambda span: span.begin)
        assert [s.name for s in by_begin if s.lane == "wire"] == 2 * stages  # there, and back
        lanes = list(dict.fromkeys(span.lane for span in by_begin))
        assert lanes == [
            "plan", "net send", "wire", "direct", "forward", "local",
            "reduce forward", "reduce node", "reduce direct", "reduce source",
        ]  # fmt: skip
        assert all(s.begin <= s.end for s in by_begin)


@pytest.mark.usefixtures("forked_ranks")
def test_run_writes_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    run(specs.artifact(TEXT).path, ranks=2, nodes=2, tokens=3, device="cpu", trace=path)
    events = json.loads(path.read_text())["traceEvents"]
    assert {e["pid"] for e in events if e["ph"] == "X" and e["name"] == "stage 0"} == {0, 1}
