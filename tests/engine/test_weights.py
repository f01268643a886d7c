"""Weights may come with dispatch or with combine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import fuscoc
from tests.specs import EXAMPLES

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys

import torch

import fuscoc
from fuscoc_runtime.errors import InputError

shuffle = fuscoc.load(sys.argv[1])
assert shuffle.backend == "triton"
x, weights = torch.randn(3, 16).bfloat16(), torch.rand(3, 2)
idx = torch.tensor([[0, 1], [1, -1], [1, 0]])
rows, handle = shuffle.dispatch(x, topk_idx=idx, topk_weights=weights)
early = shuffle.combine(rows, handle)
rows, handle = shuffle.dispatch(x, topk_idx=idx)
late = shuffle.combine(rows, handle, topk_weights=weights)
assert torch.equal(early, late) and bool((early != 0).any())
try:
    shuffle.combine(rows, handle)
except InputError as error:
    print(error)
shuffle.check()
"""


def test_weights_with_dispatch(tmp_path: Path) -> None:
    artifact = fuscoc.compile(EXAMPLES / "moe.fsc", tmp_path / "moe", hidden=16, experts=2, topk=2)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    job = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": port}
    environment = {name: str(value) for name, value in job.items()}
    environment |= {"MASTER_ADDR": "localhost", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(artifact)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "`topk_weights` on rank 0 is missing" in done.stdout
