"""Compact targets of fixed capacity on real GPUs; run by torchrun, one process a GPU.

``python -m torch.distributed.run --nproc-per-node N -m tests.cuda.compact_run ARTIFACT…`` takes
compilations of ``MODEL`` for any backend and exits non-zero, after naming every mismatch, when
something is wrong.
"""

from __future__ import annotations

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
from tests.cuda.checks import settle
from tests.gpu_ranks import join

MODEL = Model(compact=True)
FEW, MANY = 128, 1100  # CUDA kernels plan the few together with the dispatch


class Compact:
    """One artifact's checks; each returns what is wrong."""

    def __init__(self, artifact: str, most: int) -> None:
        self.most = most
        self.shuffle = Shuffle(artifact, max_sources=most)
        self.device, self.rank = self.shuffle.device, self.shuffle.rank
        self.num_ranks = dist.get_world_size()
        self.random = torch.Generator(self.device).manual_seed(60 + self.rank)

    def batch(self, kind: str, tokens: int) -> tuple[Any, Any, Any]:
        x = torch.randn(tokens, MODEL.hidden, device=self.device, generator=self.random)
        weights = torch.rand(tokens, MODEL.topk, device=self.device, generator=self.random)
        idx = routing(kind, tokens, MODEL, self.num_ranks, self.random)
        return x.bfloat16(), idx, weights

    def rows_and_sums(self) -> list[str]:
        wrong = []
        for kind in ("uniform", "single", "messy"):
            for tokens in (self.most, 1 + 50 * self.rank, 0):
                x, idx, weights = self.batch(kind, tokens)
                rows, handle = self.shuffle.dispatch(x, topk_idx=idx, topk_weights=weights)
                expected = expected_rows(
                    gather_ragged(idx, None),
                    owners(MODEL, self.num_ranks, self.device),
                    MODEL.align,
                    self.rank,
                )
                found = check_rows(handle, [rows], [x], expected, None)
                outputs = expert_outputs(rows, expected, MODEL.experts, handle.row_index)
                for _ in range(2):
                    result = self.shuffle.combine(outputs, handle)
                    found += check_combine(result, x, idx, weights, MODEL.experts)
                self.shuffle.check()
                wrong += [f"{kind} {tokens}: {each}" for each in found]
        return wrong

    def layer(self, x: Any, idx: Any, weights: Any) -> Any:
        rows, handle = self.shuffle.dispatch(x, topk_idx=idx, topk_weights=weights)
        return self.shuffle.combine(rows[handle.row_index.clamp(min=0)], handle)

    def graph(self) -> list[str]:
        """One captured dispatch, gather and combine, replayed on other data."""
        static = self.batch("uniform", self.most)
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.layer(*static)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            result = self.layer(*static)
        wrong = []
        for kind in ("single", "messy", "uniform"):
            for tensor, new in zip(static, self.batch(kind, self.most), strict=True):
                tensor.copy_(new)
            graph.replay()
            x, idx, weights = static
            wrong += self.compare(f"graph {kind}", result, x.float() * sums(idx, weights))
        self.shuffle.check()
        return wrong

    def gradients(self) -> list[str]:
        """Of rows and weights through two layers, against plain torch."""
        x, idx, weights = self.batch("messy", self.most // 2)
        leaves = [x.float().requires_grad_(), weights.requires_grad_()]
        y = self.layer(leaves[0].bfloat16(), idx, leaves[1])
        y = self.layer(y, idx, leaves[1])
        found = torch.autograd.grad(y.float().square().sum(), leaves)
        z = leaves[0] * sums(idx, leaves[1]) ** 2
        wanted = torch.autograd.grad(z.square().sum(), leaves)
        pairs = zip(("rows", "weights"), found, wanted, strict=True)
        wrong = [w for name, f, g in pairs for w in self.compare(f"gradient of {name}", f, g)]
        self.shuffle.check()
        return wrong

    def compare(self, what: str, found: Any, wanted: Any) -> list[str]:
        error = float((found.float() - wanted).norm() / wanted.norm().clamp(min=1e-30))
        return [] if error < 1e-2 else [f"{what} is off by {error:.1e}"]


def sums(idx: Any, weights: Any) -> Any:
    return (weights * (idx >= 0)).sum(1, keepdim=True)


def main() -> int:
    join()
    failed = False
    for artifact in sys.argv[1:]:
        for most in (FEW, MANY):
            compact = Compact(artifact, most)
            for check in (compact.rows_and_sums, compact.graph, compact.gradients):
                what = f"{compact.shuffle.backend}, {most} tokens, {check.__name__}"
                failed = settle(check(), what) or failed
            compact.shuffle.close()
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks: {'FAILED' if failed else 'all hold'}", flush=True)
    dist.destroy_process_group()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
