"""Calls between nodes on real GPUs; each case is a torchrun."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpus import need_gpus, torchrun
from tests.node_exact import models as exact
from tests.rails import exact_gpu_run, exact_pieces_gpu_run, given_gpu_run
from tests.rails.models import compile_all


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("topology", "options"),
    [("2x1", []), ("2x1", ["--one-host"]), ("2x2", []), ("2x2", ["--one-host"])],
    ids=["2x1", "2x1 on one host", "2x2", "2x2 on one host"],
)
def test_models(topology: str, options: list[str], tmp_path: Path) -> None:
    num_ranks = 2 if topology == "2x1" else 4
    options = ["--topology", topology, *options]
    torchrun(num_ranks, "tests/rails/gpu_run.py", *options, *compile_all(tmp_path))


@pytest.mark.gpu
@pytest.mark.parametrize("options", [[], ["--one-host"]], ids=["2x1", "2x1 on one host"])
def test_given_slots(options: list[str], tmp_path: Path) -> None:
    need_gpus(2)
    given_gpu_run.compile_all(tmp_path)
    options = [str(tmp_path), "--topology", "2x1", *options]
    torchrun(2, "tests/rails/given_gpu_run.py", *options)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("topology", "policy"), [("2x2", "balance rebalance"), ("4x1", "balance none schedule fast")]
)
def test_policies(topology: str, policy: str, tmp_path: Path) -> None:
    """Of exact sizes, by rows that travel as flows."""
    need_gpus(4)
    exact.compile_all(tmp_path, policy)
    options = [str(tmp_path), "--topology", topology]
    torchrun(4, "tests/node_exact/exact_gpu_run.py", *options)


@pytest.mark.gpu
@pytest.mark.parametrize("options", [[], ["--one-host"]], ids=["2x1", "2x1 on one host"])
def test_exact_sizes(options: list[str], tmp_path: Path) -> None:
    """Where one node may refuse a call for all, and replies."""
    need_gpus(2)
    exact_gpu_run.compile_all(tmp_path)
    options = [str(tmp_path), "--topology", "2x1", *options]
    torchrun(2, "tests/rails/exact_gpu_run.py", *options)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("topology", "options"),
    [("2x1", []), ("2x1", ["--one-host"]), ("2x2", ["--one-host"])],
    ids=["2x1", "2x1 on one host", "2x2 on one host"],
)
def test_exact_sizes_of_pieces(topology: str, options: list[str], tmp_path: Path) -> None:
    """And of static shuffles, and of ragged sources."""
    num_ranks = 2 if topology == "2x1" else 4
    need_gpus(num_ranks)
    exact_pieces_gpu_run.compile_all(tmp_path)
    options = [str(tmp_path), "--topology", topology, *options]
    torchrun(num_ranks, "tests/rails/exact_pieces_gpu_run.py", *options)
