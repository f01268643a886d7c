"""``Shuffle`` over compiled CUDA kernels on real GPUs; each case is a torchrun of face_run.py."""

from __future__ import annotations

from pathlib import Path

import pytest

import fuscoc
from benchmarks.moe_cases import spec
from tests.cuda.face_run import MOE
from tests.gpus import ROOT, torchrun


@pytest.mark.gpu(can_share=True)
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_face(num_ranks: int, tmp_path: Path) -> None:
    moe = fuscoc.compile(spec(MOE), tmp_path / "moe")
    quantised = fuscoc.compile(ROOT / "tests" / "cuda" / "quantised.fsc", tmp_path / "quantised")
    torchrun(num_ranks, "tests/cuda/face_run.py", moe, quantised)
