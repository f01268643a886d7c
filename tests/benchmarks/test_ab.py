"""How two versions are compared: what is said of their times, and what the ranks expect."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import ab, ab_rank
from benchmarks.ab import Comparison, compare, markdown, problems, turns
from benchmarks.moe_cases import SHAPES


def test_neither_is_always_first() -> None:
    assert turns(3) == ["old", "new", "new", "old", "old", "new"]


@pytest.mark.parametrize(
    ("new", "difference"),
    [
        ((101.0, 99.0, 100.0), "within the spread"),
        ((103.0, 108.0, 104.0), "slower"),
        ((97.0, 90.0, 98.0), "faster"),
        ((102.0, 102.0, 102.0), "within the spread"),
    ],
)
def test_a_difference_is_told_from_the_spread(new: tuple[float, ...], difference: str) -> None:
    assert Comparison("uniform:8192", (98.5, 100.0, 102.0), new).difference == difference


def test_the_table() -> None:
    old = [{"a": 100.0, "b": 50.0}, {"a": 104.0, "b": 51.0}, {"a": 90.0, "b": 52.0}]
    new = [{"a": 110.0, "b": 50.0}, {"a": 120.0, "b": 52.0}, {"a": 109.0, "b": 51.0}]
    found = compare(old, new)
    assert markdown(found).splitlines()[2:] == [
        "| a | 100.0 (90.0–104.0) | 110.0 (109.0–120.0) | 1.100 | slower |",
        "| b | 51.0 (50.0–52.0) | 51.0 (50.0–52.0) | 1.000 | within the spread |",
    ]
    assert problems(found, None) == problems(found, 1.1) == []
    [said] = problems(found, 1.02)
    assert said == "a takes 1.100 times as long, more than 1.02"


def test_without_gpus_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(SystemExit, match="2 ranks need as many GPUs, and this machine has 1"):
        ab.main([str(tmp_path), str(tmp_path)])


@pytest.mark.parametrize(
    "wrong", ["uniform", "eager:uniform:8", "uniform:0", "unicorn:8", "graph0:uniform:8"]
)
def test_what_is_no_case(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ab.main(["old", "new", "--cases", wrong])
    assert "is no case such as" in capsys.readouterr().err


def test_another_version_runs_its_own_packages(tmp_path: Path) -> None:
    """Also where this one is installed, and beside modules with the names of others."""
    (tmp_path / "runtime" / "fuscoc_runtime").mkdir(parents=True)
    (tmp_path / "runtime" / "fuscoc_runtime" / "__init__.py").write_text("mark = 7")
    version = ab.Version(tmp_path, tmp_path / "artifact")
    version.run("-c", "import fuscoc_runtime; assert fuscoc_runtime.mark == 7")
    with pytest.raises(SystemExit, match="failed"):
        version.run("-c", "import traffic")


RANK = """
import json, os, sys
for line in sys.stdin:
    case = line.strip()
    if case == "skewed:8" and os.environ["RANK"] == "1":
        sys.exit(1)
    times = {case: 10.0 + len(sys.argv[1])}
    wrong = [f"{case}, rank {os.environ['RANK']}: off"] if case == "single:8" else []
    report = {"times": times, "wrong": wrong, "setup": "a GPU", "runtime": f"{os.getcwd()}/run"}
    print(json.dumps(report), flush=True)
"""
"""In the place of `ab_rank.py`: the longer the folder's name, the longer a case takes."""


@pytest.fixture
def checkouts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    monkeypatch.setattr(ab, "RANK_SCRIPT", script)
    for name in ("old", "newer"):
        (tmp_path / name / "build" / "ab" / "cuda").mkdir(parents=True)
    return [str(tmp_path / name) for name in ("old", "newer")]


def test_both_stand_and_take_turns(
    checkouts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ab.main([*checkouts, "--rounds", "2", "--cases", "uniform:8", "fp8:uniform:8"])
    said = capsys.readouterr().out
    turns = [line.split()[:2] for line in said.splitlines() if " µs" in line and "|" not in line]
    assert turns == [
        [name, case]
        for case in ("uniform:8", "fp8:uniform:8")
        for name in ("old:", "new:", "new:", "old:")
    ]


def test_what_is_wrong_or_slow_ends_in_an_error(checkouts: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        ab.main([*checkouts, "--cases", "single:8", "--limit", "1.01"])
    said = str(ended.value)
    assert "old: single:8, rank 0: off\nold: single:8, rank 1: off\nnew:" in said
    assert "single:8 takes 1.0" in said


def test_a_rank_that_ends_is_not_waited_for(checkouts: list[str]) -> None:
    with pytest.raises(SystemExit, match="old: a rank ended in skewed:8"):
        ab.main([*checkouts, "--cases", "skewed:8"])


def test_nodes_have_no_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ab.main(["old", "new", "--nodes", "2", "--cases", "graph:uniform:128"])
    assert "between nodes a case is" in capsys.readouterr().err
    assert ab.arguments(["old", "new", "--nodes", "2"]).cases == ["uniform:4096", "single:4096"]


def test_the_shape_is_the_one_that_is_compiled() -> None:
    model = SHAPES["deepseek-v3"]
    shape = (ab_rank.HIDDEN, ab_rank.EXPERTS, ab_rank.TOPK, ab_rank.ALIGN)
    assert shape == (model.hidden, model.experts, model.topk, model.align)


def test_own_slots() -> None:
    """Rank 1 of two has the keys from 128 on; each begins at a multiple of 128."""
    keys = torch.tensor([130, 5, 128, 130, 255, 130, 127, 128])
    slots, owned, points = ab_rank.own_slots(keys, rank=1, num_ranks=2)
    assert owned.tolist() == [128, 128, 130, 130, 130, 255]
    assert points.tolist() == [2, 7, 0, 3, 5, 4]
    assert slots.tolist() == [0, 1, 128, 129, 130, 256]
