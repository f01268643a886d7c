"""A job on two hosts, which are namespaces of this machine: it runs, and a killed host is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fuscoc

ROOT = Path(__file__).parents[2]
ISOLATED = (
    *("unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork"),
    *("--kill-child", "--mount-proc"),
)
pytestmark = pytest.mark.nightly  # half a minute of processors, most of it imports
NUM_RANKS, KILLED = 4, 1
PATIENCE = 150.0
SMALL = {"moe": {"hidden": 32, "experts": 8, "topk": 2}, "vit_patches": {}}

# What `cluster.py` does, without a job.
TRIAL = """
set -e
ip link add trial-0 type veth peer name trial-1
unshare --net --uts --mount sh -c "mount -t tmpfs tmpfs /dev/shm && hostname trial"
"""


def why_not() -> str | None:
    """Why namespaces, or a cable between them, are not to be had; ``None`` if they are."""
    try:
        done = subprocess.run(
            [*ISOLATED, "sh", "-c", TRIAL], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else None


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a job that has run both examples and goes on."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"needs namespaces of its own: {reason}")
    folder, compiled = tmp_path_factory.mktemp("job"), tmp_path_factory.mktemp("artifacts")
    artifacts = [
        str(fuscoc.compile(ROOT / "examples" / f"{name}.fsc", compiled / name, **constants))
        for name, constants in SMALL.items()
    ]
    ranks = [sys.executable, "-m", "tests.hosts.ranks", str(folder), *artifacts]
    command = [*ISOLATED, sys.executable, "-m", "tests.hosts.cluster", str(folder), str(KILLED)]
    environment = {key: value for key, value in os.environ.items() if key != "NCCL_HOSTID"}
    paths = os.pathsep.join(path for path in sys.path if path)
    running = subprocess.Popen(
        [*command, *ranks], cwd=ROOT, env={**environment, "PYTHONPATH": paths}
    )
    try:
        yield folder
    finally:
        running.kill()
        running.wait()


def written(folder: Path, what: str, ranks: range) -> list[dict[str, Any]]:
    """What these ranks write, when all have."""
    paths = [folder / f"{what}-{rank}" for rank in ranks]
    deadline = time.monotonic() + PATIENCE
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline, f"not all have written `{what}`:\n{outputs(folder)}"
        time.sleep(0.05)
    return [json.loads(path.read_text()) for path in paths]


def outputs(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("[01]")))


def test_both_examples_run_on_two_hosts(job: Path) -> None:
    for rank, said in enumerate(written(job, "ran", range(NUM_RANKS))):
        first = rank // 2 * 2
        assert said == {
            "host": f"host-{rank // 2}",
            "shared_memory": [f"rank-{first}", f"rank-{first + 1}"],
            "topologies": ["2x2", "2x2"],
            "verified": [True, True],
        }


def test_a_killed_host_is_named(job: Path) -> None:
    """By a rank of it, whichever is missed first."""
    written(job, "ran", range(NUM_RANKS))
    time.sleep(1)  # into the shuffles
    (job / "kill").touch()
    for error in written(job, "error", range(2)):
        assert error["type"] == "HopTimeoutError", error
        assert error["peer"] // 2 == KILLED, error
