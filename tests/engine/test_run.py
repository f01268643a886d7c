"""``run``: starts ranks, verifies them, reports, and cleans up after failures."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from fuscoc_runtime import run as run_module
from fuscoc_runtime.__main__ import main
from fuscoc_runtime.demo.rank import PHASES
from fuscoc_runtime.errors import ArtifactError, OptionError, TopologyError
from fuscoc_runtime.run import RankDiedError, run
from fuscoc_runtime.topology import Topology
from tests.altered import digest_anew
from tests.engine import specs

PATIENCE_SECONDS = 120
FORKED = pytest.mark.usefixtures("forked_ranks")
IS_RANK_1 = "__import__('torch').distributed.get_rank() == 1"

T = TypeVar("T")


@FORKED
def test_report() -> None:
    report = run(
        specs.artifact(specs.routed("bf16")).path, ranks=4, nodes=2, tokens=8, device="cpu"
    )
    assert report.verified
    assert (report.shuffle, report.topology) == ("routed", Topology(2, 2))
    assert [rank.tokens for rank in report.ranks] == [8, 8, 8, 0]
    assert [rank.node for rank in report.ranks] == [0, 0, 1, 1]
    assert sum(rank.network.rows for rank in report.ranks) > 0
    assert sum(rank.nvlink.saved_bytes for rank in report.ranks) > 0
    assert all(rank.dispatch_ms > rank.planning_ms > 0 for rank in report.ranks)


@FORKED
def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(specs.artifact(specs.patches()).path)
    assert main(["run", path, "--ranks", "2", "--tokens", "3", "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("vit_patches on 1x2 (cpu)")
    assert shown.count("verified") == 2


@FORKED
def test_progress_and_awkward_data() -> None:
    phases: list[str] = []
    handler = signal.getsignal(signal.SIGTERM)
    report = run(
        specs.artifact(specs.routed("f32")).path,
        ranks=2,
        tokens=40,
        device="cpu",
        progress=phases.append,
    )
    assert [rank.problem for rank in report.ranks] == [None, None]
    assert phases == list(PHASES)
    assert signal.getsignal(signal.SIGTERM) == handler


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": -3}, r"`tokens` is -3; it must be 0 or more"),
        ({"timeout": float("inf")}, r"`timeout` is inf; it must be a positive number"),
        ({"device": "tpu"}, r"`device` is tpu; it must be cpu or cuda"),
        ({"device": "cuda", "ranks": 99}, r"`device` is cuda"),
    ],
)
def test_options_are_checked_before_anything_starts(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "start_ranks", None)
    with pytest.raises(OptionError, match=message):
        run(specs.artifact(specs.routed("f32")).path, **options)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.nightly)]
)
def test_no_worker_outlives_the_run(tmp_path: Path, number: signal.Signals) -> None:
    """Rank 1 never gets beyond loading its kernels when the run is killed."""
    line = f"import time\nif {IS_RANK_1}: time.sleep(600)"
    path = with_kernel_line(tmp_path, line)
    command = [sys.executable, "-m", "fuscoc_runtime", "run", str(path), "--device", "cpu"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    before = set(tmp_path.iterdir())
    process = subprocess.Popen([*command, "--ranks", "2"], env=environment)
    try:
        workers = wait_for(lambda: descendants(process.pid), lambda found: len(found) == 3)
        # Each has by now asked to end with its parent, or will find that it has ended.
        process.send_signal(number)
        code = process.wait(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
    assert code == (128 + number if number == signal.SIGTERM else -number)
    wait_for(lambda: [pid for pid in workers if is_running(pid)], lambda left: not left)
    assert {path for path in tmp_path.iterdir() if path not in before} == set()


def wait_for(look: Callable[[], T], ready: Callable[[T], bool]) -> T:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not ready(found := look()):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def descendants(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    children = [int(child) for child in text.split()]
    return [*children, *(each for child in children for each in descendants(child))]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_command_line_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tmp_path)]) == 1
    assert "not an artifact" in capsys.readouterr().err


def test_a_trace_that_cannot_be_written_is_an_error_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_module, "start_ranks", None)
    artifact, trace = specs.artifact(specs.routed("f32")).path, tmp_path / "none" / "trace.json"
    assert main(["run", str(artifact), "--device", "cpu", "--trace", str(trace)]) == 1
    assert "No such file or directory" in capsys.readouterr().err


def with_kernel_line(tmp_path: Path, line: str) -> Path:
    """A copy of an artifact whose kernel module runs ``line`` when it is loaded."""
    copy = shutil.copytree(specs.artifact(specs.routed("f32")).path, tmp_path / "copy")
    [kernels] = (each for each in (copy / "kernels").glob("*.py") if ".node" not in each.name)
    kernels.write_text(kernels.read_text() + f"\n{line}\n")
    digest_anew(copy)
    return copy


@FORKED
def test_a_dead_rank_is_named_and_the_others_end(tmp_path: Path) -> None:
    line = f"import os\nif {IS_RANK_1}: os.kill(os.getpid(), 9)"
    with pytest.raises(RankDiedError, match=r"(?s)rank 1 ended with SIGKILL"):
        run(with_kernel_line(tmp_path, line), ranks=3, device="cpu", timeout=PATIENCE_SECONDS)


@FORKED
def test_a_failing_rank_is_shown(tmp_path: Path) -> None:
    line = f"if {IS_RANK_1}: raise KeyError('broken kernel')"
    with pytest.raises(RankDiedError, match=r"(?s)rank 1 failed:.*broken kernel"):
        run(with_kernel_line(tmp_path, line), ranks=2, device="cpu", timeout=PATIENCE_SECONDS)


@FORKED
def test_common_errors_keep_their_type(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        run(tmp_path)
    with pytest.raises(TopologyError, match="3 ranks cannot be split evenly over 2 nodes"):
        run(specs.artifact(specs.routed("f32")).path, ranks=3, nodes=2)
    # Only the ranks find out.
    with pytest.raises(TopologyError, match="11 keys, which 2 ranks"):
        run(specs.artifact(specs.routed("f32", keys=11)).path, ranks=2, device="cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("text", [specs.routed("bf16"), specs.patches(), specs.MOVED])
def test_gpus(text: str, nodes: int) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs 2 CUDA devices, found {torch.cuda.device_count()}")
    ranks = 4 if torch.cuda.device_count() >= 4 else 2
    report = run(specs.artifact(text).path, ranks=ranks, nodes=nodes, tokens=64, device="cuda")
    assert [rank.problem for rank in report.ranks] == [None] * ranks
