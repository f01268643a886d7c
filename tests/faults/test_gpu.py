"""``kill -9`` of a rank that shuffles on a GPU over NCCL: the others name it, and end."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest

import fuscoc
from fuscoc_runtime.topology import Topology
from tests.gpus import ROOT, share_of

TIMEOUT, LONGEST = 8, 30
TOLD = 3000
"""Characters that a failure shows of what a rank has complained of."""


@pytest.fixture
def mps(tmp_path: Path) -> Iterator[dict[str, str]]:
    """What lets processes share GPUs side by side, by a server of their own."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        pytest.skip("needs MPS, found no nvidia-cuda-mps-control")
    variables = {}
    for what in ("pipe", "log"):
        (tmp_path / what).mkdir()
        variables[f"CUDA_MPS_{what.upper()}_DIRECTORY"] = str(tmp_path / what)
    environment = os.environ | variables
    subprocess.run([control, "-d"], env=environment, check=True)
    yield variables
    subprocess.run(
        [control], env=environment, input="quit\n", text=True, check=True, timeout=LONGEST
    )


def start(
    artifact: Path, topology: str, kind: str, variables: Mapping[str, str]
) -> list[subprocess.Popen[str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    num_ranks = Topology.parse(topology).num_ranks
    arguments = [str(artifact), topology, kind, str(TIMEOUT)]
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.faults.gpu_run", *arguments]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num_ranks)}
    return [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | job | dict(variables) | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=complaints(artifact, rank).open("w"),
            text=True,
        )
        for rank in range(num_ranks)
    ]


def complaints(artifact: Path, rank: int) -> Path:
    """The file that a rank writes its standard error to."""
    return artifact.parent / f"rank{rank}.err"


def kill_one(
    artifact: Path, topology: str, kind: str, seed: int, variables: Mapping[str, str]
) -> list[str]:
    """What the others' errors say."""
    chosen = random.Random(seed)
    ranks = start(artifact, topology, kind, variables)
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
            rank.send_signal(signal.SIGUSR1)  # says where it is, if it has not ended
            with suppress(subprocess.TimeoutExpired):
                rank.wait(1)
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
    # Ranks that share a GPU take turns: no server of MPS listens there.
    kill_one(tmp_path / "moe", topology, kind, 0, {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)})


@pytest.mark.gpu(can_share=True)
@pytest.mark.parametrize(("topology", "kind"), [*product(["2x2", "4x1"], ["sync", "fixed"])])
def test_a_rank_that_takes_gpus_along_is_named(
    tmp_path: Path, topology: str, kind: str, mps: dict[str, str]
) -> None:
    """Under MPS what others have on the GPU of a rank that is killed fails, too."""
    fuscoc.compile(ROOT / "examples" / "moe.fsc", tmp_path / "moe")
    share = share_of(Topology.parse(topology).num_ranks)
    kill_one(tmp_path / "moe", topology, kind, 0, mps | share)


@pytest.mark.gpu
@pytest.mark.parametrize("meanwhile", ["sleep", "item", "capture", "load", "free"])
def test_kernels_that_wait_on_all_of_a_gpu_are_stopped(tmp_path: Path, meanwhile: str) -> None:
    fuscoc.compile(ROOT / "examples" / "moe.fsc", tmp_path / "moe")
    command = [sys.executable, "tests/faults/gpu_stop.py", str(tmp_path / "moe"), meanwhile]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=2 * LONGEST, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["stopped"], done.stderr
