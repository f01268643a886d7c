"""What ``docs/architecture.md`` says that an addition takes is enough."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ADDITIONS = ("hop_policy", "reduction", "slot_policy")
PROGRAM = f"""
from tests.additions import {", ".join(ADDITIONS)}
for addition in {", ".join(ADDITIONS)}:
    addition.main()
"""
"""All in one process, which imports the compiler and the runtime once, behind what they add."""


def test_additions() -> None:
    """They shuffle, and what comes of it is as the reference says."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    moved = [int(line.split()[0]) for line in ended.stdout.splitlines()]
    assert len(moved) == len(ADDITIONS)
    assert min(moved) > 0
