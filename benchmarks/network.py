"""Dispatch and combine between nodes that are pretended on one machine, beside the bound.

    python -m benchmarks.network --compile-only
    torchrun --nproc-per-node 2 -m benchmarks.network --wire channels=4 --json network.json
    LD_PRELOAD=$PWD/build/network/nic.so NIC_GB_PER_SECOND=3.5 \\
        torchrun --nproc-per-node 2 -m benchmarks.network --wire nic

What lies between nodes is a wire of `network_wire.py`; where there are fewer GPUs than ranks, ranks
of different nodes share one. The bound is the best of raw sends and receives of what must cross, by
one communicator and by several that share the wire's channels (`network_bound.py`). Contenders
(`network_ways.py`) run in turn on the same inputs in one process group, and every row and sum is
verified before and after they are timed, in that run. `network_timing.py` says what the columns
are; *beyond* and *x bound* compare the total with that of the bound.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.network_bound import RawWire, raw_wires
from benchmarks.network_cases import KINDS, Batch, Model, make_batch, routing
from benchmarks.network_contenders import Contender
from benchmarks.network_gemm import Gemms, beside_gemms
from benchmarks.network_report import BOUND, Entry, beside, bound_of, caption, header, markdown
from benchmarks.network_timing import measure
from benchmarks.network_ways import CONTENDERS, NCCL, Opener, compile_all, sms_for
from benchmarks.network_wire import (
    NIC,
    NIC_RATE,
    Communicators,
    communicators,
    described,
    join,
    wire,
)
from benchmarks.nvlink_timing import Barrier
from benchmarks.verdict import exit_if_wrong
from fuscoc_runtime import Topology

BREAKDOWN_CALLS = 3


def gather_objects(mine: object) -> list[Any]:
    """Of every rank, by rank."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def run_case(
    batch: Batch, model: Model, groups: Sequence[Communicators], options: argparse.Namespace
) -> tuple[list[Entry], dict[str, str]]:
    """What was measured of the bound, of raw wires and of contenders, and why some are left out."""
    opened, skipped = Opener(batch, options.wire, options.num_sms).open(options.contenders)
    raw = raw_wires(batch, model, groups)
    contenders: list[Contender] = [*raw, *opened]
    device = batch.moe.x.device
    barrier = Barrier(device)
    wrong = [each.verify() for each in contenders]
    times = measure(contenders, options.iterations, barrier)
    bound = bound_of(times[: len(raw)])
    report: list[Entry] = [{"contender": BOUND, **bound, "is raw": True, "wrong": []}]
    gemms = Gemms(device) if options.gemm else None
    for contender, measured, problems in zip(contenders, times, wrong, strict=True):
        entry: Entry = {
            "contender": contender.name,
            **measured,
            "window MB": _megabytes(contender.window_bytes),
            "MB": _megabytes(contender.num_bytes),
            "is raw": isinstance(contender, RawWire),
        }
        if gemms is not None:
            calls = [contender.dispatch, contender.combine]
            both = beside_gemms(calls, gemms, barrier, options.iterations)
            entry["gemm"] = {**vars(both), "hidden": both.hidden, "slowed": both.slowed}
        if options.breakdown and not entry["is raw"]:
            entry["parts"] = contender.breakdown(BREAKDOWN_CALLS)
        # Again: timed calls return before their rows are there.
        found = gather_objects(problems + contender.verify())
        entry["wrong"] = [line for lines in found for line in lines]
        report.append(entry)
    for contender in opened:
        contender.close()
    return [beside(entry, bound) for entry in report], skipped


def _megabytes(num_bytes: int | None) -> float | None:
    return None if num_bytes is None else round(num_bytes / 1e6, 1)


def cases(
    options: argparse.Namespace, model: Model, topology: Topology
) -> list[tuple[str, Tensor]]:
    """(name, this rank's topk_idx) of every case."""
    rank = dist.get_rank()
    found = [
        (kind, routing(kind, tokens, model, topology, rank))
        for kind in options.kind
        for tokens in options.tokens
    ]
    if options.routing is not None:
        import numpy

        found.append((options.routing.stem, torch.from_numpy(numpy.load(options.routing)[rank])))
    return found


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument(
        "--wire", type=wire, default=NIC, help="nic (the default), channels=N or all"
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 1024, 4096], help="a rank's")
    parser.add_argument("--kind", nargs="*", default=["uniform"], choices=KINDS, help="routings")
    parser.add_argument(
        "--routing", type=Path, help="a recorded routing: .npy, int64 [ranks, tokens, topk]"
    )
    parser.add_argument(
        "--contenders",
        nargs="*",
        choices=CONTENDERS,
        default=["fixed capacity", "exact sizes", "general engine", *NCCL],
    )
    parser.add_argument(
        "--communicators", type=int, nargs="+", default=[1, 2, 4], help="of raw wires"
    )
    parser.add_argument("--iterations", type=int, default=21)
    parser.add_argument("--num-sms", type=int, help="for copies; else all, or a share of them")
    parser.add_argument("--gemm", action="store_true", help="the same beside GEMMs as well")
    parser.add_argument("--breakdown", action="store_true", help="where the time goes as well")
    parser.add_argument(
        "--compile-only", action="store_true", help="write artifacts and nic.so, and stop"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(words)
    if options.nodes < 2:
        parser.error("there is no wire inside one node")
    return options


def setup_of(options: argparse.Namespace, topology: Topology) -> dict[str, Any]:
    """What all was measured on."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "gpus": torch.cuda.device_count(),
        "topology": str(topology),
        "wire": options.wire,
        "wire in words": described(options.wire),
        "nic_gb_per_second": os.environ.get(NIC_RATE) if options.wire == NIC else None,
        "mps": "CUDA_MPS_PIPE_DIRECTORY" in os.environ,
        "num_sms": options.num_sms,
        "iterations": options.iterations,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "date": datetime.date.today().isoformat(),
    }


def main() -> None:
    options, model = arguments(), Model()
    if options.compile_only:
        print(*compile_all(model), sep="\n")
        return
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    topology = Topology(options.nodes, num_ranks // options.nodes)
    device = join(topology, options.wire)
    groups = communicators(options.communicators, options.wire)
    options.num_sms = options.num_sms or sms_for(num_ranks, device)
    setup = setup_of(options, topology)
    if rank == 0:
        print(caption(setup), header(), sep="\n\n", flush=True)
    report: list[Entry] = []
    reasons: dict[str, str] = {}
    for kind, idx in cases(options, model, topology):
        batch = make_batch(model, idx, topology, device)
        found, skipped = run_case(batch, model, groups, options)
        case = {"routing": kind, "num_tokens": len(idx)}
        report += [case | entry for entry in found]
        reasons |= {f"{name}, {kind}, {len(idx)} tokens": why for name, why in skipped.items()}
        if rank == 0:
            print(markdown(report[-len(found) :]), flush=True)
            if options.json is not None:
                results = {"setup": setup, "results": report, "skipped": reasons}
                options.json.write_text(json.dumps(results, indent=2))
    if rank == 0:
        for name, why in reasons.items():
            print(f"skipped: {name}: {why}", flush=True)
    dist.destroy_process_group()
    exit_if_wrong(report)


if __name__ == "__main__":
    main()
