"""The Triton kernels of one node on real GPUs; run by torchrun, one process a GPU.

``python -m torch.distributed.run --nproc-per-node N -m tests.node_triton.gpu_run ARTIFACT…`` takes
the artifacts of ``models.py`` in their order and exits non-zero, after naming every mismatch, when
something is wrong.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.moe_cases import (
    Model,
    check_combine,
    check_rows,
    expected_rows,
    expert_outputs,
    gather_ragged,
    owners,
    routing,
)
from fuscoc_runtime import Shuffle
from tests.gpu_ranks import join
from tests.node_triton.models import MODELS

MOST = 520
ITERATIONS = 1000
DELAY_CYCLES = 200_000
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


class Runs:
    """One model's shuffle, opened with ``options``; what is wrong with it is added to ``wrong``."""

    def __init__(self, artifact: str, model: Model, wrong: list[str], **options: Any) -> None:
        self.model, self.wrong = model, wrong
        self.shuffle = Shuffle(artifact, max_sources=MOST, **options)
        assert self.shuffle.backend == "triton"
        self.device, self.rank = self.shuffle.device, self.shuffle.rank
        self.num_ranks = dist.get_world_size()
        self.owner = owners(model, self.num_ranks, self.device)
        self.random = torch.Generator(self.device).manual_seed(40 + self.rank)
        self.table = {"expert_to_rank": self.owner} if model.placement == "expert_to_rank" else {}

    def batch(self, kind: str, tokens: int) -> tuple[Any, Any, Any]:
        model, random = self.model, self.random
        x = torch.randn(tokens, model.hidden, device=self.device, generator=random)
        weights = torch.rand(tokens, model.topk, device=self.device, generator=random)
        idx = routing(kind, tokens, model, self.num_ranks, random)
        return x.to(DTYPES[model.dtype]), idx, weights

    def dispatch(self, x: Any, idx: Any, weights: Any) -> tuple[Any, Any]:
        return self.shuffle.dispatch(x, topk_idx=idx, topk_weights=weights, **self.table)

    def verify(self, kind: str, tokens: int) -> None:
        """Rows bit by bit, sums to 1e-2, twice."""
        x, idx, weights = self.batch(kind, tokens)
        rows, handle = self.dispatch(x, idx, weights)
        everyone = gather_ragged(idx, None)
        expected = expected_rows(everyone, self.owner, self.model.align, self.rank)
        used = rows[: int(handle.key_offsets[-1])]
        problems = check_rows(handle, [used], [x], expected, None)
        outputs = expert_outputs(rows, expected, self.model.experts)
        for _ in range(2):
            result = self.shuffle.combine(outputs, handle)
            problems += check_combine(result, x, idx, weights, self.model.experts)
        self.shuffle.check()
        self.wrong += [f"{self.model} {kind} {tokens}: {problem}" for problem in problems]

    def graph(self) -> None:
        """The first dispatch and combine, captured, replayed on other data."""
        x, idx, weights = self.batch("uniform", 128)
        stream = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            result = self.shuffle.combine(*self.dispatch(x, idx, weights))
        for kind in ("single", "messy", "uniform"):
            for static, new in zip((x, idx, weights), self.batch(kind, 128), strict=True):
                static.copy_(new)
            graph.replay()
            want = x.float() * (weights * (idx >= 0)).sum(1, keepdim=True)
            error = float((result.float() - want).norm() / want.norm())
            if not error < 1e-2:
                self.wrong.append(f"graph {kind}: off by {error:.1e}")
        self.shuffle.check()

    def stress(self) -> None:
        """Back to back: other routings, sizes, delays and numbers of combines, checked at the end
        by sums that no lost or doubled row leaves alone."""
        shared, own = random.Random(3), random.Random(70 + self.rank)
        sizes = [[shared.randint(0, MOST) for _ in range(self.num_ranks)] for _ in range(12)]
        kinds = ("uniform", "single", "messy")
        batches = [self.batch(kinds[i % 3], each[self.rank]) for i, each in enumerate(sizes)]
        off = torch.zeros((), dtype=torch.int64, device=self.device)
        for _ in range(ITERATIONS):
            x, idx, weights = shared.choice(batches)
            if shared.random() < 0.4:
                torch.cuda._sleep(own.randrange(1, DELAY_CYCLES))
            rows, handle = self.dispatch(x, idx, weights)
            want = x.float() * (weights * (idx >= 0)).sum(1, keepdim=True)
            for _ in range(shared.randint(0, 2)):
                result = self.shuffle.combine(rows, handle).float()
                off += (~((result - want).abs() <= 0.05 * want.abs() + 0.05)).sum()
        self.shuffle.check()
        if int(off):
            self.wrong.append(f"stress: {int(off)} elements differ")


def main() -> int:
    join()
    wrong: list[str] = []
    for artifact, model in zip(sys.argv[1:], MODELS, strict=True):
        runs = Runs(artifact, model, wrong)
        if model == MODELS[0]:
            runs.graph()
        for kind in ("uniform", "messy"):
            for tokens in (MOST, 1 + 100 * runs.rank, 0):
                runs.verify(kind, tokens)
        if model == MODELS[0]:
            runs.stress()
    return told(wrong)


def told(wrong: list[str]) -> int:
    """Print what is wrong on any rank, and end the job; the exit code."""
    everyone: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, wrong)
    if dist.get_rank() == 0:
        for rank, lines in enumerate(everyone):
            print("".join(f"WRONG on rank {rank}: {line}\n" for line in lines[:6]), end="")
        print(f"{len(everyone)} ranks: {'FAILED' if any(everyone) else 'all hold'}", flush=True)
    dist.destroy_process_group()
    return int(any(everyone))


if __name__ == "__main__":
    sys.exit(main())
