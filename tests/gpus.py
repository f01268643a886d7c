"""Scripts under torchrun, a GPU for each rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]


def torchrun(num_ranks: int, script: str, *arguments: str | Path, timeout: int = 280) -> str:
    """What a script printed; it lies at ``script`` below the root. Skips where GPUs are missing."""
    if torch.cuda.device_count() < num_ranks:
        pytest.skip(f"needs {num_ranks} GPUs, found {torch.cuda.device_count()}")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(num_ranks), script, *map(str, arguments),
    ]  # fmt: skip
    path = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, timeout=timeout,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout
