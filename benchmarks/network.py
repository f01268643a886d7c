"""Dispatch and combine over a two-tier network: nodes pretended on one machine.

    python -m benchmarks.network --compile-only
    torchrun --nproc-per-node 4 -m benchmarks.network --nodes 2

What lies between nodes is a wire of `network_wire.py`. Where there are fewer GPUs than ranks, ranks
of different nodes share one. ``build/network/nic.so`` (network_nic.c), preloaded, gives every rank
a NIC of its own, of NIC_GB_PER_SECOND each way; otherwise they all share the loopback device.

Contenders are interleaved in one process group, on the same inputs, and verified in the same run. A
time is that of the slowest rank, between events on its stream: the first comes after a barrier on
the GPUs, which are busy while the hosts enqueue what they can. The median counts. fuscoc's times
include everything. Those on NCCL are given twice: with their layout for free, and with the
time that finding it takes, once for dispatch and combine. The bound is the time of raw sends and
receives, in slices of 8 MB, of what must cross: every token once to every node, shared evenly by a
node's ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.network_cases import KINDS, Batch, Model, make_batch, routing
from benchmarks.network_contenders import Contender, Fuscoc, KnownRouting, SeparatePermutes
from benchmarks.network_nccl import Naive, RankDeduplicated, RawWire
from benchmarks.network_report import Entry, idle_part, markdown, plot, summarise
from benchmarks.network_wire import NETWORK, join, wire
from benchmarks.nvlink_timing import Barrier
from benchmarks.verdict import exit_if_wrong
from fuscoc_runtime import Shuffle, Topology
from fuscoc_runtime.kernels.trace import Span, write_trace

ARTIFACTS = Path("build/network")
NIC = Path(__file__).with_name("network_nic.c")
OWN_SENDERS = "senders as they are"
VARIANTS = {
    "fuscoc": "balance auto schedule auto",
    "general engine": "balance auto schedule auto",
    OWN_SENDERS: "balance split schedule auto",
    "balancer off": "balance none schedule auto",
    "planner off": "dedup(none) balance none",
    "FAST stages": "balance auto schedule fast",
    "pairwise stages": "balance auto schedule pairwise",
}
"""What is compiled, by name: the options of its dispatch."""
BY_HOSTS = ("general engine", OWN_SENDERS)
"""Those of the general engine, which hosts plan for."""
WARM_UP = 2
HIDE_HOST_CYCLES = 4_000_000  # GPUs are kept busy for 2 ms while the hosts enqueue a call


def compile_variants(model: Model) -> None:
    import fuscoc

    for name, options in VARIANTS.items():
        fuscoc.compile(model.spec(options), ARTIFACTS / name.replace(" ", "-"))


def compile_nic(path: Path) -> Path:
    """The library that limits a rank's sockets, for LD_PRELOAD; at ``path``."""
    flags = ("-O2", "-shared", "-fPIC")
    subprocess.run(["cc", *flags, "-o", str(path), str(NIC), "-ldl"], check=True)
    return path


def open_variant(name: str, topology: Topology, device: torch.device, *, trace: bool) -> Shuffle:
    path = ARTIFACTS / name.replace(" ", "-")
    sharing = -(-topology.num_ranks // torch.cuda.device_count())
    num_sms = None
    if sharing > 1:
        # Kernels that wait must leave room for those they wait for, whichever rank's they are.
        num_sms = torch.cuda.get_device_properties(device).multi_processor_count // (sharing + 1)
    engine = {"FUSCOC_ENGINE": "general"} if name in BY_HOSTS else {}
    with mock.patch.dict(os.environ, engine):
        return Shuffle(path, topology=topology, device=device, trace=trace, num_sms=num_sms)


def time_contenders(contenders: Sequence[Contender], iterations: int) -> dict[str, Tensor]:
    """Milliseconds [iterations, 3] (layout, dispatch, combine) of each, of the slowest rank."""
    own = torch.zeros(len(contenders), iterations, 3)
    barrier = Barrier(torch.device("cuda"))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for i in range(-WARM_UP, iterations):
        # Who comes after whom differs: caches are as the one before has left them.
        turns = random.Random(WARM_UP + i).sample(range(len(contenders)), len(contenders))
        for number in turns:
            contender = contenders[number]
            calls = contender.plan, contender.dispatch, contender.combine
            for part, call in enumerate(calls):
                if part == 0 and not contender.finds_layout:
                    continue
                torch.cuda._sleep(HIDE_HOST_CYCLES)
                barrier()
                begin.record()
                call()
                end.record()
                torch.cuda.synchronize()
                if i >= 0:
                    own[number, i, part] = begin.elapsed_time(end)
    slowest = own.cuda()
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return {c.name: times for c, times in zip(contenders, slowest.cpu(), strict=True)}


def gather_objects(mine: object) -> list[Any]:
    """Of every rank, by rank."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def trace_calls(shuffle: Shuffle, batch: Batch, path: Path | None) -> dict[str, float]:
    """The wire's idle part in a dispatch and a combine, the largest of all ranks."""
    contender = Fuscoc("traced", batch, shuffle)
    for _ in range(WARM_UP):
        contender.combine()
        contender.dispatch()
    shuffle.check()
    idle = {}
    spans: list[Span] = []
    for name in ("dispatch", "combine"):
        dist.barrier()
        begun = len(shuffle.spans)
        getattr(contender, name)()
        shuffle.check()
        here = shuffle.spans[begun:]
        wire = [span for span in here if span.lane.startswith("wire")]
        idle[name] = max(gather_objects(idle_part(wire)))
        spans += here
    everybody = gather_objects(spans)
    if path is not None and dist.get_rank() == 0:
        write_trace(path, [span for each in everybody for span in each])
    return idle


def run_case(
    kind: str,
    batch: Batch,
    model: Model,
    shuffles: dict[str, Shuffle],
    node: dist.ProcessGroup,
    options: argparse.Namespace,
) -> list[Entry]:
    topology = batch.topology
    fuscoc = Fuscoc("fuscoc", batch, shuffles["fuscoc"])
    naive = Naive(batch)
    contenders: list[Contender] = [
        RawWire(batch, model),
        fuscoc,
        KnownRouting("fuscoc, plan for free", batch, shuffles["fuscoc"]),
        naive,
        RankDeduplicated(batch, naive),
        *(Fuscoc(name, batch, shuffles[name]) for name in options.variants if name != "fuscoc"),
    ]
    if OWN_SENDERS in shuffles and topology.num_nodes > 1:  # inside one no host has a plan
        # Permutes of a rank's own rows: it knows no others to send for.
        own = Fuscoc(OWN_SENDERS, batch, shuffles[OWN_SENDERS])
        contenders.append(SeparatePermutes(batch, own, node))
    found_before = {c.name: c.verify() for c in contenders}
    times = time_contenders(contenders, options.iterations)
    bound = float(times[contenders[0].name].sum(1).quantile(0.5))  # it has no layout
    report = []
    for contender in contenders:
        entry: Entry = {
            "routing": kind,
            "num_tokens": len(batch.moe.x),
            "topology": str(topology),
            "contender": contender.name,
            **summarise(times[contender.name], bound),
        }
        if not isinstance(contender, RawWire):
            entry["parts"] = contender.breakdown(3)
        # Again: timed calls return before their rows are there.
        problems = gather_objects(found_before[contender.name] + contender.verify())
        entry["wrong"] = [line for lines in problems for line in lines]
        report.append(entry)
    for shuffle in shuffles.values():
        shuffle.check()
    return report


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--wire", type=wire, default=NETWORK, help="channels=N, channels=all")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 2048])
    parser.add_argument("--kind", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument(
        "--routing", type=Path, help="a recorded routing: .npy, int64 [ranks, tokens, topk]"
    )
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--compile-only", action="store_true", help="write the artifacts and stop")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--trace", type=Path, help="of one dispatch and one combine, uniform")
    return parser.parse_args()


def save(
    report: Sequence[Entry],
    options: argparse.Namespace,
    topology: Topology,
    idle: dict[str, float],
) -> None:
    """The results so far, with what they were measured on."""
    if options.json is None:
        return
    has_nic = "nic.so" in os.environ.get("LD_PRELOAD", "")
    setup = {
        "gpu": torch.cuda.get_device_name(),
        "gpus": torch.cuda.device_count(),
        "topology": str(topology),
        "wire": options.wire,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "nic_gb_per_second": os.environ.get("NIC_GB_PER_SECOND") if has_nic else None,
        "mps": "CUDA_MPS_PIPE_DIRECTORY" in os.environ,
        "wire_idle": idle,
    }
    options.json.write_text(json.dumps({"setup": setup, "results": list(report)}, indent=2))


def cases(
    options: argparse.Namespace, model: Model, topology: Topology
) -> list[tuple[str, Tensor]]:
    """(name, this rank's topk_idx) of every case."""
    rank = dist.get_rank()
    found = [
        (kind, routing(kind, tokens, model, topology, rank))
        for kind in options.kind
        if kind != "imbalanced" or topology.num_nodes > 1
        for tokens in options.tokens
    ]
    if options.routing is not None:
        import numpy

        found.append((options.routing.stem, torch.from_numpy(numpy.load(options.routing)[rank])))
    return found


def main() -> None:
    options, model = arguments(), Model()
    if options.compile_only:
        compile_variants(model)
        compile_nic(ARTIFACTS / "nic.so")
        return
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    topology = Topology(options.nodes, num_ranks // options.nodes)
    device = join(topology, options.wire)
    nodes = [list(topology.node_ranks(number)) for number in range(topology.num_nodes)]
    node, _ = dist.new_subgroups_by_enumeration(nodes)  # type: ignore[no-untyped-call]
    shuffles = {
        name: open_variant(name, topology, device, trace=False)
        for name in VARIANTS
        if name in (*options.variants, "fuscoc")
    }
    report: list[Entry] = []
    idle: dict[str, float] = {}
    for kind, idx in cases(options, model, topology):
        batch = make_batch(model, idx, topology, device)
        found = run_case(kind, batch, model, shuffles, node, options)
        report += found
        if rank == 0:
            print(markdown(found), flush=True)
            save(report, options, topology, idle)
    if options.trace is not None:
        shuffle = open_variant("fuscoc", topology, device, trace=True)
        idx = routing("uniform", options.tokens[0], model, topology, rank)
        idle = trace_calls(shuffle, make_batch(model, idx, topology, device), options.trace)
    if rank == 0:
        print("wire idle between first and last slice:", idle, flush=True)
        save(report, options, topology, idle)
        if options.plot:
            plot(report, options.plot)
    for shuffle in shuffles.values():
        shuffle.close()
    dist.destroy_process_group()
    exit_if_wrong(report)


if __name__ == "__main__":
    main()
