"""Compact targets of fixed capacity on real GPUs, by both kinds of kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

import fuscoc
from benchmarks.moe_cases import spec
from tests.cuda.compact_run import MODEL
from tests.gpus import torchrun


@pytest.mark.gpu(can_share=True)
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_compact(num_ranks: int, tmp_path: Path) -> None:
    artifacts = [
        fuscoc.compile(spec(MODEL, backend), tmp_path / backend) for backend in ("cuda", "triton")
    ]
    torchrun(num_ranks, "tests/cuda/compact_run.py", *artifacts)
