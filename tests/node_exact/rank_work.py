"""What the tests let processes do; every function runs on one rank."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from fuscoc_runtime.engine.node.exact_engine import ExactEngine
from fuscoc_runtime.face import open as opening
from fuscoc_runtime.face.choice import choose_triton
from fuscoc_runtime.face.shuffle import Shuffle
from tests.node_triton.rank_work import batch, run

TIMEOUT = 60.0


def open_shuffle(group: Any, artifact: Any, **options: Any) -> Shuffle:
    """By the Triton kernels of one node, as on GPUs."""
    chosen = opening.choose_exact
    opening.choose_exact = lambda shuffle, topology, *_: choose_triton(shuffle, topology)
    try:
        shuffle = Shuffle(artifact, group=group, **{"timeout": TIMEOUT, **options})
    finally:
        opening.choose_exact = chosen
    assert isinstance(shuffle.engine, ExactEngine)
    return shuffle


def batches(group: Any, artifact: str, sizes: Sequence[Sequence[int]], seed: int) -> None:
    """Dispatches and combines in a row, ``sizes[i][rank]`` segments each, some ranks late."""
    shuffle = open_shuffle(group, artifact)
    for number, each in enumerate(sizes):
        time.sleep(0.02 * ((number + shuffle.rank) % 3))
        run(shuffle, batch(shuffle.spec, each, seed + number), combines=1 + number % 2)
    shuffle.check()
