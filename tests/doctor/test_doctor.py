"""This machine, looked at; and processes that hang, crash or talk."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest
import torch
from jsonschema import Draft202012Validator

from fuscoc.cli import main
from fuscoc_runtime.__main__ import main as runtime_main
from fuscoc_runtime.doctor import probes, report
from fuscoc_runtime.doctor.abilities import Ability
from fuscoc_runtime.doctor.children import run_python
from fuscoc_runtime.doctor.nccl import read_log
from fuscoc_runtime.doctor.report import Report, examine
from fuscoc_runtime.doctor.words import ABILITIES, sections

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "doctor.schema.json").read_text())


@pytest.fixture(scope="module")
def here() -> Report:
    return examine()


def test_this_machine(here: Report) -> None:
    """Whatever ran the tests before this one can be run: they would not have come here."""
    found = json.loads(here.as_json())
    Draft202012Validator(SCHEMA).validate(found)
    assert found["versions"]["torch"] == torch.__version__
    assert found["torch"]["cuda"] == torch.version.cuda
    assert len(found["gpus"]["devices"]) == torch.cuda.device_count()
    assert found["memory"]["shared_bytes"] == shutil.disk_usage("/dev/shm").total
    assert here.abilities["compile"].state == here.abilities["cpu_ranks"].state == "ready"
    assert set(here.abilities) == set(ABILITIES)


def test_a_machine_where_nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every probe is cut off; the report still is one, and says so everywhere."""
    found = examine(seconds=0.0)
    Draft202012Validator(SCHEMA).validate(json.loads(found.as_json()))
    assert not found.healthy
    assert {each.state for each in found.abilities.values()} == {"broken"}
    assert "no answer within 0 s" in str(sections(found))


def test_both_commands_show_all_of_it(
    here: Report, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "examine", lambda *, nccl: here)
    monkeypatch.setattr(sys, "argv", ["fuscoc", "doctor"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == int(not here.healthy)
    shown = capsys.readouterr().out
    assert runtime_main(["doctor"]) == int(not here.healthy)
    plain = capsys.readouterr().out
    for section in sections(here):
        assert section.title in shown
        for name, text in section.rows:
            assert name in shown
            assert f"{name} " in plain
            assert text in plain
    assert runtime_main(["doctor", "--json"]) == int(not here.healthy)
    assert capsys.readouterr().out == here.as_json() + "\n"


def test_what_is_broken_is_the_exit_code(here: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {**here.abilities, "network": Ability("broken", ("no cable",))}
    monkeypatch.setattr(report, "examine", lambda *, nccl: Report(here.document, broken))
    assert runtime_main(["doctor"]) == 1
    failed = {**here.document, "nccl_jobs": {"inside_a_node": {"problem": "it hangs"}}}
    assert not Report(failed, here.abilities).healthy


def test_processes_that_hang_crash_or_talk(tmp_path: Path) -> None:
    grandchild = tmp_path / "grandchild"
    hangs = f"""
import pathlib, subprocess, time
child = subprocess.Popen(["sleep", "100"])
pathlib.Path({str(grandchild)!r}).write_text(str(child.pid))
time.sleep(100)
"""
    texts = ["print('well')", "import os; os.abort()", "import sys; sys.exit('badly')", hangs]
    outcomes = run_python([["-c", text] for text in texts], [dict(os.environ)] * 4, 3.0)
    assert (outcomes[0].output, outcomes[0].problem) == ("well\n", None)
    assert outcomes[1].problem == "it ended with SIGABRT"
    assert outcomes[2].problem == "it ended with exit code 1: badly"
    assert outcomes[3].problem == "no answer within 3 s"
    state = Path(f"/proc/{grandchild.read_text()}/stat")
    deadline = time.monotonic() + 10
    while state.exists() and ") Z " not in state.read_text():
        assert time.monotonic() < deadline, "what a process has started outlasts it"


def test_whose_cache_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSCOC_CACHE_DIR", str(tmp_path / "cache"))
    assert probes.cache() == {
        "path": str(tmp_path / "cache"), "num_files": 0, "num_bytes": 0, "problem": None
    }  # fmt: skip
    (tmp_path / "cache" / "native").mkdir(parents=True, mode=0o700)
    (tmp_path / "cache" / "native" / "plan.so").write_bytes(b"1234")
    found = probes.cache()
    assert (found["num_files"], found["num_bytes"], found["problem"]) == (1, 4, None)
    (tmp_path / "cache" / "native").chmod(0o777)
    assert "native may be written by others" in probes.cache()["problem"]


@pytest.mark.parametrize(
    ("command", "problem"),
    [("/nowhere/cc", "nowhere"), ("false", "false failed"), ("true", "probed.so")],
)
def test_c_compilers_that_do_not_compile(
    command: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", command)
    with pytest.raises((OSError, RuntimeError), match=problem):
        probes.c_compiler()


def test_what_nccl_says() -> None:
    log = """
host:1:9 [0] NCCL INFO NET/IB : No device found.
host:1:9 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.2<0>
host:1:9 [0] NCCL INFO Using network Socket
host:1:9 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0
host:1:9 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/Socket/0
host:1:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
host:1:9 [0] NCCL INFO 24 coll channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer
"""
    assert read_log(log) == {
        "transports": ["NET/Socket/0", "P2P/CUMEM"],
        "num_collective_channels": 24,
        "num_p2p_channels": 32,
        "network": "Socket",
    }
    assert read_log("")["num_p2p_channels"] is None


@pytest.mark.gpu
def test_nccl_between_two_gpus() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs 2 GPUs, found {torch.cuda.device_count()}")
    found = examine(nccl=True)
    Draft202012Validator(SCHEMA).validate(json.loads(found.as_json()))
    jobs = found.document["nccl_jobs"]
    assert [each["problem"] for each in jobs.values()] == [None, None]
    assert all(each["transports"] for each in jobs.values())
    assert jobs["between_nodes"]["network"] is not None
