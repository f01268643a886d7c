"""What ``transformers_work`` compares, on this rank's GPU; under torchrun, with a folder and the
architectures, all of them if none is named."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from tests.adapters import transformers_work as work
from tests.adapters.transformers_models import ARCHITECTURES


def main(folder: str, names: list[str]) -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    group = dist.group.WORLD
    wrong = []
    for name in names or ARCHITECTURES:
        began = time.monotonic()
        fixed = {"max_sources": 48}
        found = []
        if name != "GptOss":  # transformers makes its mask from a number of the host's
            found += [f"in a graph: {each}" for each in work.captured(group, name, fixed)]
        for options in ({}, fixed):
            some = work.train(group, name, options, 10)
            some += work.train(group, name, options, 2, checkpointing=True)
            some += work.generate(group, name, options, list(work.KINDS), 2)
            some += work.experts_in_bf16(group, name, options)
            found += [f"{options}: {each}" for each in some]
        found += work.save(group, name, str(Path(folder, name)))
        wrong += [f"{name}: {each}" for each in found]
        if dist.get_rank() == 0:
            print(f"{name}: {len(found)} differ, {time.monotonic() - began:.0f} s", flush=True)
    print(*(wrong or ["all as alone"]), sep="\n", flush=True)
    dist.destroy_process_group()
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
