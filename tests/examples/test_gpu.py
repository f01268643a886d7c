"""Every example on real GPUs; each case is a torchrun of gpu_run.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.gpu_run import EXAMPLES, SMALL, compile_all
from tests.gpus import torchrun


def test_no_example_is_left_out() -> None:
    assert SMALL.keys() == {each.stem for each in EXAMPLES.glob("*.fsc")}


@pytest.mark.gpu
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_examples(num_ranks: int, tmp_path: Path) -> None:
    """With ``max_sources``, in graphs, and without: all verified, and hosts wait as they should."""
    compile_all(tmp_path)
    torchrun(num_ranks, "tests/examples/gpu_run.py", tmp_path, timeout=600)
