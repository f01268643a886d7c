"""Dense targets through the CUDA kernels on real GPUs; each case is a torchrun of dense_run.py."""

from __future__ import annotations

from pathlib import Path

import pytest

import fuscoc
from tests.cuda.dense_cases import compile_cases
from tests.cuda.results_run import HEADS, TOKENS, WIDTH
from tests.gpus import ROOT, torchrun


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiled = tmp_path_factory.mktemp("dense")
    compile_cases(compiled)
    return compiled


@pytest.mark.gpu(can_share=True)
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize(
    "options", [[], ["--lends"], ["--stress", "5000"], ["--face"]], ids=" ".join
)
def test_dense(options: list[str], num_ranks: int, folder: Path) -> None:
    torchrun(num_ranks, "tests/cuda/dense_run.py", folder, *options, timeout=600)


@pytest.mark.gpu(can_share=True)
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_results_that_are_kept(num_ranks: int, tmp_path: Path) -> None:
    sizes = {"tokens": TOKENS, "heads": HEADS, "width": WIDTH}
    ulysses = fuscoc.compile(ROOT / "examples" / "ulysses.fsc", tmp_path / "ulysses", **sizes)
    torchrun(num_ranks, "tests/cuda/results_run.py", ulysses)


@pytest.mark.gpu(can_share=True)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_kernels_of_an_older_gpu(num_ranks: int, folder: Path) -> None:
    """Without bulk copies."""
    older = {"FUSCOC_CUDA_ARCH": "sm_80"}
    torchrun(num_ranks, "tests/cuda/dense_run.py", folder, timeout=600, environment=older)
