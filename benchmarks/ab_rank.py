"""One rank of `ab.py`: times compiled mixtures of experts, and verifies them.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=… MASTER_PORT=… python benchmarks/ab_rank.py ARTIFACTS NODES

It takes a case a line, and answers with a line of JSON: microseconds by what took them, and what
was wrong on this rank. Waiting for the next, it leaves the GPU to others. Inside one node shuffles
are of fixed capacity; between several of exact sizes.

The same file runs beside the packages of either version. So it uses nothing else of this folder,
and of a version only ``Shuffle``, ``Topology``, ``dispatch``, ``combine`` and ``close``.
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
HIDE_LAUNCH_CYCLES = 4_000_000  # the GPU is kept busy while the host enqueues a measured call
HEAD_START_CYCLES = 20_000_000
CHUNK = 1 << 14  # rows that are compared at once
BLOCK = 128  # elements of fp8 that share a scale


@dataclass(frozen=True, eq=False)
class Batch:
    """One rank's inputs: fields of the tokens by name, and weights unless they are of fp8."""

    source: dict[str, Tensor]
    topk_idx: Tensor
    weights: Tensor | None

    @classmethod
    def make(cls, topk_idx: Tensor, generator: torch.Generator, *, fp8: bool = False) -> Batch:
        device, tokens = topk_idx.device, len(topk_idx)
        x = torch.randn(tokens, HIDDEN, device=device, generator=generator)
        weights = torch.rand(tokens, TOPK, device=device, generator=generator)
        if fp8:
            scales = x[:, ::BLOCK].contiguous()
            return cls({"x": x.to(torch.float8_e4m3fn), "scales": scales}, topk_idx, None)
        return cls({"x": x.bfloat16()}, topk_idx, weights / weights.sum(1, keepdim=True))

    @property
    def arguments(self) -> dict[str, Tensor]:
        weights = {} if self.weights is None else {"topk_weights": self.weights}
        return {**self.source, "topk_idx": self.topk_idx, **weights}


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
    """A dispatch and a combine of tensors that stay where they are; of fp8 a dispatch alone."""

    def __init__(self, shuffle: fuscoc_runtime.Shuffle, batch: Batch) -> None:
        self.shuffle, self.batch = shuffle, batch
        self.arguments = {name: each.clone() for name, each in batch.arguments.items()}
        self.dispatch()
        if batch.weights is not None:
            self.outputs = torch.zeros_like(self.rows["x"])
            self.combine()

    def use(self, batch: Batch) -> None:
        self.batch = batch
        for name, each in batch.arguments.items():
            self.arguments[name].copy_(each)

    def dispatch(self) -> None:
        rows, self.handle = self.shuffle.dispatch(**self.arguments)
        self.rows = {"x": rows} if isinstance(rows, Tensor) else dict(rows)

    def combine(self) -> None:
        self.result = self.shuffle.combine(self.outputs, self.handle)

    def all(self) -> None:
        self.dispatch()
        if self.batch.weights is not None:
            self.combine()

    def captured(self, pairs: int) -> Callable[[], None]:
        """Replays all so many times from a CUDA graph."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.all()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(pairs):
                self.all()
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
    """What is wrong with a ``run`` of all: rows must be equal bit by bit, sums within 1e-2 of the
    norm of those in f32. Collective."""
    all_keys = of_all_ranks(calls.batch.topk_idx).reshape(-1)
    slots, keys, points = own_slots(all_keys, dist.get_rank(), dist.get_world_size())
    for rows in calls.rows.values():
        rows.view(torch.uint8).fill_(0xFF)  # NaN
    barrier(slots.device)
    run()
    wrong = []
    for name, rows in calls.rows.items():
        sent = of_all_ranks(calls.batch.source[name].view(torch.uint8))
        bad = 0
        for at, point in zip(slots.split(CHUNK), points.split(CHUNK), strict=True):
            bad += int((rows[at].view(torch.uint8) != sent[point // TOPK]).any(1).sum())
        wrong += [f"{bad} of {len(slots)} rows of {name} differ"] if bad else []
    return wrong if calls.batch.weights is None else wrong + verify_sums(calls, run, slots, keys)


def verify_sums(calls: Calls, run: Callable[[], object], slots: Tensor, keys: Tensor) -> list[str]:
    """The same of what comes back, where experts scale rows. Collective."""
    x, topk_idx, weights = calls.batch.source["x"], calls.batch.topk_idx, calls.batch.weights
    assert weights is not None
    scale = torch.linspace(0.5, 1.5, EXPERTS, device=x.device)
    outputs = torch.full_like(calls.outputs, float("nan"))
    for at, key in zip(slots.split(CHUNK), keys.split(CHUNK), strict=True):
        rows = calls.rows["x"][at]
        outputs[at] = (rows.float() * scale[key].unsqueeze(1)).bfloat16()
    calls.outputs.copy_(outputs)
    calls.result.fill_(float("nan"))
    barrier(x.device)
    run()
    want = torch.zeros(x.shape, device=x.device)
    for k in range(TOPK):
        row = (x.float() * scale[topk_idx[:, k]].unsqueeze(1)).bfloat16().float()
        want += row * weights[:, k].unsqueeze(1)
    error = float((calls.result.float() - want).norm() / want.norm())
    return [] if error < 1e-2 else [f"combine is off by {error:.2e}"]


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


@dataclass(frozen=True, eq=False)
class Case:
    """What is measured in a turn: ``run`` is all of it, which is verified each time."""

    calls: Calls
    run: Callable[[], object]
    time: Callable[[], dict[str, float]]

    @classmethod
    def make(cls, case: str, shuffle: fuscoc_runtime.Shuffle, generator: torch.Generator) -> Case:
        *how, kind, tokens = case.split(":")
        topk_idx = routing(kind, int(tokens), dist.get_world_size(), generator)
        calls = Calls(shuffle, Batch.make(topk_idx, generator, fp8=how == ["fp8"]))
        if how == ["host"]:
            return cls(calls, calls.all, lambda: {case: host_time(calls.all)})
        if how and how[0].startswith("graph"):
            return cls._replayed(case, calls, int(how[0].removeprefix("graph") or 1), generator)
        parts = {f"{case} dispatch": calls.dispatch}
        if calls.batch.weights is not None:
            parts[f"{case} combine"] = calls.combine

        def time_parts() -> dict[str, float]:
            gpu_times(parts, 3, lambda turn: None)
            return gpu_times(parts, TURNS, lambda turn: None)

        return cls(calls, calls.all, time_parts)

    @classmethod
    def _replayed(cls, case: str, calls: Calls, pairs: int, generator: torch.Generator) -> Case:
        replay = calls.captured(pairs)
        topk_idx = calls.batch.topk_idx
        orders = [
            torch.randperm(len(topk_idx), device=generator.device, generator=generator)
            for _ in range(NUM_REPLAYED)
        ]
        batches = [Batch.make(topk_idx[order], generator) for order in orders]

        def prepare(turn: int) -> None:
            calls.use(batches[turn % NUM_REPLAYED])

        def time_replays() -> dict[str, float]:
            gpu_times({case: replay}, 5, prepare)
            return {case: gpu_times({case: replay}, REPLAYS, prepare)[case] / pairs}

        return cls(calls, replay, time_replays)


class Opened:
    """The shuffles of a process, by artifact and capacity, opened when a case is the first that
    needs them."""

    def __init__(self, artifacts: Path, num_nodes: int) -> None:
        self.artifacts = artifacts
        self.topology = fuscoc_runtime.Topology(num_nodes, dist.get_world_size() // num_nodes)
        self._shuffles: dict[tuple[str, int | None], fuscoc_runtime.Shuffle] = {}

    def of(self, case: str) -> fuscoc_runtime.Shuffle:
        name = "fp8" if case.startswith("fp8:") else "moe"
        capacity = int(case.rpartition(":")[2]) if self.topology.num_nodes == 1 else None
        if (name, capacity) not in self._shuffles:
            self._shuffles[name, capacity] = fuscoc_runtime.Shuffle(
                self.artifacts / name, topology=self.topology, max_sources=capacity
            )
        return self._shuffles[name, capacity]

    def close(self) -> None:
        for shuffle in self._shuffles.values():
            shuffle.close()  # and raises what went wrong


def main() -> None:
    reports = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no report
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device, timeout=timedelta(seconds=120))
    opened = Opened(Path(sys.argv[1]), int(sys.argv[2]))
    setup = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    cases: dict[str, Case] = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in cases:
            generator = torch.Generator(device).manual_seed(1000 + rank)
            cases[name] = Case.make(name, opened.of(name), generator)
        case = cases[name]
        wrong = [f"{name}, rank {rank}: {problem}" for problem in verify(case.calls, case.run)]
        report = {"times": case.time(), "wrong": wrong, "setup": setup}
        report["runtime"] = fuscoc_runtime.__file__
        print(json.dumps(report), file=reports, flush=True)
    opened.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
