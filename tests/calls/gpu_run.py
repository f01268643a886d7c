"""Random calls on real GPUs, of CUDA and of Triton kernels in turn; run by torchrun.

``python -m torch.distributed.run --nproc-per-node N tests/calls/gpu_run.py --calls 2000 ARTIFACT…``
takes compiled shuffles of ``tests.engine.specs.routed`` and exits non-zero, after naming what was
wrong, when something is.
"""

from __future__ import annotations

import argparse
import logging
import sys

import torch
import torch.distributed as dist

from tests.calls import runner
from tests.calls.rank_work import open_subjects
from tests.gpu_ranks import join


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("artifacts", nargs="+")
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.getLogger("fuscoc").setLevel(logging.CRITICAL)  # thousands of errors are meant
    join()
    subjects = [each for path in options.artifacts for each in open_subjects(None, path)]
    run = runner.Runner(subjects, options.seed)
    run.run(options.calls)
    backends = [subject.shuffle.backend for subject in subjects]
    torch.cuda.synchronize()
    for subject in subjects:
        subject.shuffle.close()
    everyone: list[list[str]] = [[] for _ in range(run.num_ranks)]
    dist.all_gather_object(everyone, run.wrong)
    if run.rank == 0:
        for rank, lines in enumerate(everyone):
            print("".join(f"WRONG on rank {rank}: {line}\n" for line in lines[:6]), end="")
        verdict = "FAILED" if any(everyone) else "all calls are right"
        print(f"{run.num_ranks} ranks, {backends}, {dict(run.tally)}: {verdict}", flush=True)
    dist.destroy_process_group()
    return int(any(everyone))


if __name__ == "__main__":
    sys.exit(main())
