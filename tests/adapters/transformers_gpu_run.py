"""What ``transformers_work`` compares, on this rank's GPU; under torchrun, with a folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tests.adapters import transformers_work as work
from tests.adapters.transformers_models import ARCHITECTURES


def main(folder: str) -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    group = dist.group.WORLD
    wrong = []
    for name in ARCHITECTURES:
        for options in ({}, {"max_sources": 48}):
            found = work.train(group, name, options, 10)
            found += work.train(group, name, options, 2, checkpointing=True)
            found += work.generate(group, name, options, list(work.KINDS), 2)
            found += work.experts_in_bf16(group, name, options)
            wrong += [f"{name} {options}: {each}" for each in found]
        here = Path(folder, name)
        wrong += [f"{name}: {each}" for each in work.save(group, name, str(here))]
    print(*(wrong or ["all as alone"]), sep="\n", flush=True)
    dist.destroy_process_group()
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main(sys.argv[1])
