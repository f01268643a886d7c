"""Scripts under torchrun, a GPU for each rank."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]


def need_gpus(num_ranks: int, can_share: bool = False) -> None:
    """Skip where there are fewer, or none for ranks that ``can_share``; before anything costly."""
    count = 1 if can_share else num_ranks
    if torch.cuda.device_count() < count:
        pytest.skip(f"needs {count} GPUs, found {torch.cuda.device_count()}")


def share_of(num_ranks: int) -> dict[str, str]:
    """What lets ranks that share a GPU under MPS have SMs of their own, and see no others."""
    sharing = -(-num_ranks // torch.cuda.device_count())
    return {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(100 // sharing)}


def torchrun(
    num_ranks: int,
    script: str,
    *arguments: str | Path,
    timeout: int = 280,
    under: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> str:
    """What a script printed; it lies at ``script`` below the root.

    Every rank's Python runs ``under`` a command, if one is given.
    """
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(num_ranks), "--no-python", *under, sys.executable,
        script, *map(str, arguments),
    ]  # fmt: skip
    variables = os.environ | share_of(num_ranks) | dict(environment or {})
    done = subprocess.run(
        command, cwd=ROOT, env=variables, timeout=timeout, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout
