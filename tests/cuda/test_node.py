"""The node-local engine on real GPUs; each case is a torchrun of a script here."""

from __future__ import annotations

import pytest

from tests.gpus import torchrun


@pytest.mark.gpu(can_share=True)
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("script", ["node_run.py", "stress_run.py", "short_run.py"])
def test_node(script: str, num_ranks: int) -> None:
    torchrun(num_ranks, f"tests/cuda/{script}", timeout=300)


@pytest.mark.gpu(can_share=True)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_kernels_of_an_older_gpu(num_ranks: int) -> None:
    """Without bulk copies and with the tiles of less shared memory."""
    older = {"FUSCOC_CUDA_ARCH": "sm_80"}
    torchrun(num_ranks, "tests/cuda/node_run.py", timeout=300, environment=older)
