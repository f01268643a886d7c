"""What ``transformers_work`` compares, on this rank's GPU; under torchrun, with a folder and the
architectures, all of them if none is named."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.adapters import transformers_work as work
from tests.adapters.transformers_models import ARCHITECTURES

FIXED = {"max_sources": 48}


def in_a_graph(group: Any, name: str, folder: str) -> list[str]:
    return work.captured(group, name, FIXED)


def layers(options: dict[str, int], group: Any, name: str, folder: str) -> list[str]:
    """Training, generated tokens and a layer in bf16."""
    wrong = work.train(group, name, options, 10)
    wrong += work.train(group, name, options, 2, checkpointing=True)
    wrong += work.generate(group, name, options, list(work.KINDS), 2)
    return wrong + work.experts_in_bf16(group, name, options)


def saved(group: Any, name: str, folder: str) -> list[str]:
    return work.save(group, name, str(Path(folder, name)))


PARTS: dict[str, Callable[[Any, str, str], list[str]]] = {
    "in a graph": in_a_graph,
    "of a fixed size": partial(layers, FIXED),
    "of exact sizes": partial(layers, {}),
    "saved": saved,
}


def main(folder: str, names: list[str]) -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    group, is_wrong = dist.group.WORLD, False
    for part, compare in PARTS.items():
        for name in names or ARCHITECTURES:
            began = time.monotonic()
            found = compare(group, name, folder)
            is_wrong |= bool(found)
            print(
                f"rank {dist.get_rank()}: {name} {part}: {len(found)} differ, "
                f"{time.monotonic() - began:.0f} s",
                *found[:8],
                sep="\n  ",
                flush=True,
            )
    print("something differs" if is_wrong else "all as alone", flush=True)
    dist.destroy_process_group()
    sys.exit(is_wrong)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
