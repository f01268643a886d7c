"""How `network.py` measures: microseconds, medians, of the slowest rank.

- *layout*: what a contender's calls leave out (`Contender.plan`).
- *dispatch*, *combine*: the GPU's time of a call between events, while it was busy before, so that
  it does not wait for the host; *total* of both, one behind the other, or captured as one graph.
- *idle*: until dispatch and combine have ended, from the call of the first, on an idle GPU.
- *host*: until a call returns while the GPU has nothing to do, in turn with the other contenders;
  *warm host* the same where only this contender's calls run. Before each of these the host has
  waited for the GPU. *Back to back*: until a call returns that follows another one while the GPU is
  behind, as in a model whose GPUs are what it waits for; of contenders whose hosts never wait.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.network_contenders import Contender
from benchmarks.nvlink_timing import Barrier

WARM_UP = 3
HIDE_HOST_CYCLES = 4_000_000  # GPUs are kept busy for 2 ms while the hosts enqueue a call
STEPS, ROUNDS = 10, 6  # that the host is ahead of a GPU, and how often
GPU = ("layout", "dispatch", "combine", "total")
IN_TURN = (*GPU, "idle", "host dispatch", "host combine")
ALONE = (
    "warm host dispatch",
    "warm host combine",
    "back to back dispatch",
    "back to back combine",
)
COLUMNS = (*IN_TURN, *ALONE)
Call = Callable[[], None]
Measured = dict[str, float | None]
"""By column; None where there is no such time."""


def measure(contenders: Sequence[Contender], iterations: int, barrier: Barrier) -> list[Measured]:
    """Of every contender, and the tenth and ninetieth percentile of its total; collective."""
    times = torch.zeros(len(contenders), iterations, len(IN_TURN))
    for i in range(-WARM_UP, iterations):
        # Who comes after whom differs: caches are as the one before has left them.
        turns = random.Random(WARM_UP + i).sample(range(len(contenders)), len(contenders))
        for number in turns:
            measured = _turn(contenders[number], barrier)
            if i >= 0:
                times[number, i] = torch.tensor(measured)
    alone = [
        [*_warm_host(each, barrier, iterations), *_back_to_back(each, barrier)]
        for each in contenders
    ]
    return [
        summarise(each, own)
        for each, own in zip(slowest(times), slowest(torch.tensor(alone)).tolist(), strict=True)
    ]


def summarise(times: Tensor, alone: Sequence[float]) -> Measured:
    """``times``: [iterations, columns in turn]; infinite where there are none."""
    found = dict(zip(COLUMNS, [*medians(times), *alone], strict=True))
    total = times[:, IN_TURN.index("total")]
    found["p10"], found["p90"] = total.quantile(torch.tensor([0.1, 0.9])).tolist()
    return {name: round(v, 1) if math.isfinite(v) else None for name, v in found.items()}


def _turn(contender: Contender, barrier: Barrier) -> list[float]:
    """One measurement of every column in turn, of this rank; those of the host come first, when
    others have had its caches."""
    both = (contender.dispatch, contender.combine)
    host = [_until_returned(call, barrier) for call in both]
    idle = _until_ended(contender.step, barrier)
    gpu = [behind_work(call, barrier) for call in (*both, contender.step)]
    layout = behind_work(contender.plan, barrier) if contender.finds_layout else math.inf
    return [layout, *gpu, idle, *host]


def _until_returned(call: Call, barrier: Barrier) -> float:
    """On an idle GPU."""
    barrier()
    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    returned = time.perf_counter()
    torch.cuda.synchronize()
    return (returned - started) * 1e6


def _until_ended(call: Call, barrier: Barrier) -> float:
    """On an idle GPU."""
    barrier()
    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) * 1e6


def behind_work(call: Call, barrier: Barrier) -> float:
    """Of a GPU that was busy before."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(HIDE_HOST_CYCLES)
    barrier()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3


def _warm_host(contender: Contender, barrier: Barrier, iterations: int) -> list[float]:
    """Medians of this rank, of calls one behind the other."""
    times = [
        [_until_returned(call, barrier) for call in (contender.dispatch, contender.combine)]
        for _ in range(iterations)
    ]
    return medians(torch.tensor(times))


def _back_to_back(contender: Contender, barrier: Barrier) -> list[float]:
    """Medians of this rank, of calls that the host makes ahead of the GPU; infinite if it waits."""
    if contender.waits:
        return [math.inf, math.inf]
    times = []
    for _ in range(ROUNDS):
        torch.cuda._sleep(2 * HIDE_HOST_CYCLES)
        barrier()
        for _ in range(STEPS):
            started = time.perf_counter()
            contender.dispatch()
            dispatched = time.perf_counter()
            contender.combine()
            times.append([dispatched - started, time.perf_counter() - dispatched])
        torch.cuda.synchronize()
    return medians(torch.tensor(times) * 1e6)


def slowest(times: Tensor) -> Tensor:
    """Of all ranks."""
    found = times.cuda()
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return found.cpu()


def medians(times: Tensor) -> list[float]:
    """Of every column."""
    return times.quantile(0.5, dim=0).tolist()
