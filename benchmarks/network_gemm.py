"""A dispatch and a combine between nodes beside GEMMs; what `network.py --gemm` adds.

GEMMs of [4096, 7168] by [7168, 7168], bf16, one behind the other on a stream of their own, as many
as take half as long again as the calls do. Everything begins behind work that keeps the GPU busy
while hosts enqueue it; times are between events, in microseconds, medians of the slowest rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.network_timing import HIDE_HOST_CYCLES, Call, slowest
from benchmarks.nvlink_timing import Barrier

ROWS, WIDTH = 4096, 7168
LONGER = 1.5  # than the calls


@dataclass(frozen=True)
class Beside:
    """Microseconds of calls and of GEMMs, alone and beside each other, and of both together."""

    calls: float
    gemms: float
    calls_beside: float
    gemms_beside: float
    together: float

    @property
    def hidden(self) -> float:
        """The share of the calls that GEMMs hide."""
        return (self.calls + self.gemms - self.together) / self.calls

    @property
    def slowed(self) -> float:
        """By which share GEMMs take longer."""
        return self.gemms_beside / self.gemms - 1


class Gemms:
    """As many GEMMs as are wanted, on a stream of their own."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        like = {"device": device, "dtype": torch.bfloat16}
        self._rows, self._weights = (
            torch.randn(ROWS, WIDTH, **like),
            torch.randn(WIDTH, WIDTH, **like),
        )
        self._out = torch.empty_like(self._rows)

    def enqueue(self, number: int) -> None:
        """On the current stream."""
        for _ in range(number):
            torch.mm(self._rows, self._weights, out=self._out)


def beside_gemms(calls: Sequence[Call], gemms: Gemms, barrier: Barrier, iterations: int) -> Beside:
    """Collective. ``calls`` come one behind the other."""
    alone = _median([_times(calls, gemms, 0, barrier)[0] for _ in range(iterations)])
    one = _median([_times([], gemms, 8, barrier)[1] for _ in range(iterations)]) / 8
    number = math.ceil(LONGER * alone / one)
    work = _median([_times([], gemms, number, barrier)[1] for _ in range(iterations)])
    both = [_times(calls, gemms, number, barrier) for _ in range(iterations)]
    beside = [_median([each[i] for each in both]) for i in range(2)]
    return Beside(alone, work, *beside, _median([max(each) for each in both]))


def _times(
    calls: Sequence[Call], gemms: Gemms, number: int, barrier: Barrier
) -> tuple[float, float]:
    """Microseconds of this rank's calls and GEMMs, which begin together."""
    begin, end, end_gemms = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    torch.cuda._sleep(HIDE_HOST_CYCLES)
    barrier()
    begin.record()
    gemms.stream.wait_event(begin)
    with torch.cuda.stream(gemms.stream):
        gemms.enqueue(number)
        end_gemms.record()
    for call in calls:
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3, begin.elapsed_time(end_gemms) * 1e3


def _median(times: Sequence[float]) -> float:
    """Of the slowest rank of each."""
    return float(slowest(torch.tensor(times)).quantile(0.5))
