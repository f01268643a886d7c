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
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Both examples; where there can be no hosts, the tests are skipped."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"needs namespaces of its own: {reason}")
    folder = tmp_path_factory.mktemp("artifacts")
    return [
        str(fuscoc.compile(ROOT / "examples" / f"{name}.fsc", folder / name, **constants))
        for name, constants in SMALL.items()
    ]


def start(folder: Path, killed: int, *command: str) -> subprocess.Popen[bytes]:
    """A command on both hosts."""
    environment = {key: value for key, value in os.environ.items() if key != "NCCL_HOSTID"}
    paths = os.pathsep.join(path for path in sys.path if path)
    cluster = [sys.executable, "-m", "tests.hosts.cluster", str(folder), str(killed)]
    return subprocess.Popen(
        [*ISOLATED, *cluster, *command], cwd=ROOT, env={**environment, "PYTHONPATH": paths}
    )


@pytest.fixture(scope="module")
def job(artifacts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a job that runs both examples and then goes on."""
    folder = tmp_path_factory.mktemp("job")
    ranks = [sys.executable, "-m", "tests.hosts.ranks", str(folder), *artifacts]
    running = start(folder, KILLED, *ranks)
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
        first, refused = rank // 2 * 2, said.pop("refused")
        assert "the ranks 0 and 2 are one node, and they are on two hosts" in refused
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


@pytest.mark.parametrize(
    "meeting",
    [
        "--rdzv-backend c10d --rdzv-endpoint host-0:29400 --rdzv-id moe",
        '--node-rank "$HOST" --master-addr host-0 --master-port 29400',
    ],
)
def test_torchrun(meeting: str, artifacts: list[str], tmp_path: Path) -> None:
    """As `docs/clusters.md` has it."""
    command = (
        f"{sys.executable} -m torch.distributed.run --nnodes 2 --nproc-per-node 2 {meeting} "
        f"-m fuscoc_runtime run {artifacts[0]} --tokens 4"
    )
    running = start(tmp_path, -1, "sh", "-c", command)
    try:
        assert running.wait(PATIENCE) == 0, outputs(tmp_path)
    finally:
        running.kill()
    assert outputs(tmp_path).count("; verified") == NUM_RANKS
    assert "moe on 2x2 (cpu)" in outputs(tmp_path)
