"""DeepEP's calls on real GPUs, as ``rank_work`` makes them on CPUs; run by torchrun.

``python -m torch.distributed.run --nproc-per-node N -m tests.deep_ep.gpu_run`` takes what
``tests.deep_ep.artifacts`` has written into the folder ``FUSCOC_DEEP_EP``, says of every part what
came of it, and exits non-zero, after naming mismatches, when something is wrong. Ranks may share a
GPU, as in ``tests/node_exact/exact_gpu_run.py``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

import fuscoc_runtime.deep_ep as deep_ep
from fuscoc_runtime.topology import Topology
from tests.deep_ep import cases, elastic_work, rank_work
from tests.gpu_ranks import device_of, join

RANK, NUM_RANKS = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
DEVICE = device_of(Topology(1, NUM_RANKS), RANK)
OPTIONS = {"topology": f"1x{NUM_RANKS}"}
CASES = {
    "small": (cases.SMALL, [13, 0, 7, 11], [13, 0, 7, 11]),
    "large": (cases.LARGE, [1024, 700, 0, 1], [128, 87, 0, 1]),
}
"""Tokens of the normal calls, and of those of low latency, where every expert has room for all."""
REPLAYS, SLOT_REPLAYS = 20, 5  # rows of every expert are compared one by one


def captured(group: Any, shape: cases.Shape) -> list[str]:
    """Layout, dispatch and combines of ``num_worst_tokens`` in a CUDA graph, routed anew."""
    checks, num = cases.Checks(), 64
    routed = [
        cases.make_case(group, str(DEVICE), shape, [num] * NUM_RANKS, seed)
        for seed in range(REPLAYS)
    ]
    buffer = deep_ep.Buffer(group, explicitly_destroy=True, **OPTIONS)
    x, idx, weights = (
        each[RANK].clone() for each in (routed[0].x, routed[0].idx, routed[0].weights)
    )

    bias = routed[-1].x[RANK].flip(1).contiguous()

    def step() -> tuple[Any, ...]:
        per_rank, _, per_expert, goes, _ = buffer.get_dispatch_layout(idx, shape.experts)
        rows, experts, gates, _, handle, _ = buffer.dispatch(
            x,
            num_tokens_per_rank=per_rank,
            num_tokens_per_expert=per_expert,
            is_token_in_rank=goes,
            topk_idx=idx,
            topk_weights=weights,
            num_worst_tokens=num * NUM_RANKS,
        )
        assert isinstance(rows, torch.Tensor)
        assert handle is not None
        back, sums, _ = buffer.combine(rows, handle, topk_weights=gates)
        biased, _, _ = buffer.combine(rows, handle, bias=(bias, x))
        return rows, experts, back, sums, biased, goes

    step()
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows, experts, back, sums, biased, goes = step()
    for case in routed:
        for mine, new in ((x, case.x), (idx, case.idx), (weights, case.weights)):
            mine.copy_(new[RANK])
        graph.replay()
        wanted = case.received(case.x, RANK)
        checks.equal("replayed rows", rows[: len(wanted)], wanted)
        checks.equal("replayed rows' number", int((experts >= 0).any(1).sum()), len(wanted))
        checks.near("replayed combine", back, x.float() * goes.sum(1, keepdim=True), 2**-7)
        checks.equal("replayed weights", sums, torch.where(idx >= 0, weights, 0))
        terms = x[:, None].expand(-1, NUM_RANKS, -1)
        checks.equal("replayed sums with biases", biased, cases.in_order(terms, goes, (bias, x)))
    torch.cuda.synchronize()
    del graph
    buffer.destroy()
    return checks.wrong


def low_latency_captured(group: Any, shape: cases.Shape, is_fp8: bool) -> list[str]:
    """Low-latency dispatch and combine with hooks in a CUDA graph, routed and weighed anew."""
    checks, num = cases.Checks(), 32
    routed = [
        cases.make_case(group, str(DEVICE), shape, [num] * NUM_RANKS, seed)
        for seed in range(SLOT_REPLAYS)
    ]
    buffer = deep_ep.Buffer(group, 0, 0, True, explicitly_destroy=True, **OPTIONS)
    x, idx, weights = (
        each[RANK].clone() for each in (routed[0].x, routed[0].idx, routed[0].weights)
    )

    def step() -> tuple[Any, ...]:
        rows, count, handle, _, arrive = buffer.low_latency_dispatch(
            x, idx, num, shape.experts, use_fp8=is_fp8, return_recv_hook=True
        )
        assert arrive is not None
        arrive()
        work = cases.from_fp8(*rows) if is_fp8 else rows.clone()
        back, _, arrive = buffer.low_latency_combine(
            work, idx, weights, handle, return_recv_hook=True
        )
        assert arrive is not None
        arrive()
        return rows, count, handle, back

    step()
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows, count, handle, back = step()
    for case in routed:
        for mine, new in ((x, case.x), (idx, case.idx), (weights, case.weights)):
            mine.copy_(new[RANK])
        graph.replay()
        rank_work.check_slots(checks, case, rows, count, handle, {"use_fp8": is_fp8})
        there = torch.where(idx >= 0, weights, 0).sum(1, keepdim=True)
        rounding = 2**-3 if is_fp8 else 2**-7
        checks.near("replayed low-latency combine", back, x.float() * there, rounding)
    torch.cuda.synchronize()
    del graph
    buffer.destroy()
    return checks.wrong


def parts(group: Any) -> Iterator[tuple[str, Callable[[], list[str]]]]:
    for size, (shape, sizes, few) in CASES.items():
        common = group, str(DEVICE), shape
        yield f"{size}: low latency", partial(rank_work.low_latency, *common, few, dict(OPTIONS))
        for is_fp8 in (False, True):
            kind = "fp8" if is_fp8 else "bf16"
            made = partial(low_latency_captured, group, shape, is_fp8)
            yield f"{size}: low latency, {kind}, in a graph", made
        yield f"{size}: num_worst_tokens in a graph", partial(captured, group, shape)
        yield f"{size}: elastic", partial(elastic_work.elastic, *common, sizes, dict(OPTIONS))
        yield f"{size}: normal", partial(rank_work.normal, *common, sizes, dict(OPTIONS))


def main() -> int:
    join()
    group = dist.group.WORLD
    is_wrong = False
    for name, part in parts(group):
        began = time.monotonic()
        everyone: list[list[str]] = [[] for _ in range(NUM_RANKS)]
        dist.all_gather_object(everyone, part())
        is_wrong |= any(everyone)
        if RANK == 0:
            said = "FAILED" if any(everyone) else "holds"
            print(f"{name}: {said}, {time.monotonic() - began:.0f} s", flush=True)
            for rank, lines in enumerate(everyone):
                print("".join(f"WRONG on rank {rank}: {line}\n" for line in lines[:8]), end="")
    if RANK == 0:
        print(f"{NUM_RANKS} ranks: {'FAILED' if is_wrong else 'all hold'}", flush=True)
    dist.destroy_process_group()
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
