"""What ``docs/architecture.md`` says that an addition takes is enough."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_hop_policy() -> None:
    """The word, and the planner's rule."""
    ended = subprocess.run(
        [sys.executable, "tests/additions/hop_policy.py"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    rows, *_ = ended.stdout.split()
    assert int(rows) > 0
