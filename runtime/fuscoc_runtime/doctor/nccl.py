"""What NCCL takes between two GPUs, found by a job of two ranks that says what it does.

    python -m fuscoc_runtime.doctor.nccl RANK STORE

is one of its ranks. NCCL tells nobody its transports but its log, whose lines are searched for the
words that have been in it since 2.12.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fuscoc_runtime.doctor.children import run_python

NUM_RANKS = 2
SUBSYSTEMS = "INIT,GRAPH,NET,P2P,SHM"

TRANSPORT = re.compile(r" via (\S+)")
CHANNELS = re.compile(r"(\d+) coll channels.*?(\d+) p2p channels")
NETWORK = re.compile(r"Using network (\S+)")


def try_nccl(environment: Mapping[str, str], seconds: float) -> dict[str, Any]:
    """What two GPUs take inside a node, and what they take where they pretend to be two nodes."""
    return {
        "inside_a_node": _job(environment, seconds, ["node-0", "node-0"]),
        "between_nodes": _job(environment, seconds, ["node-0", "node-1"]),
    }


def _job(environment: Mapping[str, str], seconds: float, hosts: list[str]) -> dict[str, Any]:
    # Nobody may read what is in the logs of others, and a folder has a name that nobody knows.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        said = {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": SUBSYSTEMS,
            "NCCL_DEBUG_FILE": f"{scratch}/log.%p",
        }
        outcomes = run_python(
            [
                ["-m", "fuscoc_runtime.doctor.nccl", str(rank), f"{scratch}/store"]
                for rank in range(NUM_RANKS)
            ],
            [{**environment, **said, "NCCL_HOSTID": host} for host in hosts],
            seconds,
        )
        logs = sorted(Path(scratch).glob("log.*"))
        log = "".join(path.read_text(errors="replace") for path in logs)
    problems = [each.problem for each in outcomes if each.problem is not None]
    return {**read_log(log), "problem": next(iter(problems), None)}


def read_log(log: str) -> dict[str, Any]:
    """Transports, channels of collectives and of point-to-point operations, and the network, as
    NCCL's log has them; what it does not have is ``None``."""
    channels, network = CHANNELS.search(log), NETWORK.search(log)
    return {
        "transports": sorted(set(TRANSPORT.findall(log))),
        "num_collective_channels": int(channels[1]) if channels else None,
        "num_p2p_channels": int(channels[2]) if channels else None,
        "network": network[1] if network else None,
    }


def main() -> None:
    """One rank: joins, adds one number up and exchanges another, which connects both kinds."""
    rank, store = int(sys.argv[1]), sys.argv[2]
    torch, dist = import_module("torch"), import_module("torch.distributed")
    torch.cuda.set_device(rank)
    shared = dist.FileStore(store, NUM_RANKS)
    dist.init_process_group("nccl", store=shared, rank=rank, world_size=NUM_RANKS)
    number = torch.ones(NUM_RANKS, device="cuda")
    dist.all_reduce(number)
    dist.all_to_all_single(torch.empty_like(number), number)
    if number.tolist() != [NUM_RANKS] * NUM_RANKS:
        raise RuntimeError(f"NCCL's sum of ones over {NUM_RANKS} ranks is {number.tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
