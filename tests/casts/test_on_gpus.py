"""Casts by the CUDA kernels on real GPUs; each case is a torchrun of gpu_run.py."""

from __future__ import annotations

from pathlib import Path

import pytest

import fuscoc
from tests.gpus import ROOT, torchrun


@pytest.mark.gpu(can_share=True)
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_casts(num_ranks: int, tmp_path: Path) -> None:
    artifact = fuscoc.compile(ROOT / "examples" / "moe_fp8.fsc", tmp_path / "moe_fp8")
    torchrun(num_ranks, "tests/casts/gpu_run.py", artifact)
