"""``examples/embedding.fsc`` on GPUs, checked and timed beside torch.

    python -m benchmarks.embedding --compile
    torchrun --nproc-per-node 2 -m benchmarks.embedding
    torchrun --nproc-per-node 2 -m benchmarks.embedding --topology 2x1 --one-host

``--compile`` writes the artifact into ``build/embedding`` and needs no GPU. Every rank looks up
bags of random ids, by memory of a fixed size and by sizes that are exact; sums, and the gradients
of table and weights, are compared with those of ``torch.nn.functional.embedding_bag`` on the whole
table, for several numbers of bags a rank, and sums have to repeat to the bit, also as a replayed
graph. Torch's own way over several ranks is compared, too: ids sorted by owner, all-to-all,
``index_select``, rows back, permuted and summed up, where fuscoc sums up at the owner. Nodes of a
``--topology`` are several hosts for NCCL, or ``--one-host``. Ranks share GPUs where there are
fewer, each as a node of its own. All are warmed up, and take turns. Time is the host's between two
waits for the GPU, behind a barrier, the median of turns, of the rank that takes longest; and that
of the GPU between events, where calls that do not wait are enqueued before it comes to them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import embedding_bag

from benchmarks.layouts import gpu_times, moved
from benchmarks.nvlink_timing import HEAD_START_CYCLES, Barrier
from fuscoc_runtime import Shuffle
from fuscoc_runtime.topology import Topology

FOLDER = Path("build/embedding")
EXAMPLE = Path(__file__).parents[1] / "examples" / "embedding.fsc"
ROWS, WIDTH, BAG, BAGS = 1 << 20, 128, 32, 8192
WARM_UP, TURNS = 3, 7

T = TypeVar("T")


def join(topology: Topology | None = None, is_one_host: bool = False) -> torch.device:
    """A job of all ranks; nodes, and those that share a GPU, have host ids of their own."""
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    if world > torch.cuda.device_count():
        os.environ["NCCL_HOSTID"] = f"node-{rank}"
    elif topology is not None and not is_one_host:
        os.environ["NCCL_HOSTID"] = f"node-{topology.node(rank)}"
    if world > 1:
        dist.init_process_group("nccl", device_id=device)
    return device


class Torch:
    """Bags by permute, all-to-all and ``index_select``, over ranks that have equal parts."""

    def __init__(self, ids: Tensor, weights: Tensor, mine: Tensor, first: int, ranks: int) -> None:
        self._weights, self._mine, self._first = weights, mine, first
        flat = ids.flatten()
        owner = flat // len(mine)
        self._order = owner.argsort(stable=True)
        counts = torch.bincount(owner, minlength=ranks)
        theirs = counts if ranks == 1 else torch.empty_like(counts)
        if ranks > 1:
            dist.all_to_all_single(theirs, counts)
        self._send, self._receive = counts.tolist(), theirs.tolist()
        self._asked = moved(flat[self._order], self._send, self._receive)

    def sums(self) -> Tensor:
        """As ``embedding_bag`` of the whole table."""
        rows = self._mine.index_select(0, self._asked - self._first)
        came = moved(rows, self._receive, self._send)
        back = torch.empty_like(came).index_copy_(0, self._order, came)
        self._rows = back.view(*self._weights.shape, -1)
        return (self._rows * self._weights.unsqueeze(2)).sum(1)

    def gradients(self, upstream: Tensor) -> tuple[Tensor, Tensor]:
        """Of this rank's part of the table, and of the weights."""
        of_rows = (self._weights.unsqueeze(2) * upstream.unsqueeze(1)).flatten(0, 1)
        came = moved(of_rows[self._order], self._send, self._receive)
        of_table = torch.zeros_like(self._mine).index_add_(0, self._asked - self._first, came)
        return of_table, (self._rows * upstream.unsqueeze(1)).sum(2)


def medians_ms(calls: Mapping[str, Callable[[], object]], ranks: int) -> dict[str, float]:
    """Calls in turn, first some that are not timed."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(WARM_UP + TURNS):
        for name, call in calls.items():
            torch.cuda.synchronize()
            if ranks > 1:
                dist.barrier()
            started = time.perf_counter()
            call()
            torch.cuda.synchronize()
            took = torch.tensor((time.perf_counter() - started) * 1e3, device="cuda")
            if ranks > 1:
                dist.all_reduce(took, dist.ReduceOp.MAX)
            if turn >= WARM_UP:
                times[name].append(float(took))
    return {name: statistics.median(each) for name, each in times.items()}


class Fuscoc:
    """The same by the example; ``options`` are those of ``Shuffle``."""

    def __init__(self, device: torch.device, ids: Tensor, first: int, **options: Any) -> None:
        self.shuffle = Shuffle(FOLDER, device=device, timeout=60.0, **options)
        self.ids, self._first = ids, first

    def dispatch(self, weights: Tensor) -> tuple[Tensor, object]:
        """Ids in the slots of this rank, any in those that have none."""
        asked, handle = self.shuffle.dispatch(
            self.ids, indices=self.ids, per_sample_weights=weights
        )
        return asked, handle

    def sums(self, mine: Tensor, weights: Tensor) -> Tensor:
        asked, handle = self.dispatch(weights)
        places = (asked - self._first).clamp_(0, len(mine) - 1)
        result: Tensor = self.shuffle.combine(mine.index_select(0, places), handle)
        return result

    def gradients(
        self, mine: Tensor, weights: Tensor, upstream: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sums, and the gradients of ``Torch``."""
        held, weighed = mine.detach().requires_grad_(), weights.detach().requires_grad_()
        sums = self.sums(held, weighed)
        of_table, of_weights = torch.autograd.grad(sums, [held, weighed], upstream)
        return sums.detach(), of_table, of_weights


def captured(call: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
    """A call as a graph, and where its results are."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        results = call()
    return graph, results


class Wanted:
    """Sums of ids, -1 for none, and gradients of the rows from ``first`` on, and of the weights, by
    ``embedding_bag`` on the whole table."""

    def __init__(
        self, table: Tensor, ids: Tensor, weights: Tensor, upstream: Tensor, mine: slice
    ) -> None:
        whole, plain = table.detach().requires_grad_(), weights.detach().requires_grad_()
        there = torch.where(ids >= 0, plain, 0.0)
        sums = embedding_bag(ids.clamp(min=0), whole, mode="sum", per_sample_weights=there)
        of_whole, of_plain = torch.autograd.grad(sums, [whole, plain], upstream)
        if dist.is_initialized():
            dist.all_reduce(of_whole)
        self._found = {"sums": sums.detach(), "table": of_whole[mine], "weights": of_plain}

    def compare(self, name: str, got: tuple[Tensor, ...]) -> None:
        """What ``name`` has ``got``."""
        for (what, right), each in zip(self._found.items(), got, strict=True):
            error = float((each - right).norm() / right.norm().clamp(min=1e-6))  # all may be 0
            print(f"{name}: {what} are off by {error:.1e}", flush=True)
            assert error < 1e-5


def verify(way: Fuscoc, table: Tensor, mine: slice, bags: int, name: str) -> None:
    """Calls whose ids change, some of them none, with fewer bags on some ranks, or none."""
    rank, before = mine.start // (mine.stop - mine.start), way.ids
    for number, count in enumerate((bags // (1 + rank), bags * (rank % 2), 0, bags)):
        random = torch.Generator(table.device).manual_seed(100 * number + rank)
        given = {"device": table.device, "generator": random}
        ids = torch.randint(ROWS, (count, BAG), **given)
        ids.masked_fill_(torch.rand(ids.shape, **given) < 0.2, -1)
        weights = torch.rand(ids.shape, **given)
        upstream = torch.randn(count, WIDTH, **given)
        way.ids = ids
        wanted = Wanted(table, ids, weights, upstream, mine)
        wanted.compare(f"{name}, call {number}", way.gradients(table[mine], weights, upstream))
    way.ids = before
    way.shuffle.check()


def main(bags: int, given: Topology | None, is_one_host: bool) -> None:
    device = join(given, is_one_host)
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.manual_seed(3)
    table = torch.randn(ROWS, WIDTH, device=device)
    torch.manual_seed(17 + rank)
    ids = torch.randint(ROWS, (bags, BAG), device=device)
    weights = torch.rand(bags, BAG, device=device)
    upstream = torch.randn(bags, WIDTH, device=device)
    first = rank * (ROWS // ranks)
    part = slice(first, first + ROWS // ranks)
    mine, room = table[part].clone(), {"max_sources": ids.numel(), "capacity": ids.numel() * 5 // 4}
    ways = {
        "fixed": Fuscoc(device, ids, first, topology=given, **room),
        "exact": Fuscoc(device, ids, first, topology=given),
    }
    topology = ways["exact"].shuffle.topology
    is_captured = topology.num_nodes == 1 or is_one_host

    for name, way in ways.items():
        verify(way, table, part, bags, f"rank {rank} of {topology}, {name}")
    wanted = Wanted(table, ids, weights, upstream, part)
    by_torch = Torch(ids, weights, mine, first, ranks)
    found = {"torch": (by_torch.sums(), *by_torch.gradients(upstream))}
    found |= {name: way.gradients(mine, weights, upstream) for name, way in ways.items()}
    for name, got in found.items():
        wanted.compare(f"rank {rank} of {topology}, {name}", got)
    for name, way in ways.items():
        assert torch.equal(way.sums(mine, weights), found[name][0]), "sums do not repeat"
    ways["fixed"].shuffle.check()

    with torch.no_grad():
        calls: dict[str, Callable[[], object]] = {
            "torch": lambda: Torch(ids, weights, mine, first, ranks).sums(),
            "embedding_bag of the whole table": lambda: embedding_bag(
                ids, table, mode="sum", per_sample_weights=weights
            ),
        }
        for name, way in ways.items():
            calls[name] = partial(way.sums, mine, weights)
            calls[f"{name}, dispatch alone"] = partial(way.dispatch, weights)
        if is_captured:
            graph, result = captured(partial(ways["fixed"].sums, mine, weights))
            result.zero_()
            graph.replay()
            assert torch.equal(result, found["fixed"][0]), "a replay has other sums"
            calls["fixed, a graph"] = graph.replay
        tell(calls, ranks, f"{topology}, {bags} bags of {BAG}, sums")

    def torch_there_and_back() -> object:
        way = Torch(ids, weights, mine, first, ranks)
        return way.sums(), way.gradients(upstream)

    calls = {"torch": torch_there_and_back}
    for name, way in ways.items():
        calls[name] = partial(way.gradients, mine, weights, upstream)
    if is_captured:
        graph, results = captured(calls["fixed"])
        graph.replay()
        assert torch.equal(results[0], found["fixed"][0]), "a replay has other sums"
        for again, before in zip(results, found["fixed"], strict=True):
            assert float((again - before).norm() / before.norm()) < 1e-5
        calls["fixed, a graph"] = graph.replay
    tell(calls, ranks, f"{topology}, {bags} bags of {BAG}, and gradients")
    if is_captured:
        graph.reset()  # NCCL would wait for it at the end, as it has the gather of gradients
    for way in ways.values():
        way.shuffle.check()
        way.shuffle.close()
    if ranks > 1:
        dist.destroy_process_group()


def tell(calls: Mapping[str, Callable[[], object]], ranks: int, what: str) -> None:
    """Lines of medians, by one rank: of the host, and, where ranks have GPUs of their own, of
    these."""
    times = medians_ms(calls, ranks)
    of_gpus = {}
    if 1 < ranks <= torch.cuda.device_count():
        of_gpus = gpu_times(calls, TURNS, Barrier(torch.device("cuda")), HEAD_START_CYCLES)
    if ranks == 1 or dist.get_rank() == 0:
        print(f"{torch.cuda.get_device_name()}, {what}:", flush=True)
        for name, ms in times.items():
            gpu = f", GPU {of_gpus[name]:.0f} us" if name in of_gpus else ""
            print(f"  {name}: {ms:.3f} ms{gpu}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--bags", type=int, default=BAGS)
    parser.add_argument("--topology", type=Topology.parse, help="by default as NCCL has hosts")
    parser.add_argument("--one-host", action="store_true", help="all nodes are of one")
    options = parser.parse_args()
    if options.compile:
        import fuscoc

        constants = {"rows": ROWS, "width": WIDTH, "bag": BAG}
        fuscoc.compile(EXAMPLE, FOLDER, **constants)
    else:
        main(options.bags, options.topology, options.one_host)
