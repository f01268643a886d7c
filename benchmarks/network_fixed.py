"""Fixed capacity between nodes: what a call takes of the host, and of the wire, for few tokens.

    python -m benchmarks.network_fixed --compile-only
    torchrun --nproc-per-node 2 -m benchmarks.network_fixed --json fixed.json

Every rank is a node of its own, by an NCCL_HOSTID of its own, so NCCL uses its network transport
between them; where there are fewer GPUs than ranks they share one. Contenders are fuscoc with
``max_sources``, fuscoc without it, and raw sends and receives of the bytes that must cross; they
run in turn on the same inputs, and rows and sums are verified before and after they are timed.

*Host* is the time until a call returns while the GPU has nothing to do; *alone* the time until its
work has ended then; *total* the GPU's time for dispatch and combine, between events, while it was
busy before, so that it does not wait for the host. Microseconds, medians, of the slowest rank.
*Beyond* is what that is beyond twice a direction of raw sends, and *MB* what windows and tables, or
the buffers of raw sends, take of a rank's memory.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.network import HIDE_HOST_CYCLES, gather_objects
from benchmarks.network_cases import Batch, Model, make_batch, routing
from benchmarks.network_contenders import Contender
from benchmarks.network_nccl import RawWire
from benchmarks.nvlink_timing import Barrier
from benchmarks.verdict import exit_if_wrong
from fuscoc_runtime import Shuffle, Topology

ARTIFACT = Path("build/network-fixed")
KINDS = ("uniform", "single-node")
WARM_UP = 3
WIRES = "network, or channels=N: NVLink as so many of NCCL's channels, a GPU a rank"
COLUMNS = ("host dispatch", "host combine", "alone dispatch", "alone combine", "total")


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


def microseconds(contender: Contender, barrier: Barrier) -> list[float]:
    """One measurement of every column, of this rank."""
    found = []
    for call in (contender.dispatch, contender.combine):
        found += alone(call, barrier)
    found = [found[0], found[2], found[1], found[3]]
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(HIDE_HOST_CYCLES)
    barrier()
    begin.record()
    contender.dispatch()
    contender.combine()
    end.record()
    torch.cuda.synchronize()
    return [*found, begin.elapsed_time(end) * 1e3]


def alone(call: Callable[[], None], barrier: Barrier) -> tuple[float, float]:
    """Until a call returns, and until it has ended, on an idle GPU."""
    barrier()
    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    returned = time.perf_counter()
    torch.cuda.synchronize()
    return (returned - started) * 1e6, (time.perf_counter() - started) * 1e6


def run_case(
    kind: str, tokens: int, device: torch.device, topology: Topology, iterations: int, num_sms: int
) -> list[dict[str, Any]]:
    model = Model()
    idx = routing(kind, tokens, model, topology, dist.get_rank())
    batch = make_batch(model, idx, topology, device)
    options: dict[str, Any] = {"topology": topology, "device": device, "num_sms": num_sms}
    shuffles = {
        "fixed capacity": Shuffle(ARTIFACT, max_sources=tokens, **options),
        "exact sizes": Shuffle(ARTIFACT, **options),
    }
    contenders: list[Contender] = [
        RawWire(batch, model, slice_bytes=len(batch.moe.x) * model.row_bytes),
        *(Called(name, batch, shuffle) for name, shuffle in shuffles.items()),
    ]
    wrong = {each.name: each.verify() for each in contenders}
    barrier, times = Barrier(device), torch.zeros(len(contenders), iterations, len(COLUMNS))
    for i in range(-WARM_UP, iterations):
        for number, contender in enumerate(contenders):
            measured = microseconds(contender, barrier)
            if i >= 0:
                times[number, i] = torch.tensor(measured)
    slowest = times.to(device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    report: list[dict[str, Any]] = []
    for contender, each in zip(contenders, slowest.cpu(), strict=True):
        problems = gather_objects(wrong[contender.name] + contender.verify())
        report.append(
            {
                "routing": kind,
                "num_tokens": tokens,
                "contender": contender.name,
                **dict(zip(COLUMNS, medians(each), strict=True)),
                "MB": round(megabytes(contender), 1),
                "wrong": [line for lines in problems for line in lines],
            }
        )
    for shuffle in shuffles.values():
        shuffle.close()
    for entry in report:
        entry["beyond"] = round(entry["total"] - report[0]["total"], 1)
    return report


def megabytes(contender: Contender) -> float:
    """Memory of a rank."""
    if isinstance(contender, Called):
        memory = contender.shuffle.memory()
        return memory.num_bytes / 1e6
    assert isinstance(contender, RawWire)
    return (contender.sent.nbytes + contender.received.nbytes) / 1e6


def medians(times: Tensor) -> list[float]:
    """Of every column."""
    return [round(float(value), 1) for value in times.quantile(0.5, dim=0)]


def markdown(report: list[dict[str, Any]]) -> str:
    lines = []
    for entry in report:
        cells = [entry["routing"], entry["num_tokens"], entry["contender"]]
        cells += [f"{entry[column]:.0f}" for column in (*COLUMNS, "beyond", "MB")]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def wire(text: str) -> int:
    """How many channels NCCL may use; 0: the network."""
    name, _, number = text.partition("=")
    if text == "network":
        return 0
    if name != "channels" or not number.isdecimal() or int(number) < 1:
        raise argparse.ArgumentTypeError(f"{text} is neither network nor channels=N")
    return int(number)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 128, 512, 1024])
    parser.add_argument("--kind", nargs="*", default=list(KINDS))
    parser.add_argument("--iterations", type=int, default=31)
    parser.add_argument("--compile-only", action="store_true", help="write the artifact and stop")
    parser.add_argument("--wire", type=wire, default=0, help=WIRES)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.compile_only:
        import fuscoc

        fuscoc.compile(Model().spec("backend triton"), ARTIFACT)
        return
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    num_gpus, topology = torch.cuda.device_count(), Topology(num_ranks, 1)
    device = torch.device("cuda", rank % num_gpus)
    if options.wire:
        os.environ["NCCL_MAX_P2P_NCHANNELS"] = str(options.wire)
    else:
        os.environ["NCCL_HOSTID"] = f"node-{rank}"
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    sharing = -(-num_ranks // num_gpus)
    num_sms = sms if sharing == 1 else sms // (sharing + 1)
    report = []
    if rank == 0:
        print(
            "| routing | tokens | contender | " + " | ".join(COLUMNS) + " | beyond | MB |",
            flush=True,
        )
        print("|---" * (5 + len(COLUMNS)) + "|", flush=True)
    for kind in options.kind:
        for tokens in options.tokens:
            found = run_case(kind, tokens, device, topology, options.iterations, num_sms)
            report += found
            if rank == 0:
                print(markdown(found), flush=True)
                if options.json is not None:
                    setup = {"gpu": torch.cuda.get_device_name(), "gpus": num_gpus}
                    setup |= {"topology": str(topology), "torch": torch.__version__}
                    setup |= {"channels": options.wire}
                    options.json.write_text(json.dumps({"setup": setup, "results": report}))
    dist.destroy_process_group()
    exit_if_wrong(report)


if __name__ == "__main__":
    main()
