"""``Shuffle`` over compiled CUDA kernels on real GPUs; each case is a torchrun of face_run.py."""

from __future__ import annotations

from pathlib import Path

import pytest

import fuscoc
from tests.gpus import ROOT, torchrun


@pytest.mark.gpu
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_face(num_ranks: int, tmp_path: Path) -> None:
    artifacts = [
        fuscoc.compile(ROOT / spec, tmp_path / Path(spec).stem)
        for spec in ("examples/moe.fsc", "tests/cuda/quantised.fsc")
    ]
    torchrun(num_ranks, "tests/cuda/face_run.py", *artifacts)
