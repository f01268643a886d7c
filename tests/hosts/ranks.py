"""What runs on every host of ``cluster.py``: ``python -m tests.hosts.ranks FOLDER ARTIFACT...``

starts two ranks, which try to be one node, run every artifact, write what they found, and then
shuffle the first one for ever. Every rank writes the error that ends that, and stays: rank 0 keeps
the store, and others may still be asking it who is to blame.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.hosts.cluster import ADDRESSES

RANKS_PER_HOST, PORT, TIMEOUT = 2, 29400, 60.0
PATIENCE = 12.0
"""Seconds that the last shuffle waits for a rank."""


def start(host: int, local_rank: int, arguments: list[str]) -> subprocess.Popen[bytes]:
    job = {
        "RANK": str(host * RANKS_PER_HOST + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(len(ADDRESSES) * RANKS_PER_HOST),
        "MASTER_ADDR": "host-0",
        "MASTER_PORT": str(PORT),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.hosts.ranks", *arguments]
    return subprocess.Popen(command, env={**os.environ, **job})


def run_rank(folder: Path, artifacts: list[str]) -> None:
    import torch.distributed as dist

    from fuscoc_runtime.errors import FuscoRuntimeError, TopologyError
    from fuscoc_runtime.face.shuffle import Shuffle
    from fuscoc_runtime.run import run
    from tests.engine.rank_work import shuffle_for_ever

    rank = os.environ["RANK"]
    marker = Path("/dev/shm", f"rank-{rank}")
    marker.touch()

    def write(what: str, found: Any) -> None:
        beside = folder / f".{what}-{rank}"
        beside.write_text(json.dumps(found))
        beside.rename(folder / f"{what}-{rank}")

    try:
        Shuffle(artifacts[0], topology="1x4", timeout=TIMEOUT)
        refused = ""
    except TopologyError as error:
        refused = str(error)
    reports = [run(each, tokens=4, device="cpu", timeout=TIMEOUT) for each in artifacts]
    dist.barrier()
    write(
        "ran",
        {
            "host": socket.gethostname(),
            "shared_memory": sorted(path.name for path in marker.parent.glob("rank-*")),
            "topologies": [str(each.topology) for each in reports],
            "verified": [each.verified for each in reports],
            "refused": refused,
        },
    )
    try:
        shuffle_for_ever(dist.group.WORLD, artifacts[0], "2x2", PATIENCE)
    except FuscoRuntimeError as error:
        said = {"type": type(error).__name__, "peer": getattr(error, "peer", None)}
        write("error", {**said, "text": str(error)})
    signal.pause()


def main() -> None:
    folder, *artifacts = sys.argv[1:]
    if "RANK" in os.environ:
        run_rank(Path(folder), artifacts)
    ranks = [start(int(os.environ["HOST"]), each, sys.argv[1:]) for each in range(RANKS_PER_HOST)]
    sys.exit(max(rank.wait() for rank in ranks))


if __name__ == "__main__":
    main()
