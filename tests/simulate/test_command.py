"""``fuscoc simulate`` from the command line, and the record that it writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fuscoc.cli import app
from fuscoc.simulate.record import Record, RecordError, from_trace
from fuscoc_runtime.kernels.trace import Span, write_trace

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["simulate", str(EXAMPLES / "moe.fsc"), "--tokens", "64", "-D", "hidden=256"]


def simulate(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*SMALL, *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_everything_at_once(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    shown = simulate(
        "--cluster", "testbed-nics-2x2", "--against", "naive,deduplicated,fusco,fast", "--ablate",
        "--sweep", "tokens=32,64", "--json", str(path), "--layers", "58",
    )  # fmt: skip
    for words in ("Contenders", "Ablation", "Sweep", "Forecast for 58 layer(s)", "memory a rank"):
        assert words in shown
    record = Record.from_json(path.read_text())
    assert [run.contender for run in record.runs] == [
        "fuscoc", "naive", "deduplicated", "fusco", "fast",
    ]  # fmt: skip
    assert record.tokens == 64
    assert {row.without for row in record.ablation} == {"fused copies", "planner", "balancer"}
    assert [point.value for point in record.sweep] == [32.0] * 5 + [64.0] * 5
    # Unsent bytes are sent at both ends, and the sweep's last point is the run itself.
    for run, point in zip(record.runs, record.sweep[5:], strict=True):
        assert run.seconds == pytest.approx(point.seconds)
        assert run.traffic.rank_after is not None
        node = run.traffic.rank_after.reshape(2, 2, 2, 2).sum(axis=(1, 3))
        np.testing.assert_allclose(node, run.traffic.node_after)
    assert json.loads(record.to_json()) == json.loads(path.read_text())


def test_one_node() -> None:
    assert "fuscoc" in simulate(
        "--cluster", "gb200-nvl72", "-D", "experts=288", "--traffic", "zipf:1"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cluster", "h100"], "no cluster `h100`"),
        (["--against", "nccl"], "no contender `nccl`"),
        (["--sweep", "colour=3"], "cannot sweep `colour`"),
        (["--traffic", "odd"], "`odd` is neither"),
    ],
)
def test_what_does_not_fit_is_said(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, [*SMALL, *arguments])
    assert result.exit_code == 1
    assert words in result.output


@pytest.mark.parametrize("text", ["tokens", "tokens=", "tokens=a", "nic=0", "nic=-3"])
def test_sweeps_need_numbers(text: str) -> None:
    result = CliRunner().invoke(app, [*SMALL, "--sweep", text])
    assert result.exit_code == 2


def test_a_trace_becomes_a_record(tmp_path: Path) -> None:
    spans = [Span(1, "gather", "slice 0", 10.5, 11.0), Span(0, "wire 0", "slice 0", 10.0, 10.25)]
    write_trace(tmp_path / "trace.json", spans)
    record = from_trace(tmp_path / "trace.json")
    found = record.recorded
    assert record.source == "trace"
    assert found is not None
    told = zip(found.rank, found.lane, found.name, found.begin, found.end, strict=True)
    assert [(r, found.lanes[lane], found.names[n], b, e) for r, lane, n, b, e in told] == [
        (0, "wire 0", "slice 0", 0.0, 0.25), (1, "gather", "slice 0", 0.5, 1.0),
    ]  # fmt: skip
    again = Record.from_json(record.to_json())
    assert again.to_json() == record.to_json()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"traceEvents": 3}', '{"format": "x"}'])
def test_other_files_are_no_records(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(RecordError):
        Record.from_json(text)
    with pytest.raises(RecordError):
        from_trace(tmp_path / "file")


def test_another_version_is_refused() -> None:
    record = Record("", "trace", "", "", 0, None, ())
    text = replace(record).to_json().replace('"version": 1', '"version": 2')
    with pytest.raises(RecordError, match="version 2"):
        Record.from_json(text)
