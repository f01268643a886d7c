"""One rank of `ab.py`: times a compiled mixture of experts, verifies it, and writes both as JSON.

    torchrun --nproc-per-node 2 benchmarks/ab_rank.py ARTIFACT OUT uniform:8192 graph:uniform:128

The same file runs beside the packages of either version. So it uses nothing else of this folder,
and of a version only ``Shuffle(artifact, max_sources=…)``, ``dispatch``, ``combine``, ``close``.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

import fuscoc_runtime

HIDDEN, EXPERTS, TOPK, ALIGN = 7168, 256, 8, 128
TURNS = 25
REPLAYS = 50
NUM_REPLAYED = 4  # batches that a CUDA graph is replayed with in turn
HIDE_LAUNCH_CYCLES = 1_500_000  # the GPU is kept busy while the host enqueues a measured call
HEAD_START_CYCLES = 20_000_000
CHUNK = 1 << 14  # rows that are compared at once


@dataclass(frozen=True, eq=False)
class Batch:
    """One rank's inputs."""

    x: Tensor
    topk_idx: Tensor
    weights: Tensor

    @classmethod
    def make(cls, topk_idx: Tensor, generator: torch.Generator) -> Batch:
        device, tokens = topk_idx.device, len(topk_idx)
        x = torch.randn(tokens, HIDDEN, device=device, generator=generator).bfloat16()
        weights = torch.rand(tokens, TOPK, device=device, generator=generator)
        return cls(x, topk_idx, weights / weights.sum(1, keepdim=True))


def routing(kind: str, tokens: int, num_ranks: int, generator: torch.Generator) -> Tensor:
    """int64 [tokens, TOPK]: uniform, single (all on one rank) or skewed (Zipf 1.0)."""
    device = generator.device
    scores = torch.rand(tokens, EXPERTS, device=device, generator=generator)
    if kind == "single":
        chosen = torch.randint(num_ranks, (tokens, 1), device=device, generator=generator)
        owner = torch.arange(EXPERTS, device=device) // -(-EXPERTS // num_ranks)
        scores = torch.where(owner == chosen, scores, scores - 1)
    elif kind == "skewed":
        order = torch.randperm(EXPERTS, generator=torch.Generator().manual_seed(11)).to(device)
        # Gumbel top-k draws without replacement in proportion to popularity.
        gumbel = -(-scores.clamp(1e-9, 1 - 1e-9).log()).log()
        scores = gumbel - (order + 1).float().log()
    return scores.topk(TOPK, dim=1).indices


class Calls:
    """A dispatch and a combine of tensors that stay where they are."""

    def __init__(self, shuffle: fuscoc_runtime.Shuffle, batch: Batch) -> None:
        self.shuffle = shuffle
        self.batch = Batch(batch.x.clone(), batch.topk_idx.clone(), batch.weights.clone())
        self.dispatch()
        self.outputs = torch.zeros_like(self.rows)
        self.combine()

    def use(self, batch: Batch) -> None:
        self.batch.x.copy_(batch.x)
        self.batch.topk_idx.copy_(batch.topk_idx)
        self.batch.weights.copy_(batch.weights)

    def dispatch(self) -> None:
        batch = self.batch
        self.rows, self.handle = self.shuffle.dispatch(
            batch.x, topk_idx=batch.topk_idx, topk_weights=batch.weights
        )

    def combine(self) -> None:
        self.result = self.shuffle.combine(self.outputs, self.handle)

    def both(self) -> None:
        self.dispatch()
        self.combine()

    def captured(self, pairs: int) -> Callable[[], None]:
        """Replays both so many times from a CUDA graph."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.both()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(pairs):
                self.both()
        return graph.replay


def own_slots(all_keys: Tensor, rank: int, num_ranks: int) -> tuple[Tensor, Tensor, Tensor]:
    """(slot, key, point) of every row of ``rank``, from the keys of all ranks' points in order:
    keys ascending, each from an aligned slot; within a key, points in order."""
    own = (all_keys // -(-EXPERTS // num_ranks) == rank).nonzero().squeeze(1)
    keys, order = all_keys[own].sort(stable=True)
    counts = torch.bincount(keys, minlength=EXPERTS)
    padded = (counts + ALIGN - 1) // ALIGN * ALIGN
    gaps = (padded - counts).cumsum(0) - (padded - counts)
    return torch.arange(len(keys), device=keys.device) + gaps[keys], keys, own[order]


def of_all_ranks(tensor: Tensor) -> Tensor:
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return torch.cat(parts)


def verify(calls: Calls, run: Callable[[], object]) -> list[str]:
    """What is wrong with a ``run`` of both: rows must be equal bit by bit, sums within 1e-2 of the
    norm of those in f32. Collective."""
    x, topk_idx = calls.batch.x, calls.batch.topk_idx
    scale = torch.linspace(0.5, 1.5, EXPERTS, device=x.device)
    all_keys = of_all_ranks(topk_idx).reshape(-1)
    slots, keys, points = own_slots(all_keys, dist.get_rank(), dist.get_world_size())
    all_x = of_all_ranks(x)
    calls.rows.fill_(float("nan"))
    barrier(x.device)
    run()
    bad = 0
    outputs = torch.full_like(calls.outputs, float("nan"))
    for at, key, point in zip(
        slots.split(CHUNK), keys.split(CHUNK), points.split(CHUNK), strict=True
    ):
        rows = calls.rows[at]
        sent = all_x[point // TOPK]
        bad += int((rows.view(torch.int16) != sent.view(torch.int16)).any(1).sum())
        outputs[at] = (rows.float() * scale[key].unsqueeze(1)).bfloat16()
    calls.outputs.copy_(outputs)
    calls.result.fill_(float("nan"))
    barrier(x.device)
    run()
    want = torch.zeros(x.shape, device=x.device)
    for k in range(TOPK):
        row = (x.float() * scale[topk_idx[:, k]].unsqueeze(1)).bfloat16().float()
        want += row * calls.batch.weights[:, k].unsqueeze(1)
    error = float((calls.result.float() - want).norm() / want.norm())
    wrong = [f"{bad} of {len(slots)} rows differ"] if bad else []
    return wrong + ([] if error < 1e-2 else [f"combine is off by {error:.2e}"])


def barrier(device: torch.device) -> None:
    """All ranks reach the same point, on the device; where that is a GPU, the host does not."""
    dist.all_reduce(torch.zeros(1, device=device))


def gpu_times(
    calls: Mapping[str, Callable[[], object]], turns: int, prepare: Callable[[int], None]
) -> dict[str, float]:
    """Microseconds of the calls, made in turn: the largest over the ranks, the median of the
    turns. ``prepare(turn)`` comes before each."""
    events = [
        [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in calls]
        for _ in range(turns)
    ]
    word = torch.zeros(1, device="cuda")
    torch.cuda._sleep(HEAD_START_CYCLES)
    for turn in range(turns):
        prepare(turn)
        for call, (begin, end) in zip(calls.values(), events[turn], strict=True):
            torch.cuda._sleep(HIDE_LAUNCH_CYCLES)
            dist.all_reduce(word)
            begin.record()
            call()
            end.record()
    torch.cuda.synchronize()
    elapsed = [[b.elapsed_time(e) * 1e3 for b, e in pairs] for pairs in events]
    own = torch.tensor(elapsed, device="cuda")
    dist.all_reduce(own, op=dist.ReduceOp.MAX)
    return dict(zip(calls, own.cpu().quantile(0.5, dim=0).tolist(), strict=True))


def host_time(call: Callable[[], object]) -> float:
    """Microseconds that the host takes to enqueue a call: the largest over the ranks, the median
    of the turns."""
    times = []
    for _ in range(TURNS):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda._sleep(HEAD_START_CYCLES)  # what is enqueued does not disturb
        started = time.perf_counter()
        for _ in range(10):
            call()
        times.append((time.perf_counter() - started) * 1e5)
    slowest = torch.tensor(statistics.median(times), device="cuda")
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest)


def measure(
    case: str, shuffle: fuscoc_runtime.Shuffle, generator: torch.Generator
) -> tuple[dict[str, float], list[str]]:
    """Microseconds by what took them, and what is wrong on this rank."""
    *how, kind, tokens = case.split(":")
    topk_idx = routing(kind, int(tokens), dist.get_world_size(), generator)
    calls = Calls(shuffle, Batch.make(topk_idx, generator))
    if how == ["host"]:
        wrong = verify(calls, calls.both)
        return {case: host_time(calls.both)}, wrong
    if how:
        pairs = int(how[0].removeprefix("graph") or 1)
        replay = calls.captured(pairs)
        wrong = verify(calls, replay)
        orders = [
            torch.randperm(len(topk_idx), device=generator.device, generator=generator)
            for _ in range(NUM_REPLAYED)
        ]
        batches = [Batch.make(topk_idx[order], generator) for order in orders]

        def prepare(turn: int) -> None:
            calls.use(batches[turn % NUM_REPLAYED])

        gpu_times({case: replay}, 5, prepare)
        times = gpu_times({case: replay}, REPLAYS, prepare)
        return {case: times[case] / pairs}, wrong + verify(calls, replay)
    wrong = verify(calls, calls.both)
    both = {f"{case} dispatch": calls.dispatch, f"{case} combine": calls.combine}
    gpu_times(both, 3, lambda turn: None)
    return gpu_times(both, TURNS, lambda turn: None), wrong


def main() -> None:
    artifact, out, *cases = sys.argv[1:]
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device, timeout=timedelta(seconds=120))
    rank = dist.get_rank()
    opened: dict[int, fuscoc_runtime.Shuffle] = {}
    times: dict[str, float] = {}
    wrong: list[str] = []
    for case in cases:
        tokens = int(case.rpartition(":")[2])
        if tokens not in opened:
            opened[tokens] = fuscoc_runtime.Shuffle(artifact, max_sources=tokens)
        generator = torch.Generator(device).manual_seed(1000 + rank)
        found, problems = measure(case, opened[tokens], generator)
        times |= found
        wrong += [f"{case}, rank {rank}: {problem}" for problem in problems]
    for shuffle in opened.values():
        shuffle.close()  # and raises what went wrong
    everyones: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyones, wrong)
    if rank == 0:
        report = {
            "runtime": fuscoc_runtime.__file__,
            "setup": f"{torch.cuda.get_device_name()}, torch {torch.__version__}",
            "times": times,
            "wrong": [line for lines in everyones for line in lines],
        }
        Path(out).write_text(json.dumps(report), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
