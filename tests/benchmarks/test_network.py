"""What the benchmark of nodes compares, on the CPU, where there is nothing to time by."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import network_ways
from benchmarks.network_report import SHOWN, header, markdown
from benchmarks.network_ways import CONTENDERS, NCCL, PERMUTES
from tests.benchmarks import network_work
from tests.benchmarks.network_work import MODEL
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool

pool = pool_of(4)
CAPTURED = "fixed capacity, captured"
SOME = ("fixed capacity", CAPTURED, "policies, plan for free", PERMUTES, *NCCL)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("network")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(network_ways, "ARTIFACTS", folder)
        paths = network_ways.compile_all(MODEL)
    assert all(path.exists() for path in paths)
    assert {network_ways.artifact(way.options).name for way in network_ways.WAYS.values()} == {
        path.name for path in paths[:-1]
    }
    return str(folder)


@pytest.mark.parametrize(
    ("topology", "names"),
    [
        ("2x2", SOME),
        pytest.param("2x2", CONTENDERS, marks=pytest.mark.nightly),
        pytest.param("4x1", CONTENDERS, marks=pytest.mark.nightly),
    ],
    ids=["some", "all", "all, 4x1"],
)
def test_everybody_brings_the_same_rows(
    pool: Pool, artifacts: str, topology: str, names: tuple[str, ...]
) -> None:
    """And a bound that is the best of the raw wires."""
    found = pool.run(network_work.case, 4, artifacts, topology, ["--contenders", *names], "")
    for report, skipped in found:
        assert set(skipped) == {CAPTURED}
        assert [entry["contender"] for entry in report] == [
            "bound",
            "raw wire",
            "raw wire, in slices",
            "raw wire, 2 communicators",
            *(name for name in names if name != CAPTURED),
        ]
        assert not any(entry["wrong"] for entry in report)
        assert [entry["beyond"] for entry in report] == [0, *range(len(report) - 1)]
        by_name = {entry["contender"]: entry for entry in report}
        fixed = by_name["fixed capacity"]
        assert fixed["x bound"] == 1.3
        assert 0 < fixed["window MB"] <= fixed["MB"]
        assert by_name["naive NCCL"]["window MB"] is None


def test_who_is_wrong_is_named(pool: Pool, artifacts: str) -> None:
    words = ["--contenders", "fixed capacity", "exact sizes"]
    for report, _ in pool.run(network_work.case, 4, artifacts, "2x2", words, "fixed capacity"):
        wrong = {entry["contender"] for entry in report if entry["wrong"]}
        assert wrong == {"fixed capacity"}
        case = {"routing": "imbalanced", "num_tokens": 4}
        table = markdown([case | entry for entry in report]).splitlines()
        cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
        titles = [cell.strip() for cell in header().splitlines()[0].split("|")[1:-1]]
        assert {len(line) for line in cells} == {len(titles)} == {len(SHOWN) + 4}
        said = {line[2]: line[-1] for line in cells}
        assert "rows are wrong" in said["fixed capacity"]
        assert (said["exact sizes"], said["raw wire"]) == ("yes", "")


def test_ranks_need_no_compiler() -> None:
    """Artifacts are compiled where there may be no GPU, and timed where there may be no MLIR."""
    root = Path(__file__).parents[2]
    program = (
        "import sys\n"
        "for name in ('fuscoc', 'lark', 'torch_mlir'):\n"
        "    sys.modules[name] = None\n"
        "import benchmarks.network\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True, timeout=60)
