"""Dispatch and combine inside one NVLink node, against NCCL and against the physical bound.

    python -m benchmarks.nvlink --compile-only --shape deepseek-v3
    python -m torch.distributed.run --nproc-per-node 4 benchmarks/nvlink.py --breakdown

The artifact is compiled if ``build/nvlink`` lacks it, so that the ranks need no compiler. All
contenders run interleaved in one process group on the same inputs, and each is verified in the
same run. A time is CUDA events around a call, after a device barrier; the largest over the ranks
counts, and the median over the iterations. NCCL contenders get their layout for free (computed
outside the timed calls; ``--breakdown`` times it); fuscoc's times include planning, counts and
weights.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.moe_cases import (
    SHAPES,
    Bound,
    Model,
    bound,
    expected_rows,
    gather_ragged,
    owners,
    routing,
    spec,
)
from benchmarks.nvlink_contenders import Batch, Contender, Fuscoc, NcclAllToAll
from benchmarks.nvlink_report import markdown, plot
from fuscoc_runtime import Shuffle

HIDE_LAUNCH_CYCLES = 1_500_000  # the GPU is kept busy while the host enqueues a measured call
ARTIFACTS = Path("build/nvlink")


def artifact(shape: str) -> Path:
    """The compiled shuffle of a model; compiles it if it is not there yet."""
    path = ARTIFACTS / shape
    if not path.exists():
        import fuscoc

        fuscoc.compile(spec(SHAPES[shape]), path)
    return path


class Barrier:
    """All GPUs reach the same point, on the device."""

    def __init__(self, device: torch.device) -> None:
        self._word = torch.zeros(1, device=device)

    def __call__(self) -> None:
        dist.all_reduce(self._word)


def time_contenders(
    contenders: list[Contender], iterations: int, barrier: Barrier
) -> dict[str, torch.Tensor]:
    """Microseconds [iterations, 2] (dispatch, combine) for each contender, largest over ranks."""
    marks = {
        c.name: [
            [torch.cuda.Event(enable_timing=True) for _ in range(4)] for _ in range(iterations)
        ]
        for c in contenders
    }
    for i in range(iterations):
        for contender in contenders:
            events = marks[contender.name][i]
            for call, begin, end in ((contender.dispatch, 0, 1), (contender.combine, 2, 3)):
                torch.cuda._sleep(HIDE_LAUNCH_CYCLES)
                barrier()
                events[begin].record()
                call()
                events[end].record()
    torch.cuda.synchronize()
    times = {}
    for name, rows in marks.items():
        own = torch.tensor(
            [[e[0].elapsed_time(e[1]) * 1e3, e[2].elapsed_time(e[3]) * 1e3] for e in rows],
            device="cuda",
        )
        dist.all_reduce(own, op=dist.ReduceOp.MAX)
        times[name] = own.cpu()
    return times


def time_graph(contender: Contender, replays: int, barrier: Barrier) -> torch.Tensor:
    """Microseconds [replays] of dispatch + combine replayed from one CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        contender.dispatch()
        contender.combine()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        contender.dispatch()
        contender.combine()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(replays)]
    for begin, end in events:
        torch.cuda._sleep(100_000)
        barrier()
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    own = torch.tensor([b.elapsed_time(e) * 1e3 for b, e in events], device="cuda")
    dist.all_reduce(own, op=dist.ReduceOp.MAX)
    return own.cpu()


def time_parts(contender: Contender, iterations: int, barrier: Barrier) -> dict[str, float]:
    """Microseconds of GPU time of rank 0 in a dispatch and a combine, by what the kernels do.

    ``fused`` kernels rearrange and communicate at once. Planning that dispatch got for free is
    host time, its synchronisations included.
    """
    calls = (contender.dispatch, contender.combine)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(iterations):
            for call in calls:
                torch.cuda._sleep(HIDE_LAUNCH_CYCLES)
                barrier()
                call()
        torch.cuda.synchronize()
    parts: dict[str, float] = {}
    for event in profile.key_averages():
        part = _part(event.key)
        if part is not None:
            parts[part] = parts.get(part, 0.0) + event.device_time_total / iterations
    if contender.plan is not None:
        times = []
        for _ in range(iterations):
            torch.cuda.synchronize()
            dist.barrier()
            started = time.perf_counter()
            contender.plan()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - started) * 1e6)
        parts["planning"] = statistics.median(times)
    return parts


def _part(kernel: str) -> str | None:
    """What a kernel or copy does, by its name; None for the barrier and bookkeeping."""
    if any(word in kernel for word in ("AllReduce", "Memcpy", "Memset", "spin_kernel")):
        return None
    if "nccl" in kernel:
        return "communication"
    if kernel.startswith("moe_"):
        return "planning" if kernel.startswith("moe_plan") else "fused"
    return "rearrangement"


def summarise(times: torch.Tensor, limit: Bound) -> dict[str, float]:
    total = times.sum(1)
    tenth, median, ninetieth = torch.quantile(total, torch.tensor([0.1, 0.5, 0.9])).tolist()
    return {
        "dispatch_us": times[:, 0].median().item(),
        "combine_us": times[:, 1].median().item(),
        "total_us": median,
        "p10_us": tenth,
        "p90_us": ninetieth,
        "bound_us": limit.total,
        "times_bound": median / limit.total,
    }


def largest_bound(limit: Bound) -> Bound:
    words = torch.tensor([limit.dispatch, limit.combine], device="cuda")
    dist.all_reduce(words, op=dist.ReduceOp.MAX)
    return Bound(*words.tolist())


def make_batch(
    model: Model, topk_idx: torch.Tensor, generator: torch.Generator, owner: torch.Tensor
) -> Batch:
    num_tokens, topk = topk_idx.shape
    x = torch.randn(num_tokens, model.hidden, device=generator.device, generator=generator)
    weights = torch.rand(num_tokens, topk, device=generator.device, generator=generator)
    weights /= weights.sum(1, keepdim=True)
    all_idx = gather_ragged(topk_idx, None)
    expected = expected_rows(all_idx, owner, model.align, dist.get_rank())
    return Batch(x.bfloat16(), topk_idx, weights, all_idx, expected)


def routings(
    options: argparse.Namespace, model: Model, generator: torch.Generator
) -> list[tuple[str, torch.Tensor]]:
    """(name, this rank's topk_idx) of every case: made up, and recorded in a .pt or .npy file of
    int64 [ranks, tokens, topk]."""
    num_ranks = dist.get_world_size()
    found = [
        (kind, routing(kind, tokens, model, num_ranks, generator))
        for kind in options.kind
        for tokens in options.tokens
    ]
    if options.routing is not None:
        import numpy

        recorded = torch.from_numpy(numpy.load(options.routing))
        mine = recorded[dist.get_rank()].to(generator.device, torch.int64)
        found.append((options.routing.stem, mine.contiguous()))
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shape", choices=SHAPES, default="deepseek-v3")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 8192])
    parser.add_argument("--kind", nargs="*", default=["uniform", "single", "skewed"])
    parser.add_argument(
        "--routing", type=Path, help="a recorded routing: .npy, int64 [ranks, tokens, topk]"
    )
    parser.add_argument("--iterations", type=int, default=25)
    parser.add_argument("--num-sms", type=int, nargs="+", default=[0], help="0: all")
    parser.add_argument("--no-nccl", action="store_true")
    parser.add_argument("--graph", action="store_true", help="replay both from one CUDA graph")
    parser.add_argument("--breakdown", action="store_true", help="where the time goes")
    parser.add_argument("--compile-only", action="store_true", help="write the artifact and stop")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.compile_only:
        print(artifact(options.shape))
        return
    rank, device = int(os.environ["RANK"]), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    num_ranks, model = dist.get_world_size(), SHAPES[options.shape]
    generator = torch.Generator(device).manual_seed(1000 + rank)
    owner, barrier = owners(model, num_ranks, device), Barrier(device)
    cases = routings(options, model, generator)
    sizes: list[int] = [0] * num_ranks
    dist.all_gather_object(sizes, max(idx.shape[0] for _, idx in cases))
    shuffles = {
        num_sms: Shuffle(artifact(options.shape), max_sources=max(sizes), num_sms=num_sms or None)
        for num_sms in options.num_sms
    }
    report = []
    for kind, topk_idx in cases:
        batch = make_batch(model, topk_idx, generator, owner)
        limit = largest_bound(bound(batch.all_idx, owner, model.hidden * 2, rank))
        contenders = [
            Fuscoc(shuffle, model, batch).contender(
                f"fuscoc {shuffle.backend}" + (f", {num_sms} SMs" if num_sms else "")
            )
            for num_sms, shuffle in shuffles.items()
        ]
        if not options.no_nccl:
            contenders += [
                NcclAllToAll(model, batch, owner, dedup).contender(f"NCCL a2a, {name}")
                for name, dedup in (("rank-deduplicated", True), ("naive", False))
            ]
        problems = {c.name: c.verify() for c in contenders}
        time_contenders(contenders, 3, barrier)
        times = time_contenders(contenders, options.iterations, barrier)
        for contender in contenders:
            wrong: list[list[str]] = [[] for _ in range(num_ranks)]
            dist.all_gather_object(wrong, problems[contender.name])
            entry: dict[str, object] = {
                "routing": kind, "num_tokens": topk_idx.shape[0], "contender": contender.name,
                **summarise(times[contender.name], limit),
                "wrong": [line for lines in wrong for line in lines],
            }  # fmt: skip
            if options.breakdown:
                entry["parts"] = time_parts(contender, 5, barrier)
            if options.graph and contender.name.startswith("fuscoc"):
                graph = time_graph(contender, 50, barrier)
                tenth, median, ninetieth = torch.quantile(
                    graph, torch.tensor([0.1, 0.5, 0.9])
                ).tolist()
                entry |= {"graph_us": median, "graph_p10_us": tenth, "graph_p90_us": ninetieth}
            report.append(entry)
    if rank == 0:
        print(markdown(report), flush=True)
        if options.json:
            header = {
                "gpu": torch.cuda.get_device_name(),
                "ranks": num_ranks,
                "shape": options.shape,
                "torch": torch.__version__,
                "python": platform.python_version(),
            }
            options.json.write_text(json.dumps({"setup": header, "results": report}, indent=2))
        if options.plot:
            plot(report, options.plot)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
