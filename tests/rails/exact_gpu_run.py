"""Exact sizes between nodes on real GPUs where one node may refuse a call for all, and replies.

``python -m tests.rails.exact_gpu_run FOLDER`` compiles, with or without a GPU; ``torchrun
--nproc-per-node 2 -m tests.rails.exact_gpu_run FOLDER --topology 2x1`` runs and exits non-zero,
after naming every mismatch, when something is wrong. With ``--times`` it also prints what calls
take, beside the general engine, whose rows have to be the same; with ``--most-sent 1`` rows travel
as flows. Hosts and GPUs are as in `gpu_run.py`.
"""

from __future__ import annotations

import argparse
import os
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
from torch.nn.functional import embedding_bag

from fuscoc_runtime.engine.node import places
from fuscoc_runtime.engine.node.exact_rails import ExactRails
from fuscoc_runtime.engine.process import ProcessEngine
from fuscoc_runtime.face.shuffle import Shuffle
from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.gpu_ranks import join
from tests.node_triton.gpu_run import told
from tests.node_triton.rank_work import said_by
from tests.node_triton.test_given_slots import to_slots
from tests.rails.gpu_run import TIMEOUT
from tests.specs import EXAMPLES
from tests.warm import warm

HIDDEN, KEYS, TOPK, MOST_SLOTS = 7168, 16, 4, 20_000
WIDTH, BAG, ROWS = 64, 16, 1 << 14
CALLS, MOST, REPEATS = 40, 400, 15
RANK, DEDUP = "on where(t).rank", "dedup(node, rank)"
"""Behind these a policy stands."""
TIMED = (128, 1024, 4096)
"""Source segments of a rank."""


def compile_all(folder: Path, policy: str = "") -> None:
    import fuscoc

    wide = to_slots(dtype="bf16").replace("[3]", f"[{HIDDEN}]").replace(RANK, f"{RANK} {policy}")
    limit = f"capacity max {MOST_SLOTS}"
    routed = specs.routed(hidden=HIDDEN, keys=KEYS, topk=TOPK, capacity=limit)
    routed = routed.replace(DEDUP, f"{DEDUP} {policy}")
    fuscoc.compile(wide, folder / "given")
    fuscoc.compile(routed, folder / "bounded")
    sizes = {"rows": ROWS, "width": WIDTH, "bag": BAG, "parts": 8}
    fuscoc.compile(EXAMPLES / "embedding.fsc", folder / "embedding", **sizes)
    timed = [folder / kind.name for kind in (Given, Bounded)]
    for problem in [*warm(timed, general=True), *warm([folder / "embedding"])]:
        print(f"does not compile: {problem}")


class Given:
    """Rows to slots that inputs name, of ranks in turn and some of nobody, and back."""

    name = "given"

    def __init__(self, run: Run, tokens: int, seed: int = 0) -> None:
        """Targets may be of unlike lengths."""
        world = run.world
        shared = torch.Generator().manual_seed(seed)
        slots = torch.randperm(world * (tokens + 9), generator=shared)
        mine = slots[run.rank * tokens :][:tokens]
        to = torch.stack([mine % world, mine // world], 1)
        to[::7, 0] = -1
        self.to = to.to(run.device)
        self.x = torch.randn(tokens, HIDDEN, device=run.device, dtype=torch.bfloat16)
        self.length = tokens + 9 + 64 * run.rank * (seed % 3)
        self.weights: dict[str, Tensor] = {}

    @property
    def routing(self) -> dict[str, Any]:
        return {"to": self.to, "length": self.length}

    def work(self, rows: Tensor) -> Tensor:
        return rows * 2

    def expected(self) -> Tensor:
        return torch.where((self.to[:, :1] >= 0), 2 * self.x, 0)

    def used(self, handle: Any) -> Any:
        """Slots that hold a row, as these kernels say."""
        return handle.launched.filled


class Bounded:
    """Rows to keys, of which a rank has only so many slots, and weighted sums back."""

    name = "bounded"

    def __init__(self, run: Run, tokens: int, seed: int = 0) -> None:
        random = torch.Generator(run.device).manual_seed(seed * 31 + run.rank)
        made = partial(torch.rand, generator=random, device=run.device)
        self.idx = made(tokens, KEYS).topk(TOPK).indices
        self.idx[::5, 1] = -1
        self.x = torch.randn(
            tokens, HIDDEN, generator=random, device=run.device, dtype=torch.bfloat16
        )
        self.weights = {"weights": made(tokens, TOPK)}

    @property
    def routing(self) -> dict[str, Any]:
        return {"idx": self.idx}

    def work(self, rows: Tensor) -> Tensor:
        return rows * 2

    def expected(self) -> Tensor:
        lives = (self.weights["weights"] * (self.idx >= 0)).sum(1, keepdim=True)
        return 2 * self.x.float() * lives

    def used(self, handle: Any) -> Any:
        counts, offsets = handle.key_counts, handle.key_offsets
        slots = torch.arange(handle.num_slots, device=self.x.device)
        key = torch.searchsorted(offsets[1:], slots, right=True)
        return slots < (offsets[:-1] + counts)[key.clamp(max=len(counts) - 1)]


class Run:
    """One rank."""

    def __init__(self, folder: Path, topology: Topology, is_one_host: bool, timeout: float) -> None:
        self.device, self.timeout = join(topology, is_one_host), timeout
        self.folder, self.topology, self.wrong = folder, topology, list[str]()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def open(self, name: str, **options: Any) -> Shuffle:
        shuffle = self._open(name, **options)
        if not options and not isinstance(shuffle.engine.node, ExactRails):
            self.wrong.append(f"{name}: does not go along rails")
        return shuffle

    def _open(self, name: str, **options: Any) -> Shuffle:
        given = {"topology": self.topology, "device": self.device, "timeout": self.timeout}
        return Shuffle(self.folder / name, **given, **options)

    def open_general(self, name: str) -> Shuffle:
        with mock.patch.dict(os.environ, FUSCOC_ENGINE="general"):
            shuffle = self._open(name)
        assert isinstance(shuffle.engine, ProcessEngine)
        return shuffle

    def expect(self, what: str, found: Tensor, wanted: Tensor) -> None:
        off = ~((found.float() - wanted.float()).abs() <= 0.05 * wanted.float().abs() + 0.05)
        if int(off.sum()):
            self.wrong.append(f"{what}: {int(off.sum())} elements differ")


def calls(run: Run, kind: Any) -> None:
    """Sizes at random, delays, handles of any age, dispatches along routings; one wait or
    more, where memory grows, a dispatch that plans, and none elsewhere."""
    shuffle, shared = run.open(kind.name), random.Random(3)
    held: list[tuple[Any, Any, Tensor]] = []
    report = shuffle.engine.node.report
    waited, wait = [0], report.wait

    def counted(epoch: int) -> Any:
        waited[0] += 1
        return wait(epoch)

    report.wait = counted
    for number in range(CALLS):
        tokens = shared.randint(0, MOST)
        if shared.random() < 0.4:
            torch.cuda._sleep(random.randrange(1, 200_000))
        case = kind(run, tokens, number)
        rows, handle = shuffle.dispatch(case.x, **case.routing)
        held.append((case, handle, case.work(rows)))
        if not waited[0]:
            run.wrong.append(f"{kind.name}, call {number}: planned without a wait")
        waited[0] = 0
        case, handle, worked = held[shared.randrange(len(held))]
        result = shuffle.combine(worked, handle, **case.weights)
        run.expect(f"{kind.name}, call {number}", result, case.expected())
        rows, again = shuffle.dispatch(case.x, handle=handle)
        result = shuffle.combine(case.work(rows), again, **case.weights)
        run.expect(f"{kind.name}, along a routing {number}", result, case.expected())
        if waited[0]:
            run.wrong.append(f"{kind.name}, call {number}: waited {waited[0]} times")
        held = held[-8:]
    shuffle.check()
    shuffle.close()


def mistakes(run: Run) -> None:
    """What one rank alone does wrong, or none alone: all raise the same, and nothing has moved."""
    shuffle, last = run.open("given"), run.rank == run.world - 1
    case = Given(run, 100)
    for wrong in ((0, 109), (run.world, 0), None):
        rows, handle = shuffle.dispatch(case.x, **case.routing)
        before, filled = rows.clone(), handle.launched.filled
        bad = case.to.clone()
        if wrong is None:  # the same slot of rank 0, by all ranks
            bad[1] = torch.tensor([0, 108], device=run.device)
        elif last:
            bad[1] = torch.tensor(wrong, device=run.device)
        said = said_by(lambda bad=bad: shuffle.dispatch(case.x, to=bad, length=109))
        everyone: list[Any] = [None] * run.world
        dist.all_gather_object(everyone, said)
        if "FSR" not in said or set(everyone) != {said}:
            run.wrong.append(f"mistakes, {wrong}: {everyone}")
        if not torch.equal(rows[filled], before[filled]):
            run.wrong.append(f"mistakes, {wrong}: rows have moved")
        run.expect("mistakes", shuffle.combine(case.work(rows), handle), case.expected())
    shuffle.check()
    shuffle.close()
    shuffle = run.open("bounded")
    for tokens in (300, 5 * MOST_SLOTS // TOPK, 200):
        small = Bounded(run, min(tokens, 300))
        idx = torch.zeros(tokens, TOPK, dtype=torch.int64, device=run.device)
        if tokens > 300:
            x = torch.zeros(tokens, HIDDEN, dtype=torch.bfloat16, device=run.device)
            said = said_by(lambda x=x, idx=idx: shuffle.dispatch(x, idx=idx))
            if f"{MOST_SLOTS}" not in said:
                run.wrong.append(f"bounded: {said}")
        rows, handle = shuffle.dispatch(small.x, **small.routing)
        result = shuffle.combine(small.work(rows), handle, **small.weights)
        run.expect("bounded", result, small.expected())
    shuffle.check()
    shuffle.close()


def replies(run: Run) -> None:
    """Bags of any number, their gradients, and once more along a routing, by torch alone."""
    shuffle, shared = run.open("embedding"), random.Random(5)
    share_of = ROWS // run.world
    table = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(2)).to(run.device)
    own = slice(run.rank * share_of, (run.rank + 1) * share_of)
    for number in range(CALLS // 2):
        count = [shared.randint(0, MOST) for _ in range(run.world)][run.rank]
        ids = torch.randint(ROWS, (count, BAG), device=run.device)
        weights = torch.rand(count, BAG, device=run.device, requires_grad=True)
        mine = table[own].clone().requires_grad_()
        plain = table.clone().requires_grad_()
        there = weights.detach().clone().requires_grad_()
        want = embedding_bag(ids, plain, mode="sum", per_sample_weights=there)
        given = {"indices": ids, "per_sample_weights": weights}
        asked, handle = shuffle.dispatch(ids, **given)
        rows = mine[(asked - own.start).clamp(0, share_of - 1)]
        sums = shuffle.combine(rows, handle)
        run.expect(f"sums {number}", sums, want)
        upstream = torch.randn_like(want)
        sums.backward(upstream)
        want.backward(upstream)
        run.expect(f"gradients of weights {number}", weights.grad, there.grad)
        dist.all_reduce(plain.grad)
        run.expect(f"gradients of rows {number}", mine.grad, plain.grad[own])
        late = {"per_sample_weights": 1 - weights.detach()}
        _, again = shuffle.dispatch(ids, handle=handle)
        found = shuffle.combine(rows.detach(), again, **late)
        wanted = embedding_bag(
            ids, table, mode="sum", per_sample_weights=late["per_sample_weights"]
        )
        run.expect(f"sums along a routing {number}", found, wanted)
    shuffle.check()
    shuffle.close()


def timed(run: Run, kind: Any) -> None:
    """Both engines on the same data in turn: milliseconds, medians of the slowest rank."""
    engines = {"along rails": run.open(kind.name), "general engine": run.open_general(kind.name)}
    for tokens in TIMED:
        case, found, ready = kind(run, tokens), [], {}
        for name, shuffle in engines.items():
            rows, handle = shuffle.dispatch(case.x, **case.routing)
            worked = case.work(rows)
            result = shuffle.combine(worked, handle, **case.weights)
            found.append((worked, result))
            ready[name] = shuffle, handle, worked
        used = case.used(ready["along rails"][1])
        (worked, result), (others, other) = found
        if not torch.equal(worked[used], others[used]):
            run.wrong.append(f"{kind.name} {tokens}: the engines differ")
        for each in (result, other):  # which are rounded otherwise
            run.expect(f"{kind.name} {tokens}", each, case.expected())
        samples: dict[str, list[list[float]]] = {name: [] for name in engines}
        for _ in range(REPEATS):
            for name, (shuffle, handle, worked) in ready.items():
                each = (
                    partial(shuffle.dispatch, case.x, **case.routing),
                    partial(shuffle.dispatch, case.x, handle=handle),
                    partial(shuffle.combine, worked, handle, **case.weights),
                )
                samples[name].append([clocked(call) for call in each])
        for name, taken in samples.items():
            medians = [statistics.median(each) for each in zip(*taken, strict=True)]
            slowest = torch.tensor(medians, device=run.device)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            if run.rank == 0:
                each = ", ".join(f"{value:.3f}" for value in slowest.tolist())
                print(
                    f"{kind.name} {tokens} {name}: dispatch, again, combine: {each} ms", flush=True
                )
    for shuffle in engines.values():
        shuffle.close()


def clocked(call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) * 1e3


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--topology", type=Topology.parse)
    parser.add_argument("--one-host", action="store_true")
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--policy", default="", help="to compile with")
    parser.add_argument("--most-sent", type=int, help="bytes of slabs: rows of others are flows")
    parser.add_argument("--timeout", type=float, default=TIMEOUT)
    given = parser.parse_args()
    if given.topology is None:
        compile_all(given.folder, given.policy)
        return 0
    run = Run(given.folder, given.topology, given.one_host, given.timeout)
    parts = [partial(calls, kind=Given), partial(calls, kind=Bounded), mistakes]
    parts += [replies] * (given.most_sent is None)  # whose rows never are flows
    for part in parts:
        with mock.patch.object(places, "MOST_SENT", given.most_sent or places.MOST_SENT):
            part(run)
        if run.rank == 0:
            name = getattr(part, "__name__", None) or f"calls of {part.keywords['kind'].name}"
            print(f"{name}: {len(run.wrong)} wrong so far on rank 0", flush=True)
    if given.times:
        for kind in (Given, Bounded):
            timed(run, kind)
    return told(run.wrong)


if __name__ == "__main__":
    sys.exit(main())
