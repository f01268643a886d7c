"""``pytest moe.fsc``: specs are collected, tested and explained."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import run_program
from tests.testing import broken

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys, pytest
sys.exit(int(pytest.main(["-p", "fuscoc.testing.pytest_plugin", *sys.argv[1:]])))
"""


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with the plugin, and no other, in a directory of its own.

    Autoloading would register it a second time where the package is installed.
    """
    program = directory / "program.py"
    program.write_text(PROGRAM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        return run_program(program, *arguments, folder=directory)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "rows.fsc").write_text(broken.TEXT)
    (tmp_path / "specs" / "other.fsc").write_text("no spec")
    (tmp_path / "pytest.ini").write_text("[pytest]\nfuscoc_specs = specs/r*.fsc\n")
    return tmp_path


def test_specs_that_match_the_patterns_are_tested(directory: Path) -> None:
    done = run(directory, "--fuscoc-examples=10", "-v")
    assert done.returncode == 0, done.stdout
    assert "rows.fsc::rows::plan PASSED" in done.stdout
    assert "rows.fsc::rows::execution PASSED" in done.stdout
    assert "2 passed" in done.stdout


def test_a_failure_is_explained_without_a_traceback(directory: Path) -> None:
    conftest = "import fuscoc.testing.planning as planning\n" + (
        "from tests.testing.test_runner import wrong_slot\nplanning.plan_all = wrong_slot\n"
    )
    (directory / "conftest.py").write_text(conftest)
    done = run(directory, "specs/rows.fsc", "-k", "plan", "--fuscoc-seed=1")
    assert done.returncode == 1
    assert "rows: plan fails on 1x1 (nodes x ranks per node)" in done.stdout
    assert "direct[1] on rank 0 (NVLink hop)" in done.stdout
    assert "Traceback" not in done.stdout


def test_the_plugin_is_light(directory: Path) -> None:
    code = "import fuscoc.testing.pytest_plugin, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not {"torch", "hypothesis", "numpy", "fuscoc_runtime"} & set(done.stdout.split())
