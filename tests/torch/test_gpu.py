"""The PyTorch face on real GPUs: a torchrun of gpu_run.py, and the overlap example."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fuscoc
from tests.gpus import ROOT, torchrun


@pytest.mark.gpu(can_share=True)
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_face(num_ranks: int, tmp_path: Path) -> None:
    """Gradients, torch.compile, CUDA graphs, no wait on the host, streams and pools."""
    moe = fuscoc.compile(ROOT / "examples/moe.fsc", tmp_path / "moe", hidden=2048, experts=64)
    assert "the face holds" in torchrun(num_ranks, "tests/torch/gpu_run.py", moe)


@pytest.mark.gpu(num_ranks=2, can_share=True)
@pytest.mark.parametrize("topology", ["1x2", "2x1"])
def test_traces(topology: str, tmp_path: Path) -> None:
    """Every kernel that runs is a span, by every engine."""
    text = (ROOT / "examples/moe.fsc").read_text()
    by_triton = tmp_path / "moe.fsc"
    by_triton.write_text(text.replace("dedup(node, rank)", "dedup(node, rank) backend triton"))
    for name, spec in (("auto", ROOT / "examples/moe.fsc"), ("triton", by_triton)):
        fuscoc.compile(spec, tmp_path / name, hidden=2048, experts=64)
    script = "tests/torch/trace_gpu_run.py"
    assert "the traces hold" in torchrun(2, script, tmp_path, "--topology", topology)


@pytest.mark.gpu(num_ranks=2)
def test_overlap(tmp_path: Path) -> None:
    moe = fuscoc.compile(ROOT / "examples/moe.fsc", tmp_path / "moe")
    printed = torchrun(2, "examples/overlap.py", moe)
    assert len(re.findall(r"together .* of the shorter is hidden", printed)) == 2


def test_overlap_without_gpus(tmp_path: Path) -> None:
    """The calls of the example, one rank on the CPU."""
    environment = {"FUSCOC_CACHE_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
    done = subprocess.run(
        [sys.executable, "examples/overlap.py"], cwd=ROOT, env=os.environ | environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "nothing to hide on a CPU" in done.stdout
