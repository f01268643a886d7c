"""The shuffles of `test_suite.py` between nodes on real GPUs, against the reference.

``python -m tests.rails.suite_gpu_run FOLDER`` compiles them; ``torchrun --nproc-per-node 2 -m
tests.rails.suite_gpu_run FOLDER --topology 2x1`` runs them one after the other, with ``--part 3/8``
those alone whose numbers have that remainder, and exits non-zero, after naming every mismatch, when
something is wrong. Hosts and GPUs are as in `gpu_run.py`.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path

import torch.distributed as dist

from fuscoc_runtime.topology import Topology
from tests.node_triton import rank_work
from tests.node_triton.gpu_run import told
from tests.rails.gpu_run import TIMEOUT, join, share
from tests.rails.test_suite import LEFT_OUT, MOST, TEXTS

NAMES = [name for name in TEXTS if name not in LEFT_OUT]


def compile_all(folder: Path) -> None:
    import fuscoc

    for number, name in enumerate(NAMES):
        fuscoc.compile(TEXTS[name], folder / str(number))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--topology", type=Topology.parse)
    parser.add_argument("--one-host", action="store_true")
    parser.add_argument("--part", default="0/1")
    given = parser.parse_args()
    if given.topology is None:
        compile_all(given.folder)
        return 0
    remainder, parts = map(int, given.part.split("/"))
    device, num_ranks = join(given.topology, given.one_host), given.topology.num_ranks
    options = {"topology": given.topology, "device": device, "num_sms": share(device)}
    sizes = [(5, 0, 3, 1), (0, 0, 0, 0), (2, MOST, 0, 4), (MOST, MOST, 7, MOST)]
    batches = [each[:num_ranks] for each in sizes]
    wrong: list[str] = []
    for number, name in enumerate(NAMES):
        if number % parts != remainder:
            continue
        try:
            artifact = str(given.folder / str(number))
            rank_work.epochs(None, artifact, batches, 1, timeout=TIMEOUT, **options)
        except Exception:
            wrong.append(f"{name}: {traceback.format_exc()}")
        everyone: list[bool] = [False] * num_ranks
        dist.all_gather_object(everyone, bool(wrong))
        if dist.get_rank() == 0:
            print(f"{name}: {'WRONG' if any(everyone) else 'holds'}", flush=True)
        if any(everyone):
            break
    return told(wrong)


if __name__ == "__main__":
    sys.exit(main())
