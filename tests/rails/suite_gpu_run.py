"""The shuffles of `test_suite.py` between nodes on real GPUs, against the reference.

``python -m tests.rails.suite_gpu_run FOLDER`` compiles them and their kernels, with or without a
GPU; ``torchrun --nproc-per-node 2 -m tests.rails.suite_gpu_run FOLDER --topology 2x1`` runs them
one after the other, ``--first 3`` from that number on, and exits non-zero, after naming every
mismatch of the first one that has some, when something is wrong. Hosts and GPUs are as in
`gpu_run.py`.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path

import torch.distributed as dist

from fuscoc_runtime.topology import Topology
from tests.node_triton import rank_work
from tests.node_triton.gpu_run import told
from tests.rails.gpu_run import TIMEOUT, join, share
from tests.rails.test_suite import MOST, TEXTS
from tests.warm import pool, warm

NAMES = list(TEXTS)


def compile_all(folder: Path) -> None:
    paths = [folder / str(number) for number in range(len(NAMES))]
    with pool() as workers:
        list(workers.map(_compile, NAMES, paths))
    for problem in warm(paths):
        print(f"does not compile: {problem}")


def _compile(name: str, path: Path) -> None:
    import fuscoc

    fuscoc.compile(TEXTS[name], path)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--topology", type=Topology.parse)
    parser.add_argument("--one-host", action="store_true")
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    if given.topology is None:
        compile_all(given.folder)
        return 0
    device, num_ranks = join(given.topology, given.one_host), given.topology.num_ranks
    options = {"topology": given.topology, "device": device, "num_sms": share(device)}
    sizes = [(5, 0, 3, 1), (0, 0, 0, 0), (2, MOST, 0, 4), (MOST, MOST, 7, MOST)]
    batches = [each[:num_ranks] for each in sizes]
    wrong: list[str] = []
    for number, name in list(enumerate(NAMES))[given.first :]:
        began = time.monotonic()
        try:
            artifact = str(given.folder / str(number))
            rank_work.epochs(None, artifact, batches, 1, timeout=TIMEOUT, **options)
        except Exception:
            wrong.append(f"{name}: {traceback.format_exc()}")
        everyone: list[bool] = [False] * num_ranks
        dist.all_gather_object(everyone, bool(wrong))
        if dist.get_rank() == 0:
            said = "WRONG" if any(everyone) else "holds"
            print(f"{number} {name}: {said}, {time.monotonic() - began:.1f} s", flush=True)
        if any(everyone):
            break
    return told(wrong)


if __name__ == "__main__":
    sys.exit(main())
