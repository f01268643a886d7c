"""The shuffles of `test_exact_pieces.py` between nodes on real GPUs, against the reference.

``python -m tests.rails.exact_pieces_gpu_run FOLDER`` compiles them and their kernels, with or
without a GPU; ``torchrun --nproc-per-node 2 -m tests.rails.exact_pieces_gpu_run FOLDER --topology
2x1`` runs them and exits non-zero, after naming what went wrong, when something is. Hosts and GPUs
are as in `gpu_run.py`.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from fuscoc_runtime.topology import Topology
from tests.node_triton.gpu_run import told
from tests.rails import exact_given_work, exact_pieces_work
from tests.rails.gpu_run import TIMEOUT, join, share
from tests.rails.test_exact_pieces import MISTAKES, SIZES, SPECS
from tests.warm import pool, warm

NAMES = list(SPECS)
MANY = (64, 0, 90, 33)
"""Outermost extents of a batch with more segments than there are places for."""


def compile_all(folder: Path) -> None:
    paths = [folder / str(number) for number in range(len(NAMES))]
    with pool() as workers:
        list(workers.map(_compile, NAMES, paths))
    for problem in warm(paths):
        print(f"does not compile: {problem}")


def _compile(name: str, path: Path) -> None:
    import fuscoc

    fuscoc.compile(SPECS[name], path)


def parts(
    name: str, artifact: str, topology: Topology, **options: Any
) -> Iterator[Callable[..., Any]]:
    """What is done with a shuffle."""
    here, ranks = str(topology), topology.num_ranks
    many = () if name == "spread" else (MANY, SIZES[name][0])  # its slots are for few
    batches = [sizes[:ranks] for sizes in (*SIZES[name], *many)]
    yield partial(exact_given_work.batches, None, artifact, here, batches, 1, **options)
    two = batches[0], batches[2]
    yield partial(exact_pieces_work.handles_last, None, artifact, here, two, **options)
    if name in ("fft_transpose", "ragged_text"):
        yield partial(exact_pieces_work.gradients, None, artifact, here, two[1], **options)
    if name in MISTAKES:
        sizes = [2] * ranks
        yield partial(_mistakes, artifact, here, sizes, MISTAKES[name], **options)


def _mistakes(
    artifact: str, topology: str, sizes: Sequence[int], names: Sequence[str], **options: Any
) -> None:
    """All ranks say the same."""
    given = None, artifact, topology, sizes, names, True
    said = exact_pieces_work.mistaken(*given, **options)
    everyone: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, said)
    assert all(each == said for each in everyone), everyone
    assert [each == "no error" for each in said] == [False] * len(names) + [True], said


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--topology", type=Topology.parse)
    parser.add_argument("--one-host", action="store_true")
    given = parser.parse_args()
    if given.topology is None:
        compile_all(given.folder)
        return 0
    device, num_ranks = join(given.topology, given.one_host), given.topology.num_ranks
    options = {"device": device, "num_sms": share(device), "timeout": TIMEOUT}
    wrong: list[str] = []
    for number, name in enumerate(NAMES):
        began, artifact = time.monotonic(), str(given.folder / str(number))
        try:
            for part in parts(name, artifact, given.topology, **options):
                part()
        except Exception:
            wrong.append(f"{name}: {traceback.format_exc()}")
        everyone: list[bool] = [False] * num_ranks
        dist.all_gather_object(everyone, bool(wrong))
        if dist.get_rank() == 0:
            said = "WRONG" if any(everyone) else "holds"
            print(f"{name}: {said}, {time.monotonic() - began:.1f} s", flush=True)
        if any(everyone):
            break
    return told(wrong)


if __name__ == "__main__":
    sys.exit(main())
