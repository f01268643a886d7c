"""The shuffles of `test_exact_pieces.py` between nodes on real GPUs, against the reference; as
`suite_gpu_run.py`, whose arguments it takes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch.distributed as dist

from fuscoc_runtime.topology import Topology
from tests.engine.test_replies import QUERIES
from tests.rails import (
    exact_given_work,
    exact_pieces_work,
    exact_reply_work,
    exact_work,
    static_specs,
    suite_gpu_run,
)
from tests.rails.test_exact_pieces import MISTAKES, SIZES, SPECS

MANY = (64, 0, 90, 33)
"""Outermost extents of a batch with more segments than there are places for."""

TEXTS = {
    **SPECS,
    "weighed": static_specs.uneven("every", 15, 2, "f32", 5, is_weighted=True),
    "answered": QUERIES.replace("ALIGN", "compact"),
}
compile_all = partial(suite_gpu_run.compile_all, texts=TEXTS)


def work(name: str, artifact: str, topology: Topology, **options: Any) -> None:
    """Calls of many sizes, handles, gradients, weights and mistakes; answers to rows that are there
    once for several slots."""
    given, ranks = (None, artifact, str(topology)), topology.num_ranks
    if name == "weighed":
        exact_pieces_work.weighed(*given, exact_work.open_shuffle, **options)
        return
    if name == "answered":
        exact_reply_work.questions(*given, **options)
        return
    many = () if name == "spread" else (MANY, SIZES[name][0])  # its slots are for few
    batches = [sizes[:ranks] for sizes in (*SIZES[name], *many)]
    exact_given_work.batches(*given, batches, 1, **options)
    exact_pieces_work.handles_last(*given, batches[:3:2], **options)
    if name in ("fft_transpose", "ragged_text"):
        exact_pieces_work.gradients(*given, batches[2], **options)
    if name in MISTAKES:
        said = exact_pieces_work.mistaken(*given, [2] * ranks, MISTAKES[name], True, **options)
        _check(said, MISTAKES[name])


def _check(said: Sequence[str], names: Sequence[str]) -> None:
    """All ranks say the same of these mistakes."""
    everyone: list[Sequence[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, said)
    assert all(each == said for each in everyone), everyone
    assert [each == "no error" for each in said] == [False] * len(names) + [True], said


if __name__ == "__main__":
    sys.exit(suite_gpu_run.main(TEXTS, work))
