"""Rows that travel as flows on real GPUs: by a policy, and where slabs would be too large.

``python -m tests.rails.flow_gpu_run FOLDER`` compiles, with or without a GPU; ``torchrun
--nproc-per-node 4 -m tests.rails.flow_gpu_run FOLDER --topology 2x2 --verify 2x2`` runs and exits
non-zero, after naming every mismatch, when something is wrong. With ``--time`` it also prints what
calls take, and when their host goes on. Hosts and GPUs are as in `gpu_run.py`.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from fuscoc_runtime.engine.node import places
from fuscoc_runtime.face.shuffle import Shuffle
from fuscoc_runtime.topology import Topology
from tests.gpu_ranks import join
from tests.node_triton.gpu_run import told
from tests.rails.gpu_run import TIMEOUT
from tests.warm import warm

HIDDEN, KEYS, TOPK = 7168, 256, 8
OPTIONS = {"plain": "", "balanced": "balance rebalance", "staged": "schedule fast"}
DEDUP = "dedup(node, rank)"
CALLS, MOST, COLUMNS = 16, 700, 16
SMALL_SLABS = 2_000_000
"""Bytes of slabs at most, of calls without a policy that are verified: more go as flows."""


def compile_all(folder: Path) -> None:
    import fuscoc
    from tests.specs import EXAMPLES

    text = (EXAMPLES / "moe.fsc").read_text()
    assert DEDUP in text
    for name, options in OPTIONS.items():
        fuscoc.compile(text.replace(DEDUP, f"{DEDUP} {options}"), folder / name)
    for problem in warm([folder / name for name in OPTIONS]):
        print(f"does not compile: {problem}")


class Run:
    """One rank."""

    def __init__(self, folder: Path, topology: Topology, is_one_host: bool, timeout: float) -> None:
        self.device, self.timeout = join(topology, is_one_host), timeout
        self.folder, self.wrong = folder, list[str]()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def open(self, name: str, topology: Topology, **options: Any) -> Shuffle:
        given = {"topology": topology, "device": self.device, "timeout": self.timeout}
        return Shuffle(self.folder / name, **given, **options)

    def batch(self, tokens: int, seed: int) -> dict[str, Tensor]:
        """Every other token of this rank stays on two ranks."""
        made = torch.Generator(self.device).manual_seed(seed * 31 + self.rank)
        scores = torch.rand(tokens, KEYS, generator=made, device=self.device)
        near = torch.arange(KEYS, device=self.device) * self.world // KEYS // 2 == self.rank % 2
        scores[::2] += near  # which leaves tokens of other nodes nothing to send there
        return {
            "x": torch.randn(
                tokens, HIDDEN, generator=made, device=self.device, dtype=torch.bfloat16
            ),
            "topk_idx": scores.topk(TOPK).indices,
            "topk_weights": torch.rand(tokens, TOPK, generator=made, device=self.device),
        }

    def check(self, what: str, batch: dict[str, Tensor], rows: Tensor, handle: Any) -> None:
        """Sums over the rows of every key, of all ranks."""
        part, wanted = batch["x"][:, :COLUMNS].double(), []
        for k in range(TOPK):
            sums = torch.zeros(KEYS, COLUMNS, dtype=torch.float64, device=self.device)
            wanted.append(sums.index_add_(0, batch["topk_idx"][:, k], part))
        expected = torch.stack(wanted).sum(0)
        dist.all_reduce(expected)
        found = torch.zeros_like(expected)
        ends = handle.key_offsets[:-1] + handle.key_counts
        for key, begin, end in zip(
            handle.keys.tolist(), handle.key_offsets.tolist(), ends.tolist(), strict=False
        ):
            found[key] = rows[begin:end, :COLUMNS].double().sum(0)
        off = ((found - expected)[handle.keys].abs() > 1e-6).sum()
        if int(off):
            self.wrong.append(f"{what}: {int(off)} sums of keys differ")

    def check_back(self, what: str, batch: dict[str, Tensor], result: Tensor) -> None:
        wanted = 2 * batch["x"].float() * batch["topk_weights"].sum(1, keepdim=True)
        off = ~((result.float() - wanted).abs() <= 0.05 * wanted.abs() + 0.05)
        if int(off.sum()):
            self.wrong.append(f"{what}: {int(off.sum())} elements differ")


def calls(run: Run, name: str, topology: Topology, most_sent: int) -> None:
    """Sizes at random, delays, and combines and dispatches along routings of any age."""
    shared = random.Random(3)
    held: list[tuple[dict[str, Tensor], Any, Tensor]] = []
    with mock.patch.object(places, "MOST_SENT", most_sent):
        shuffle = run.open(name, topology)
        for number in range(CALLS):
            ranks = [shared.randint(0, MOST) * (shared.random() < 0.8) for _ in range(run.world)]
            batch = run.batch(ranks[run.rank], number)
            if shared.random() < 0.4:
                torch.cuda._sleep(random.randrange(1, 400_000))
            rows, handle = shuffle.dispatch(**batch)
            run.check(f"{name} {topology}, call {number}", batch, rows, handle)
            held.append((batch, handle, rows * 2))
            batch, handle, worked = held[shared.randrange(len(held))]
            run.check_back(f"{name}, call {number}", batch, shuffle.combine(worked, handle))
            weights = {"topk_weights": batch["topk_weights"]}
            rows, again = shuffle.dispatch(batch["x"], handle=handle, **weights)
            run.check(f"{name} {topology}, along a routing {number}", batch, rows, again)
            run.check_back(f"{name}, along {number}", batch, shuffle.combine(rows * 2, again))
            held = held[-8:]
    shuffle.check()
    shuffle.close()


def timed(
    run: Run, name: str, topology: Topology, tokens: int, repeats: int, label: str, **options: Any
) -> None:
    """Milliseconds of calls until the GPU has ended, and until the host goes on: medians of the
    slowest rank."""
    shuffle, batch = run.open(name, topology, **options), run.batch(tokens, 5)
    found: dict[str, list[tuple[float, float]]] = {"dispatch": [], "combine": []}
    what = f"{label} {topology} {name} {tokens}{' fixed' if options else ''}"
    for number in range(repeats + 3):
        (rows, handle), there = clocked(partial(shuffle.dispatch, **batch))
        worked = rows * 2
        if number == 0:
            run.check(what, batch, rows, handle)
        result, back = clocked(partial(shuffle.combine, worked, handle))
        if number == 0:
            run.check_back(what, batch, result)
        if number >= 3:
            found["dispatch"].append(there)
            found["combine"].append(back)
    medians = [
        statistics.median(each) for times in found.values() for each in zip(*times, strict=True)
    ]
    slowest = torch.tensor(medians, device=run.device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    whole, host, whole_back, host_back = slowest.tolist()
    used = shuffle.engine.window_bytes + shuffle.engine.private_bytes
    if run.rank == 0:
        print(
            f"{what}: dispatch {whole:.2f} (host {host:.2f}), combine {whole_back:.2f} "
            f"(host {host_back:.2f}) ms; {used >> 20} MiB",
            flush=True,
        )
    shuffle.check()
    shuffle.close()


def clocked(call: Callable[[], Any]) -> tuple[Any, tuple[float, float]]:
    """What a call makes that begins when all ranks are there, and what it takes."""
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    started = time.perf_counter()
    made = call()
    host = time.perf_counter() - started
    torch.cuda.synchronize()
    return made, ((time.perf_counter() - started) * 1e3, host * 1e3)


def profiled(run: Run, name: str, topology: Topology, tokens: int, **options: Any) -> None:
    """Where the host of rank 0 is in calls whose GPU has nothing else to do."""
    shuffle, batch = run.open(name, topology, **options), run.batch(tokens, 5)
    profile = cProfile.Profile()
    for number in range(23):
        dist.barrier()
        torch.cuda.synchronize()
        if number >= 3:
            profile.enable()
        rows, handle = shuffle.dispatch(**batch)
        shuffle.combine(rows, handle)
        profile.disable()
    if run.rank == 0:
        print(f"20 calls, {topology} {name} {tokens}")
        pstats.Stats(profile).sort_stats("tottime").print_stats(28)
    shuffle.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--topology", type=Topology.parse, help="of the hosts, if nodes have any")
    parser.add_argument("--one-host", action="store_true")
    parser.add_argument("--verify", nargs="*", default=[], help="topologies")
    parser.add_argument("--time", nargs="*", default=[], help="`topology/name:tokens`")
    parser.add_argument("--profile", nargs="*", default=[], help="the same")
    parser.add_argument("--label", default="")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--most-sent", type=int, help="bytes that go in slabs")
    parser.add_argument("--timeout", type=float, default=TIMEOUT)
    given = parser.parse_args()
    if given.topology is None:
        compile_all(given.folder)
        return 0
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    run = Run(given.folder, given.topology, given.one_host, given.timeout)
    for topology in map(Topology.parse, given.verify):
        for name in OPTIONS:
            calls(run, name, topology, given.most_sent or SMALL_SLABS)
            if run.rank == 0:
                print(f"{name} {topology}: {len(run.wrong)} wrong so far", flush=True)
    with mock.patch.object(places, "MOST_SENT", given.most_sent or places.MOST_SENT):
        for each in (*given.time, *given.profile):
            topology, _, what = each.partition("/")
            name, _, tokens = what.partition(":")
            options = {}
            if name == "fixed":
                name, options = "plain", {"max_sources": int(tokens)}
            case = run, name, Topology.parse(topology), int(tokens)
            if each in given.time:
                timed(*case, given.repeats, given.label, **options)
            else:
                profiled(*case, **options)
    return told(run.wrong)


if __name__ == "__main__":
    sys.exit(main())
