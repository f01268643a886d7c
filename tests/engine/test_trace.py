"""Traces: what is collected, what Perfetto is given, and how much of the time is idle."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.engine.trace import Span, Tracer, write_trace
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.run import run
from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.engine.lockstep import round_trip

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


def test_run_writes_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    run(specs.artifact(TEXT).path, ranks=2, nodes=2, tokens=3, device="cpu", trace=path)
    events = json.loads(path.read_text())["traceEvents"]
    assert {e["pid"] for e in events if e["ph"] == "X" and e["name"] == "stage 0"} == {0, 1}
