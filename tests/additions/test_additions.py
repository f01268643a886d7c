"""What ``docs/architecture.md`` says that an addition takes is enough."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("addition", ["hop_policy", "reduction", "slot_policy"])
def test_an_addition(addition: str) -> None:
    """It shuffles, and what comes of it is as the reference says."""
    ended = subprocess.run(
        [sys.executable, "-m", f"tests.additions.{addition}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    moved, *_ = ended.stdout.split()
    assert int(moved) > 0
