"""The Triton kernels of one node on real GPUs; each case is a torchrun of gpu_run.py."""

from __future__ import annotations

from pathlib import Path

import pytest

import fuscoc
from tests.cuda.results_run import HEADS, TOKENS, WIDTH
from tests.gpus import ROOT, torchrun
from tests.node_triton import given_specs
from tests.node_triton.models import compile_all


@pytest.mark.gpu(can_share=True)
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_models(num_ranks: int, tmp_path: Path) -> None:
    torchrun(num_ranks, "tests/node_triton/gpu_run.py", *compile_all(tmp_path))


@pytest.mark.gpu(can_share=True)
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_given_slots(num_ranks: int, tmp_path: Path) -> None:
    artifacts = given_specs.compile_all(tmp_path)
    torchrun(num_ranks, "tests/node_triton/given_gpu_run.py", *artifacts, timeout=600)


@pytest.mark.gpu(can_share=True)
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_results_that_are_kept(num_ranks: int, tmp_path: Path) -> None:
    """As of CUDA's kernels."""
    text = (ROOT / "examples" / "ulysses.fsc").read_text(encoding="utf-8")
    sizes = {"tokens": TOKENS, "heads": HEADS, "width": WIDTH}
    ulysses = fuscoc.compile(given_specs.by_triton(text), tmp_path / "ulysses", **sizes)
    torchrun(num_ranks, "tests/cuda/results_run.py", ulysses)
