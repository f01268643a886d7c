"""How `nvlink.py` measures: GPU time between events, the largest over the ranks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from benchmarks.moe_bound import Bound

if TYPE_CHECKING:  # it compiles, which other benchmarks do beforehand
    from benchmarks.nvlink_contenders import Contender

HIDE_LAUNCH_CYCLES = 1_500_000  # the GPU is kept busy while the host enqueues a measured call
HEAD_START_CYCLES = 20_000_000  # before the first of them: a host held up for 10 ms is still ahead
PEERS_PLANNING = ("get_dispatch_layout", "notify_dispatch", "exchangeSplit")
PLANNING = ("_plan", "_relation", "_node_count", "_node_exchange", "_node_assign")


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
    torch.cuda._sleep(HEAD_START_CYCLES)
    for i in range(iterations):
        for contender in contenders:
            events = marks[contender.name][i]
            for call, begin, end in ((contender.dispatch, 0, 1), (contender.combine, 2, 3)):
                if call is None:
                    continue
                torch.cuda._sleep(HIDE_LAUNCH_CYCLES)
                barrier()
                events[begin].record()
                call()
                events[end].record()
    torch.cuda.synchronize()
    times = {}
    for contender in contenders:
        rows = marks[contender.name]
        own = torch.zeros(iterations, 2, device="cuda")
        own[:, 0] = torch.tensor([e[0].elapsed_time(e[1]) * 1e3 for e in rows])
        if contender.combine is not None:
            own[:, 1] = torch.tensor([e[2].elapsed_time(e[3]) * 1e3 for e in rows])
        dist.all_reduce(own, op=dist.ReduceOp.MAX)
        times[contender.name] = own.cpu()
    return times


def time_calls(
    call: Callable[[], object], prepare: Callable[[int], None], turns: int, barrier: Barrier
) -> torch.Tensor:
    """Microseconds [turns] of a call, largest over ranks; ``prepare(turn)`` comes before it."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(turns)]
    torch.cuda._sleep(HEAD_START_CYCLES)
    for turn, (begin, end) in enumerate(events):
        prepare(turn)
        torch.cuda._sleep(HIDE_LAUNCH_CYCLES)
        barrier()
        begin.record()
        call()
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
    calls = [call for call in (contender.dispatch, contender.combine) if call is not None]
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
    if kernel.endswith(PLANNING) or any(word in kernel for word in PEERS_PLANNING):
        return "planning"
    if kernel.startswith("moe_") or "deep_ep" in kernel:
        return "fused"
    return "communication" if "nccl" in kernel or "allToAllV" in kernel else "rearrangement"


def summarise(times: torch.Tensor, limit: Bound) -> dict[str, float]:
    total = times.sum(1)
    tenth, median, ninetieth = quantiles(total)
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


def quantiles(times: torch.Tensor) -> tuple[float, float, float]:
    """p10, median and p90."""
    tenth, median, ninetieth = torch.quantile(times, torch.tensor([0.1, 0.5, 0.9])).tolist()
    return tenth, median, ninetieth
