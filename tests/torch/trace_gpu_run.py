"""Traces on real GPUs; run by torchrun, one process a GPU.

``torchrun --nproc-per-node 2 tests/torch/trace_gpu_run.py FOLDER --topology 1x2`` takes
``examples/moe.fsc``, compiled with hidden=2048, experts=64 into ``FOLDER/auto`` and, by ``backend
triton``, into ``FOLDER/triton``. It exits non-zero, after naming what is wrong, where a trace does
not show the kernels that the profiler has seen.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from fuscoc_runtime import Shuffle, Topology
from fuscoc_runtime.kernels.trace import CAPTURED, Span
from tests.gpu_ranks import join
from tests.node_triton.rank_work import batch, run

HIDDEN, EXPERTS, TOPK, MOST = 2048, 64, 8, 1024
HIDE_HOST_CYCLES = 4_000_000
MOST_BEYOND = 60e-6
"""Seconds of a span, beside its kernel: events, and what a launch takes to begin where the GPU has
nothing else to do."""
FORMS = {
    "CUDA": ("auto", {"max_sources": MOST}),
    "Triton, fixed": ("triton", {"max_sources": MOST}),
    "Triton, exact": ("triton", {}),
}


class Traced:
    """One way of opening the shuffle; what is wrong is added to ``wrong``."""

    def __init__(self, name: str, folder: Path, topology: Topology, wrong: list[str]) -> None:
        self.name, self._wrong = name, wrong
        artifact, self.options = FORMS[name]
        self.device = torch.device("cuda", torch.cuda.current_device())
        given: dict[str, Any] = {"topology": topology, "device": self.device, "trace": True}
        self.shuffle = Shuffle(folder / artifact, **given, **self.options)
        random = torch.Generator(self.device).manual_seed(dist.get_rank())
        made = {"device": self.device, "generator": random}
        self.x = torch.randn(MOST, HIDDEN, **made).bfloat16()
        self.idx = torch.rand(MOST, EXPERTS, **made).topk(TOPK)[1]
        self.weights = torch.rand(MOST, TOPK, **made)

    def check(self, fine: bool, problem: str) -> None:
        if not fine:
            self._wrong.append(f"{self.name}: {problem}")

    def call(self, **named: Any) -> Tensor:
        """A dispatch and a combine; the rank's sums."""
        routing = {"topk_idx": self.idx, "topk_weights": self.weights}
        rows, handle, *event = self.shuffle.dispatch(self.x, **routing, **named)
        for each in event:
            each.wait()
        result: Any = self.shuffle.combine(rows, handle)
        return result

    def new_spans(self, call: Callable[[], object]) -> list[Span]:
        before = len(self.shuffle.spans)
        call()
        return list(self.shuffle.spans[before:])

    def rows(self) -> None:
        """Small calls, compared with the reference."""
        ranks = dist.get_world_size()
        for seed, sizes in enumerate(([5, 3], [0, 7])):
            run(self.shuffle, batch(self.shuffle.spec, (sizes * ranks)[:ranks], seed), combines=1)

    def kernels(self) -> None:
        """Each that the profiler has seen is a span once, as long as the kernel was."""
        for _ in range(3):
            self.call()
        torch.cuda.synchronize()
        dist.barrier()
        with profile(activities=[ProfilerActivity.CUDA]):
            self.call()  # the profiler's first call takes longer to launch
            torch.cuda.synchronize()
        dist.barrier()
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            torch.cuda._sleep(HIDE_HOST_CYCLES)
            spans = self.new_spans(self.call)
            torch.cuda.synchronize()
        found = [each for each in spans if each.lane.startswith("stream")]
        wires = [each for each in spans if each.lane.startswith("wire")]
        ran = [each for each in seen.events() if each.device_type.name == "CUDA"]
        ran = [each for each in ran if not each.name.startswith(("void ", "Mem", "nccl", "at::"))]
        ran.sort(key=lambda each: each.time_range.start)
        names = [each.name for each in ran]
        self.check(
            len(found) == len(names), f"{len(found)} spans {[s.name for s in found]} of {names}"
        )
        for span, kernel in zip(found, ran, strict=False):
            lasted, seconds = span.end - span.begin, kernel.time_range.elapsed_us() * 1e-6
            close = -2e-6 <= lasted - seconds <= MOST_BEYOND
            self.check(close, f"{span.name} takes {lasted * 1e6:.1f} us, {kernel.name} {seconds}")
        self.check(
            bool(wires) == (self.shuffle.topology.num_nodes > 1), f"{len(wires)} of the network"
        )
        self.check(all(each.num_bytes for each in wires), "an exchange sends nothing")
        for lane in (found, wires):
            apart = all(one.end <= other.begin + 2e-6 for one, other in pairwise(lane))
            self.check(apart, f"spans of a stream overlap: {lane}")

    def times(self) -> None:
        """All of a call by events, and its spans."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for wait in (HIDE_HOST_CYCLES, 0):
            dist.barrier()
            torch.cuda._sleep(wait)
            begin.record()
            spans = self.new_spans(lambda: (self.call(), end.record()))
            torch.cuda.synchronize()
            whole = begin.elapsed_time(end) * 1e-3
            streams = [each for each in spans if each.lane.startswith(("stream", "wire"))]
            busy, until = 0.0, float("-inf")
            for each in sorted(streams, key=lambda span: span.begin):
                busy += max(0.0, each.end - max(each.begin, until))
                until = max(until, each.end)
            self.check(busy <= whole * 1.02 + 5e-6, f"spans take {busy}, and the call {whole}")
            if wait and self.options:
                self.check(busy >= 0.6 * whole, f"spans take {busy}, and the call {whole}")
            host = {span.name: f"{(span.end - span.begin) * 1e6:.0f}" for span in spans
                    if span.lane == "host"}  # fmt: skip
            parts = [f"{s.lane[0]}:{s.name[-20:]} {(s.end - s.begin) * 1e6:.0f}" for s in streams]
            if dist.get_rank() == 0:
                print(
                    f"{self.name} {self.shuffle.topology}: events {whole * 1e6:.0f} us, spans "
                    f"{busy * 1e6:.0f}, host {host}, {parts}",
                    flush=True,
                )

    def beside(self) -> None:
        """Asynchronous calls are on a lane of their own."""
        spans = self.new_spans(lambda: self.call(async_op=True))
        lanes = {each.lane for each in spans if each.lane.startswith("stream")}
        self.check(len(lanes) == 2, f"an asynchronous call is on {lanes}")

    def graph(self) -> None:
        """What a graph captures is left out, and runs."""
        if not self.options:
            return
        wanted, graph = self.call(), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()

        def capture() -> None:
            with torch.cuda.graph(graph):
                self.result = self.call()

        spans = self.new_spans(capture)
        notes = [each for each in spans if each.name == CAPTURED]
        self.check(len(notes) == 1, f"{len(notes)} notes of a capture")
        self.check(all(each.lane == "host" for each in spans), "a captured call is traced")
        spans = self.new_spans(graph.replay)
        torch.cuda.synchronize()
        self.check(not spans, "a replay is traced")
        self.check(torch.equal(self.result, wanted), "a captured call gives something else")

    def file(self) -> None:
        path = Path("/tmp") / f"fuscoc-trace-{self.name.replace(', ', '-')}.json"
        self.shuffle.save_trace(path)
        if dist.get_rank() == 0:
            events = json.loads(path.read_text())["traceEvents"]
            ranks = {event["pid"] for event in events if event["ph"] == "X"}
            self.check(len(ranks) == dist.get_world_size(), f"a file of ranks {ranks}")
            path.unlink()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--topology", type=Topology.parse, required=True)
    options = parser.parse_args()
    join(options.topology, is_one_host=True)
    wrong: list[str] = []
    for name in FORMS:
        if name == "CUDA" and options.topology.num_nodes > 1:
            continue
        each = Traced(name, options.folder, options.topology, wrong)
        for part in (each.rows, each.kernels, each.times, each.beside, each.graph, each.file):
            part()
        each.shuffle.check()
        each.shuffle.close()
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, wrong)
    dist.destroy_process_group()
    for rank, problems in enumerate(gathered):
        for problem in problems:
            print(f"rank {rank}: {problem}", flush=True)
    if not any(gathered):
        print("the traces hold", flush=True)
    return int(any(gathered))


if __name__ == "__main__":
    sys.exit(main())
