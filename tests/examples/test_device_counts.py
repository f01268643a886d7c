"""Consumers that stop where the device says that the rows end: the example compares them itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.gpus import ROOT


def run(environment: dict[str, str]) -> str:
    command = [sys.executable, "examples/device_counts.py"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_interpreted() -> None:
    printed = run({"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""})
    assert [line.partition(":")[0] for line in printed.splitlines()] == [
        "in_torch",
        "in_triton",
        "in_tiles",
    ]


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    assert "in_tiles" in run({})
