"""Fixed capacity between nodes: what a call takes of the host, and of the wire, for few tokens.

    python -m benchmarks.network_fixed --compile-only
    torchrun --nproc-per-node 2 -m benchmarks.network_fixed --json fixed.json

``--nodes`` nodes lie on a wire of `network_wire.py` (preload ``nic.so`` of `network.py` for a NIC
each); where there are fewer GPUs than ranks they share one. Contenders are fuscoc with
``max_sources``, fuscoc without it, its general engine, which hosts plan for, and raw sends and
receives of the bytes that must cross, by one communicator, a message a peer, and by two and by four
that share its channels, in slices; they run in turn on the same inputs, and rows and sums are
verified before and after they are timed. Calls are asynchronous: they run beside the caller's
stream, which waits for them, as raw sends do. They can also be *in line*, on the caller's stream,
as a step that needs their rows at once makes them, and, of fixed capacity where NCCL takes all
ranks for those of one host, graphs that are replayed.

Microseconds, medians, of the slowest rank:

- *host*: until a call returns while the GPU has nothing to do, in turn with the other contenders;
  *warm host* the same where only this contender's calls run. Before each of these the host has
  waited for the GPU. *Back to back*: until a call returns that follows another one while the GPU is
  behind, as in a model whose GPUs are what it waits for; of contenders whose hosts never wait.
- *idle*: until dispatch and combine have ended, from the call of the first, on an idle GPU.
- *busy*: the GPU's time of a call between events, while it was busy before, so that it does not
  wait for the host; *total* of both, one behind the other, captured as one graph.
- *beyond* is what the total is beyond that of the fastest raw sends, and *MB* what windows and
  tables, or the buffers of raw sends, take of a rank's memory.

``--gemm`` adds a table of the same calls beside a GEMM (`network_gemm.py`).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.network import HIDE_HOST_CYCLES, gather_objects
from benchmarks.network_cases import Batch, Model, make_batch, routing
from benchmarks.network_contenders import Contender
from benchmarks.network_gemm import Call, Gemms, beside_gemms
from benchmarks.network_nccl import RawWire
from benchmarks.network_wire import NETWORK, channels, communicators, join, wire
from benchmarks.nvlink_timing import Barrier
from benchmarks.verdict import exit_if_wrong
from fuscoc_runtime import Shuffle, Topology
from fuscoc_runtime.engine.node.engine import NodeEngine

ARTIFACT = Path("build/network-fixed")
KINDS = ("uniform", "single-node")
WARM_UP = 3
WHOLE = 1 << 40  # a slice
COLUMNS = (
    "host dispatch", "host combine", "idle", "busy dispatch", "busy combine", "total",
)  # fmt: skip
WARM = "warm host dispatch", "warm host combine"
BACK_TO_BACK = "back to back dispatch", "back to back combine"
STEPS = 10  # that the host is ahead of a GPU
SHOWN = (*COLUMNS, *WARM, *BACK_TO_BACK, "beyond", "MB")
FIXED, EXACT, GENERAL = "fixed capacity", "exact sizes", "general engine"
IN_LINE, CAPTURED = "fixed capacity, in line", "fixed capacity, captured"
EXACT_IN_LINE = "exact sizes, in line"
WAITING = EXACT, EXACT_IN_LINE, GENERAL
"""Contenders whose hosts wait for counts."""


class Called(Contender):
    """An artifact, by calls that return when their work is enqueued, or when its counts are known
    if there is no ``max_sources``."""

    def __init__(self, name: str, batch: Batch, shuffle: Shuffle) -> None:
        super().__init__(batch)
        self.name, self.shuffle = name, shuffle
        self.handle: Any = None

    def plan(self) -> None:
        pass

    def dispatch(self) -> None:
        moe = self.batch.moe
        given = {"topk_idx": moe.topk_idx, "topk_weights": moe.topk_weights}
        self.rows, self.handle, done = self.shuffle.dispatch(moe.x, **given, async_op=True)
        done.wait()

    def combine(self) -> None:
        rows = self.rows if self.worked is None else self.worked
        self.result, done = self.shuffle.combine(rows, self.handle, async_op=True)
        done.wait()

    def verify(self) -> list[str]:
        self.worked = None
        self.dispatch()
        num_slots = self.batch.expected[2]
        wrong = self.batch.wrong_rows(self.rows[:num_slots])
        worked = self.rows.clone()
        worked[:num_slots] = self.batch.work(self.rows[:num_slots])
        self.worked = worked
        self.combine()
        wrong += self.batch.wrong_result(self.result)
        self.shuffle.check()
        return wrong


class InLine(Called):
    """The same on the caller's stream."""

    def dispatch(self) -> None:
        moe = self.batch.moe
        given = {"topk_idx": moe.topk_idx, "topk_weights": moe.topk_weights}
        self.rows, self.handle = self.shuffle.dispatch(moe.x, **given)

    def combine(self) -> None:
        rows = self.rows if self.worked is None else self.worked
        self.result = self.shuffle.combine(rows, self.handle)


class Captured(Called):
    """The same, each call as a graph that is replayed, and both as one."""

    def __init__(self, name: str, batch: Batch, shuffle: Shuffle) -> None:
        super().__init__(name, batch, shuffle)
        moe = batch.moe
        self._forth, self._back, self._both = (torch.cuda.CUDAGraph() for _ in range(3))
        given = {"topk_idx": moe.topk_idx, "topk_weights": moe.topk_weights}
        with torch.cuda.graph(self._forth, capture_error_mode="thread_local"):
            self.rows, self.handle = shuffle.dispatch(moe.x, **given)
        self.worked = torch.zeros_like(self.rows)
        with torch.cuda.graph(self._back, capture_error_mode="thread_local"):
            self.result = shuffle.combine(self.worked, self.handle)
        with torch.cuda.graph(self._both, capture_error_mode="thread_local"):
            _, handle = shuffle.dispatch(moe.x, **given)
            self._together = shuffle.combine(self.worked, handle)

    def dispatch(self) -> None:
        self._forth.replay()

    def combine(self) -> None:
        self._back.replay()

    def step(self) -> None:
        self._both.replay()

    def verify(self) -> list[str]:
        num_slots = self.batch.expected[2]
        assert self.worked is not None
        self.dispatch()
        wrong = self.batch.wrong_rows(self.rows[:num_slots])
        self.worked[:num_slots] = self.batch.work(self.rows[:num_slots])
        self.combine()
        self.step()
        for result in (self.result, self._together):
            wrong += self.batch.wrong_result(result)
        self.shuffle.check()
        return wrong


KINDS_OF_CALLS = {IN_LINE: InLine, CAPTURED: Captured, EXACT_IN_LINE: InLine}


def microseconds(contender: Contender, barrier: Barrier) -> list[float]:
    """One measurement of every column, of this rank."""
    both = (contender.dispatch, contender.combine)
    found = [until_returned(call, barrier) for call in both]
    found.append(until_ended(contender.step, barrier))
    found += [behind_work(call, barrier) for call in both]
    return [*found, behind_work(contender.step, barrier)]


def until_returned(call: Call, barrier: Barrier) -> float:
    """On an idle GPU."""
    barrier()
    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    returned = time.perf_counter()
    torch.cuda.synchronize()
    return (returned - started) * 1e6


def until_ended(call: Call, barrier: Barrier) -> float:
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


def warm_host(contender: Contender, barrier: Barrier, iterations: int) -> list[float]:
    """Medians of this rank, of calls one behind the other."""
    times = [
        [until_returned(call, barrier) for call in (contender.dispatch, contender.combine)]
        for _ in range(iterations)
    ]
    return medians(torch.tensor(times))


def back_to_back(contender: Contender, barrier: Barrier, iterations: int) -> list[float]:
    """Medians of this rank, of calls that the host makes ahead of the GPU; infinite if it waits."""
    if contender.name in WAITING:
        return [math.inf, math.inf]
    times = []
    for _ in range(iterations):
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


def run_case(
    kind: str, tokens: int, device: torch.device, topology: Topology, options: argparse.Namespace
) -> list[dict[str, Any]]:
    model = Model()
    idx = routing(kind, tokens, model, topology, dist.get_rank())
    batch = make_batch(model, idx, topology, device)
    given: dict[str, Any] = {"topology": topology, "device": device, "num_sms": options.num_sms}
    shuffles, names = [], []
    for name in options.contenders:
        sizes = {} if name in (EXACT, EXACT_IN_LINE, GENERAL) else {"max_sources": tokens}
        engine = {"FUSCOC_ENGINE": "general"} if name == GENERAL else {}
        with mock.patch.dict(os.environ, engine):
            shuffle = Shuffle(ARTIFACT, **sizes, **given)
        if "max_sources" in sizes and not isinstance(shuffle.engine, NodeEngine):
            shuffle.close()  # it says why when it is opened
            continue
        shuffles.append(shuffle)
        names.append(name)
    contenders: list[Contender] = [
        *(raw_wire(batch, model, groups) for groups in options.groups),
        *(
            KINDS_OF_CALLS.get(name, Called)(name, batch, shuffle)
            for name, shuffle in zip(names, shuffles, strict=True)
        ),
    ]
    wrong = {each.name: each.verify() for each in contenders}
    iterations, barrier = options.iterations, Barrier(device)
    times = torch.zeros(len(contenders), iterations, len(COLUMNS))
    for i in range(-WARM_UP, iterations):
        for number, contender in enumerate(contenders):
            measured = microseconds(contender, barrier)
            if i >= 0:
                times[number, i] = torch.tensor(measured)
    warm = slowest(torch.tensor([warm_host(each, barrier, iterations) for each in contenders]))
    ahead = slowest(torch.tensor([back_to_back(each, barrier, iterations) for each in contenders]))
    beside = []
    if options.gemm:
        gemms = Gemms(device)
        both = [[each.dispatch, each.combine] for each in contenders]
        beside = [beside_gemms(each, gemms, barrier, iterations) for each in both]
    report: list[dict[str, Any]] = []
    alone = zip(warm.tolist(), ahead.tolist(), strict=True)
    for contender, each, (own, behind) in zip(contenders, slowest(times), alone, strict=True):
        problems = gather_objects(wrong[contender.name] + contender.verify())
        report.append(
            {
                "routing": kind,
                "num_tokens": tokens,
                "contender": contender.name,
                **dict(zip(COLUMNS, medians(each), strict=True)),
                **dict(zip(WARM, own, strict=True)),
                **{
                    name: value if math.isfinite(value) else None
                    for name, value in zip(BACK_TO_BACK, behind, strict=True)
                },
                "MB": round(megabytes(contender), 1),
                "wrong": [line for lines in problems for line in lines],
            }
        )
    for shuffle in shuffles:
        shuffle.close()
    raw = min(entry["total"] for entry in report[: len(options.groups)])
    for entry in report:
        entry["beyond"] = round(entry["total"] - raw, 1)
    if options.gemm:
        for entry, found in zip(report, beside, strict=True):
            entry["gemm"] = {**vars(found), "hidden": found.hidden, "slowed": found.slowed}
    return report


def raw_wire(batch: Batch, model: Model, groups: Sequence[dist.ProcessGroup | None]) -> RawWire:
    if len(groups) == 1:
        return RawWire(batch, model, WHOLE)
    found = RawWire(batch, model, groups=groups)
    found.name = f"raw wire, {len(groups)} communicators"
    return found


def slowest(times: Tensor) -> Tensor:
    """Of all ranks."""
    found = times.cuda()
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return found.cpu()


def megabytes(contender: Contender) -> float:
    """Memory of a rank."""
    if isinstance(contender, Called):
        memory = contender.shuffle.memory()
        return memory.num_bytes / 1e6
    assert isinstance(contender, RawWire), contender
    return contender.num_bytes / 1e6


def medians(times: Tensor) -> list[float]:
    """Of every column."""
    return [round(float(value), 1) for value in times.quantile(0.5, dim=0)]


def markdown(report: list[dict[str, Any]]) -> str:
    lines = []
    for entry in report:
        cells = [entry["routing"], entry["num_tokens"], entry["contender"]]
        shown = (entry[column] for column in SHOWN)
        cells += ["–" if value is None else f"{value:.0f}" for value in shown]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    for entry in report:
        if "gemm" in entry:
            found = {name: round(value, 2) for name, value in entry["gemm"].items()}
            lines.append(f"{entry['contender']} beside GEMMs: {found}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 128, 512, 1024])
    parser.add_argument("--kind", nargs="*", default=list(KINDS))
    parser.add_argument("--iterations", type=int, default=31)
    parser.add_argument("--compile-only", action="store_true", help="write the artifact and stop")
    parser.add_argument("--nodes", type=int, help="else one for every rank")
    parser.add_argument("--wire", type=wire, default=NETWORK, help="channels=N, channels=all")
    parser.add_argument("--communicators", type=int, nargs="*", default=[2, 4], help="besides one")
    names = FIXED, IN_LINE, CAPTURED, EXACT, EXACT_IN_LINE, GENERAL
    parser.add_argument("--contenders", nargs="+", choices=names, default=[FIXED, EXACT, GENERAL])
    parser.add_argument("--num-sms", type=int, help="for copies; else all, or a share of them")
    parser.add_argument("--gemm", action="store_true", help="the same beside GEMMs as well")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.compile_only:
        import fuscoc

        fuscoc.compile(Model().spec("backend triton"), ARTIFACT)
        return
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    num_nodes = options.nodes or num_ranks
    num_gpus, topology = torch.cuda.device_count(), Topology(num_nodes, num_ranks // num_nodes)
    device, most = join(topology, options.wire), channels(options.wire)
    counts = [each for each in options.communicators if most is None or each <= most]
    options.groups = [[None], *(communicators(count, options.wire) for count in counts)]
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    sharing = -(-num_ranks // num_gpus)
    if options.num_sms is None:
        options.num_sms = sms if sharing == 1 else sms // (sharing + 1)
    report = []
    if rank == 0:
        print("| routing | tokens | contender | " + " | ".join(SHOWN) + " |", flush=True)
        print("|---" * (3 + len(SHOWN)) + "|", flush=True)
    for kind in options.kind:
        for tokens in options.tokens:
            found = run_case(kind, tokens, device, topology, options)
            report += found
            if rank == 0:
                print(markdown(found), flush=True)
                if options.json is not None:
                    setup = {"gpu": torch.cuda.get_device_name(), "gpus": num_gpus}
                    setup |= {"topology": str(topology), "torch": torch.__version__}
                    setup |= {"wire": options.wire}
                    options.json.write_text(json.dumps({"setup": setup, "results": report}))
    dist.destroy_process_group()
    exit_if_wrong(report)


if __name__ == "__main__":
    main()
