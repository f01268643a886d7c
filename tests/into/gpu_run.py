"""Rows that go into memory of the caller's, on real GPUs, by every engine.

``torchrun --nproc-per-node N -m tests.into.gpu_run FOLDER`` takes what ``models.py`` has compiled,
and exits non-zero, after naming every mismatch, when something is wrong. Ranks share GPUs where
there are fewer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves, tree_map_only

from fuscoc_runtime import Shuffle
from fuscoc_runtime.engine.node.engine import NodeEngine
from fuscoc_runtime.engine.node.exact_engine import ExactEngine
from fuscoc_runtime.engine.process import ProcessEngine
from fuscoc_runtime.errors import (
    FuscoRuntimeError,
    PlaceOverlapError,
    PlaceRangeError,
)
from tests.gpu_ranks import join
from tests.into.models import MODELS, Call, differences, draw

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
TIMEOUT = 60.0
FIXED = {"max_sources": 16, "capacity": 128}
# By name: the engine, the folder of the artifacts, and options.
ENGINES: Mapping[str, tuple[type, str, dict[str, Any]]] = {
    "general": (ProcessEngine, "triton", {}),
    "exact": (ExactEngine, "triton", {}),
    "fixed, Triton": (NodeEngine, "triton", FIXED),
    "fixed, CUDA": (NodeEngine, "auto", FIXED),
}
SIZES = 9
"""The seed of the sizes of calls that are replayed: with 1, 2 and 4 ranks each moves some rows."""


def run(name: str, engine: str, folder: Path, device: torch.device) -> list[str]:
    """What is wrong with one shuffle on one engine."""
    wrong = []
    kind, built, options = ENGINES[engine]
    path, backend = str(folder / built / name), "cuda" if built == "auto" else "triton"
    wanted = {"FUSCOC_ENGINE": "general"} if engine == "general" else {}
    with mock.patch.dict(os.environ, wanted):
        job = {"topology": f"1x{WORLD}", "device": device}
        shuffle = Shuffle(path, timeout=TIMEOUT, **job, **options)
    assert isinstance(shuffle.engine, kind)
    for seed in range(6):
        call = draw(name, WORLD, seed)
        given = tree_map_only(torch.Tensor, lambda each: each.to(device), call.given[RANK])
        memory, _ = shuffle.dispatch(**given)
        if not _is_same(memory, given[call.memory]):
            wrong.append("returns something else")
        shuffle.check()
        wrong += [f"`{n}` differs in call {seed}" for n in differences(call.wanted[RANK], memory)]
        stats = shuffle.stats()
        if stats is None or stats.into is None or stats.into.rows != call.num_parts[RANK]:
            wrong.append(f"counts other parts in call {seed}")
    if shuffle.backend != backend:
        wrong.append(f"has kernels of {shuffle.backend}")
    wrong += graph(shuffle, name, device) if "capacity" in options else []
    wrong += mistakes(shuffle, name, device, counted="capacity" in options)
    shuffle.close()
    return [f"{name}: {each}" for each in wrong]


def graph(shuffle: Shuffle, name: str, device: torch.device) -> list[str]:
    """A captured call, replayed with data, tables and memory of others of its shapes."""
    calls = [draw(name, WORLD, seed, SIZES) for seed in range(4)]
    given = tree_map_only(torch.Tensor, lambda each: each.to(device), calls[0].given[RANK])
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=torch.cuda.Stream(), capture_error_mode="thread_local"):
        memory, _ = shuffle.dispatch(**given)
    wrong = []
    for call in (*calls[1:], calls[0]):
        before = [each[call.memory] for each in call.given]
        assert any(map(differences, call.wanted, before)), "the call moves nothing"
        for into, each in zip(tree_leaves(given), tree_leaves(call.given[RANK]), strict=True):
            if isinstance(into, torch.Tensor):
                into.copy_(each)
        captured.replay()
        wrong += [f"`{each}` differs in a graph" for each in differences(call.wanted[RANK], memory)]
    shuffle.check()
    return wrong


def mistakes(shuffle: Shuffle, name: str, device: torch.device, counted: bool) -> list[str]:
    """A place that is none, and one that two slots name: rows stay away, and somebody is told."""
    if name != "kv_cache":
        return []
    wrong = []
    for block, kind in ((9, PlaceRangeError), (None, PlaceOverlapError)):
        call = _full(name, WORLD)
        given = tree_map_only(torch.Tensor, lambda each: each.to(device), call.given[RANK])
        table = given["block_table"]
        table[1] = table[0] if block is None else block
        before = given["cache"].clone()
        said = ""
        try:
            shuffle.dispatch(**given)
            shuffle.check()
        except FuscoRuntimeError as error:
            said = str(error)
        code = kind.code if counted or block is None else "FSR010"
        if f"[{code}]" not in said:
            wrong.append(f"{kind.__name__}: said {said!r}")
        if counted:
            continue
        if not torch.equal(before.view(torch.uint8), given["cache"].view(torch.uint8)):
            wrong.append(f"{kind.__name__}: something was moved")
    return wrong


def _full(name: str, num_ranks: int) -> Call:
    """A call in which every rank has a table of two blocks at least."""
    for seed in range(1000):
        call = draw(name, num_ranks, seed)
        tables = [each["block_table"] for each in call.given]
        if all(len(table) > 1 and int(table[0]) >= 0 for table in tables):
            return call
    raise AssertionError("no such call")


def _tensors(memory: Any) -> Sequence[torch.Tensor]:
    return [*memory.values()] if isinstance(memory, Mapping) else [memory]


def _is_same(first: Any, second: Any) -> bool:
    pairs = zip(_tensors(first), _tensors(second), strict=True)
    return all(one.data_ptr() == other.data_ptr() for one, other in pairs)


def main() -> int:
    device = join()
    wrong: list[str] = []
    for engine in ENGINES:
        for name in MODELS:
            found = [f"{engine}: {each}" for each in run(name, engine, Path(sys.argv[1]), device)]
            wrong += found
            if RANK == 0:
                print(f"{engine}, {name}: {'WRONG' if found else 'ok'}", flush=True)
    everyone: list[list[str]] = [[] for _ in range(WORLD)]
    dist.all_gather_object(everyone, wrong)
    if RANK == 0:
        for rank, lines in enumerate(everyone):
            for line in lines:
                print(f"rank {rank}: {line}")
    dist.destroy_process_group()
    return int(any(everyone))


if __name__ == "__main__":
    sys.exit(main())
