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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from fuscoc_runtime.topology import Topology
from tests.gpu_ranks import join
from tests.node_triton import rank_work
from tests.node_triton.gpu_run import told
from tests.rails.gpu_run import TIMEOUT
from tests.rails.test_suite import MOST, TEXTS
from tests.warm import pool, warm

SIZES = [(5, 0, 3, 1), (0, 0, 0, 0), (2, MOST, 0, 4), (MOST, MOST, 7, MOST)]


def compile_all(folder: Path, texts: Mapping[str, str] = TEXTS) -> None:
    paths = [folder / str(number) for number in range(len(texts))]
    with pool() as workers:
        list(workers.map(_compile, texts.values(), paths))
    for problem in warm(paths):
        print(f"does not compile: {problem}")


def _compile(text: str, path: Path) -> None:
    import fuscoc

    fuscoc.compile(text, path)


def epochs(name: str, artifact: str, topology: Topology, **options: Any) -> None:
    """Calls of fixed capacity."""
    batches = [each[: topology.num_ranks] for each in SIZES]
    rank_work.epochs(None, artifact, batches, 1, topology=topology, **options)


def main(texts: Mapping[str, str], work: Callable[..., None]) -> int:
    """``work`` is given the name, the artifact, the topology, and how to open it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--topology", type=Topology.parse)
    parser.add_argument("--one-host", action="store_true")
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    if given.topology is None:
        compile_all(given.folder, texts)
        return 0
    device, num_ranks = join(given.topology, given.one_host), given.topology.num_ranks
    options = {"device": device, "timeout": TIMEOUT}
    wrong: list[str] = []
    for number, name in list(enumerate(texts))[given.first :]:
        began = time.monotonic()
        try:
            work(name, str(given.folder / str(number)), given.topology, **options)
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
    sys.exit(main(TEXTS, epochs))
