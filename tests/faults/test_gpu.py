"""``kill -9`` of a rank that shuffles on a GPU over NCCL: the others name it, and end."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest

import fuscoc
from fuscoc_runtime.topology import Topology
from tests.gpus import ROOT

TIMEOUT, LONGEST = 8, 30
TOLD = 3000
"""Characters that a failure shows of what a rank has complained of."""


def start(artifact: Path, topology: str, kind: str) -> list[subprocess.Popen[str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    num_ranks = Topology.parse(topology).num_ranks
    arguments = [str(artifact), topology, kind, str(TIMEOUT)]
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.faults.gpu_run", *arguments]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num_ranks)}
    # Ranks may share a GPU, but not by MPS, where one that is killed takes the others along.
    job["CUDA_MPS_PIPE_DIRECTORY"] = str(artifact.parent)
    return [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | job | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=complaints(artifact, rank).open("w"),
            text=True,
        )
        for rank in range(num_ranks)
    ]


def complaints(artifact: Path, rank: int) -> Path:
    """The file that a rank writes its standard error to."""
    return artifact.parent / f"rank{rank}.err"


def kill_one(artifact: Path, topology: str, kind: str, seed: int) -> list[str]:
    """What the others' errors say."""
    chosen = random.Random(seed)
    ranks = start(artifact, topology, kind)
    victim = chosen.randrange(len(ranks))
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert "shuffled\n" in rank.stdout  # reads until then; NCCL prints its version, too
        time.sleep(chosen.uniform(0, 1))
        ranks[victim].send_signal(signal.SIGKILL)
        others = [rank for number, rank in enumerate(ranks) if number != victim]
        outputs = [rank.communicate(timeout=LONGEST)[0] for rank in others]
    finally:
        for number, rank in enumerate(ranks):
            rank.kill()
            print(f"rank {number}:", complaints(artifact, number).read_text()[-TOLD:])
    assert [rank.returncode for rank in others] == [0] * len(others), outputs
    errors = [json.loads(output.splitlines()[-1]) for output in outputs]
    assert [error["type"] for error in errors] == ["HopTimeoutError"] * len(errors), errors
    assert [error["peer"] for error in errors] == [victim] * len(errors), errors
    return [error["text"] for error in errors]


@pytest.mark.gpu(can_share=True)
@pytest.mark.parametrize(
    ("topology", "kind", "policy"),
    [
        *product(["1x2", "2x1", "2x2", "4x1"], ["sync", "async"], [""]),
        *product(["1x2", "2x1", "2x2", "4x1"], ["fixed"], [""]),
        ("1x2", "replayed", ""),
        ("2x2", "sync", "balance rebalance"),
        ("4x1", "sync", "schedule fast"),
    ],
)
def test_a_killed_rank_is_named(tmp_path: Path, topology: str, kind: str, policy: str) -> None:
    """Where rows travel as flows, too."""
    dedup = "dedup(node, rank)"
    text = (ROOT / "examples" / "moe.fsc").read_text()
    assert dedup in text
    fuscoc.compile(text.replace(dedup, f"{dedup} {policy}"), tmp_path / "moe")
    kill_one(tmp_path / "moe", topology, kind, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("meanwhile", ["sleep", "item", "capture", "load", "free"])
def test_kernels_that_wait_on_all_of_a_gpu_are_stopped(tmp_path: Path, meanwhile: str) -> None:
    fuscoc.compile(ROOT / "examples" / "moe.fsc", tmp_path / "moe")
    command = [sys.executable, "tests/faults/gpu_stop.py", str(tmp_path / "moe"), meanwhile]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=2 * LONGEST, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["stopped"], done.stderr
