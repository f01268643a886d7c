"""The mixture-of-experts example: its layer against f32 without a shuffle, and its training."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fuscoc
from tests.engine.pool import Pool
from tests.examples import layer_work
from tests.gpus import torchrun

EXAMPLES = Path(__file__).parents[2] / "examples"
SIZES = {"hidden": 256, "experts": 16, "topk": 4}


def test_layer_and_its_gradients(tmp_path: Path) -> None:
    artifact = fuscoc.compile(EXAMPLES / "moe_f32.fsc", tmp_path / "moe")
    processes = Pool(2)
    try:
        assert processes.run(layer_work.wrong, 2, str(artifact), 1e-6) == [[], []]
        # Nothing is right to the last bit of a gradient: the comparison compares.
        assert any(processes.run(layer_work.wrong, 2, str(artifact), 1e-9))
    finally:
        processes.close()


def test_training_is_that_of_plain_torch(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    command = [sys.executable, str(EXAMPLES / "moe_layer.py"), "--ranks", "2", "--steps", "4"]
    done = subprocess.run(
        [*command, "--tolerance", "1e-4", "--plot", "loss.png"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"largest difference of the losses over 4 steps: [\d.e-]+", done.stdout)
    assert (tmp_path / "loss.png").stat().st_size > 0


@pytest.mark.gpu
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_training_in_bf16_on_gpus(num_ranks: int, tmp_path: Path) -> None:
    """300 steps; the example itself compares every loss with plain torch's."""
    artifact = fuscoc.compile(EXAMPLES / "moe.fsc", tmp_path / "moe", **SIZES)
    sizes = [word for name, size in SIZES.items() for word in (f"--{name}", str(size))]
    printed = torchrun(
        num_ranks, "examples/moe_layer.py", "--device", "cuda", "--dtype", "bf16", *sizes,
        "--tokens", "256", "--artifact", artifact,
    )  # fmt: skip
    assert "largest difference of the losses over 300 steps" in printed
