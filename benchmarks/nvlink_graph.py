"""Dispatch and combine replayed from one CUDA graph, as `nvlink.py --graph` measures them.

Every replay has another routing, other rows and other weights than the one before it: they are
copied into the captured tensors before the clock starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.distributed as dist

from benchmarks.moe_cases import Model, check_combine, check_rows, expert_outputs
from benchmarks.nvlink_contenders import Batch, Fuscoc
from benchmarks.nvlink_timing import Barrier, time_calls
from fuscoc_runtime import Shuffle


class Replay:
    """A dispatch and a combine captured together, and the batches that it is replayed with, which
    have as many tokens as each other."""

    def __init__(self, shuffle: Shuffle, model: Model, batches: Sequence[Batch]) -> None:
        self._batches = batches
        first = batches[0]
        captured = replace(
            first,
            x=first.x.clone(),
            topk_idx=first.topk_idx.clone(),
            weights=first.weights.clone(),
        )
        self._calls = calls = Fuscoc(shuffle, model, captured)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            calls.dispatch()
            calls.combine()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            calls.dispatch()
            calls.combine()

    def _use(self, batch: Batch) -> None:
        captured = self._calls.batch
        captured.x.copy_(batch.x)
        captured.topk_idx.copy_(batch.topk_idx)
        captured.weights.copy_(batch.weights)

    def verify(self) -> list[str]:
        """What is wrong with a replay of each batch; collective."""
        calls, wrong = self._calls, []
        experts = calls.model.experts
        for batch in self._batches:
            self._use(batch)
            calls.rows.view(torch.uint8).fill_(0xFF)
            calls.result.fill_(float("nan"))
            torch.cuda.synchronize()
            dist.barrier()
            self._graph.replay()
            wrong += check_rows(calls.handle, [calls.rows], [batch.x], batch.expected, None)
            index = calls.handle.row_index
            calls.outputs.copy_(expert_outputs(calls.rows, batch.expected, experts, index))
            self._graph.replay()
            wrong += check_combine(calls.result, batch.x, batch.topk_idx, batch.weights, experts)
        calls.shuffle.check()
        return [f"in a graph: {line}" for line in wrong]

    def times(self, replays: int, barrier: Barrier) -> torch.Tensor:
        """Microseconds [replays], largest over the ranks."""

        def prepare(turn: int) -> None:
            self._use(self._batches[turn % len(self._batches)])

        return time_calls(self._graph.replay, prepare, replays, barrier)
