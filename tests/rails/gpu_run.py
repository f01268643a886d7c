"""Fixed capacity between nodes on real GPUs.

``torchrun --nproc-per-node 2 -m tests.rails.gpu_run --topology 2x1 ARTIFACT…`` takes those of
``models.py`` in their order and exits non-zero, after naming every mismatch, when something is
wrong. Nodes have host ids of their own, and NCCL its network between them; with ``--one-host`` they
have not, and calls are captured by CUDA graphs as well. ``python -m tests.rails.models FOLDER``
compiles the artifacts.
"""

from __future__ import annotations

import argparse
import operator
import sys
from typing import Any

import torch
import torch.distributed as dist

from fuscoc_runtime.engine.node import slabs
from fuscoc_runtime.engine.node.rails import RailNode
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.face.shuffle import Shuffle
from fuscoc_runtime.topology import Topology
from tests.gpu_ranks import join
from tests.node_triton.gpu_run import DELAY_CYCLES, MOST, Runs, told
from tests.rails.models import MODELS

TIMEOUT = 60.0
BESIDE = 60
ROWS, ROOM = 100, 128
"""Of every rank, for one rank's slots."""


def gradients(runs: Runs) -> None:
    """Of rows and weights through two layers, against what one rank computes alone."""
    x, idx, weights = runs.batch("uniform", 33 + 20 * runs.rank)
    x, weights = x.requires_grad_(), weights.requires_grad_()

    def layer(x: torch.Tensor) -> torch.Tensor:
        rows, handle = runs.shuffle.dispatch(x, topk_idx=idx, topk_weights=weights)
        result: torch.Tensor = runs.shuffle.combine(rows * 2, handle)
        return result

    def plain(x: torch.Tensor) -> torch.Tensor:
        return 2 * x * (weights * (idx >= 0)).sum(1, keepdim=True)

    losses = (call(call(x)).square().mean() for call in (layer, plain))
    found, wanted = (torch.autograd.grad(loss, (x, weights)) for loss in losses)
    for name, one, other in zip(("x", "weights"), found, wanted, strict=True):
        error = float((one - other).norm() / other.norm())
        if not error < 1e-2:
            runs.wrong.append(f"{runs.model}: gradients of {name} are off by {error:.1e}")


def beside(runs: Runs) -> None:
    """Asynchronous calls whose arguments are freed at once, their memory to be overwritten, and for
    whose end the caller's stream waits, another one, or nobody."""
    x, idx, weights = runs.batch("uniform", MOST)
    want = x.float() * (weights * (idx >= 0)).sum(1, keepdim=True)
    off = torch.zeros((), dtype=torch.int64, device=runs.device)
    other = torch.cuda.Stream()
    for number in range(BESIDE):
        for step in ("dispatch", "combine"):
            torch.cuda._sleep(DELAY_CYCLES)
            if step == "dispatch":
                given = [x.clone(), idx.clone(), weights.clone()]
                named = dict(zip(("topk_idx", "topk_weights"), given[1:], strict=True))
                rows, handle, end = runs.shuffle.dispatch(given[0], async_op=True, **named)
                del named
            else:
                given = [rows.clone()]
                result, end = runs.shuffle.combine(given[0], handle, async_op=True)
            if number % 3 == 0:
                end.wait()
            elif number % 3 == 1:
                with torch.cuda.stream(other):
                    end.wait()
            shapes = [(each.shape, each.dtype) for each in given]
            del given, end
            for shape, dtype in shapes:
                torch.full(shape, 7, dtype=dtype, device=runs.device)
            torch.cuda.synchronize()
        off += (~((result.float() - want).abs() <= 0.05 * want.abs() + 0.05)).sum()
    runs.shuffle.check()
    if int(off):
        runs.wrong.append(f"beside: {int(off)} elements differ")


def captured_gradients(runs: Runs) -> None:
    """The same of one layer, as a graph, of other data than were captured."""
    given = runs.batch("uniform", 64)
    leaves = [given[0].requires_grad_(), given[2].requires_grad_()]

    def step() -> tuple[torch.Tensor, ...]:
        x, idx, weights = given
        rows, handle = runs.shuffle.dispatch(x, topk_idx=idx, topk_weights=weights)
        result = runs.shuffle.combine(rows * 2, handle)
        return torch.autograd.grad(result.square().mean(), leaves)

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        found = step()
    for kind in ("messy", "uniform"):
        with torch.no_grad():
            for static, new in zip(given, runs.batch(kind, 64), strict=True):
                static.copy_(new)
        graph.replay()
        x, idx, weights = given
        plain = 2 * x * (weights * (idx >= 0)).sum(1, keepdim=True)
        wanted = torch.autograd.grad(plain.square().mean(), leaves)
        for name, one, other in zip(("x", "weights"), found, wanted, strict=True):
            error = float((one - other).norm() / other.norm())
            if not error < 1e-2:
                runs.wrong.append(f"graph {kind}: gradients of {name} are off by {error:.1e}")
    graph.reset()  # NCCL would wait for it at the end
    runs.shuffle.check()


def refused_capture(runs: Runs) -> None:
    """Where NCCL has a network, graphs are refused, and calls go on."""
    x, idx, weights = runs.batch("uniform", 128)
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            runs.dispatch(x, idx, weights)
        runs.wrong.append(f"{runs.model}: a graph has captured threads of NCCL's")
    except FuscoRuntimeError as error:
        if "cannot be captured" not in str(error):
            runs.wrong.append(f"{runs.model}: a graph is refused by {error}")


def mistakes(artifact: str, wrong: list[str], **options: Any) -> None:
    """Keys that do not exist and rows without a slot are told on the rank that gave them."""
    shuffle = Shuffle(artifact, max_sources=MOST, capacity=ROOM, **options)
    device, rank = shuffle.device, shuffle.rank
    idx = torch.zeros(ROWS, MODELS[-1].topk, dtype=torch.int64, device=device)
    idx[:, 1:] = -1
    if rank == 1:
        idx[0, 0] = 10**6
    x = torch.ones(ROWS, MODELS[-1].hidden, device=device)
    _, handle = shuffle.dispatch(x, topk_idx=idx, topk_weights=torch.ones_like(idx).float())
    said = []
    while True:
        try:
            shuffle.check()
            break
        except FuscoRuntimeError as error:
            said.append(str(error))
    bad = int(rank == 1)
    lost = without_slot(rank) - bad
    told = ["1 points"] * bad + [f"{lost} points of rank {rank}"] * (lost > 0)
    if len(said) != len(told) or not all(map(operator.contains, said, told)):
        wrong.append(f"rank {rank} is told {said}")
    if int(handle.dropped) != lost + bad:
        wrong.append(f"{int(handle.dropped)} points are dropped")


def captured_drops(artifact: str, wrong: list[str], **options: Any) -> None:
    """A graph: rows without a slot in another node are told of every replay."""
    shuffle = Shuffle(artifact, max_sources=MOST, capacity=ROOM, **options)
    device, rank, replays = shuffle.device, shuffle.rank, 3
    idx = torch.full((ROWS, MODELS[-1].topk), -1, dtype=torch.int64, device=device)
    x, weights = torch.ones(ROWS, MODELS[-1].hidden, device=device), torch.ones_like(idx).float()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        _, handle = shuffle.dispatch(x, topk_idx=idx, topk_weights=weights)
    idx[:, 0] = 0
    lost = without_slot(rank)
    for _ in range(replays):
        graph.replay()
        if int(handle.dropped) != lost:
            wrong.append(f"{int(handle.dropped)} points of a graph are dropped")
    graph.reset()
    try:
        shuffle.check()
        said = "no error"
    except FuscoRuntimeError as error:
        said = str(error)
    if (f"{lost * replays} points" if lost else "no error") not in said:
        wrong.append(f"rank {rank} is told {said} of a graph")


def without_slot(rank: int) -> int:
    """Of as many rows of every rank, all to rank 0, where those of lower ranks come first."""
    return min(ROWS, max(0, (rank + 1) * ROWS - ROOM))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--topology", type=Topology.parse, default=Topology(2, 1))
    parser.add_argument("--one-host", action="store_true")
    parser.add_argument("--round-bytes", type=int, help="of slabs that travel in several rounds")
    parser.add_argument("--staging-bytes", type=int, help="of partial rows that come in one turn")
    parser.add_argument("--only", type=int, help="the number of one model, from 0 on")
    parser.add_argument("artifacts", nargs="+", help="of all models")
    given = parser.parse_args()
    if given.round_bytes is not None:
        slabs.ROUND_BYTES = slabs.MESSAGE_BYTES = given.round_bytes
    if given.staging_bytes is not None:
        slabs.STAGING_BYTES = given.staging_bytes
    device = join(given.topology, given.one_host)
    options = {"topology": given.topology, "device": device, "timeout": TIMEOUT}
    wrong: list[str] = []
    for number, (artifact, model) in enumerate(zip(given.artifacts, MODELS, strict=True)):
        if given.only not in (None, number):
            continue
        runs = Runs(artifact, model, wrong, **options)
        assert isinstance(runs.shuffle.engine.node, RailNode)
        if model == MODELS[0]:
            if given.one_host:
                runs.graph()
            else:
                refused_capture(runs)
        for kind in ("uniform", "single", "messy"):
            for tokens in (MOST, 1 + 100 * runs.rank, 0):
                runs.verify(kind, tokens)
        if model == MODELS[0]:
            runs.stress()
            beside(runs)
        if model == MODELS[-1]:
            gradients(runs)
            if given.one_host:
                captured_gradients(runs)
            mistakes(artifact, wrong, **options)
            if given.one_host:
                captured_drops(artifact, wrong, **options)
        if dist.get_rank() == 0:
            print(f"{model}: {len(wrong)} wrong so far", flush=True)
    return told(wrong)


if __name__ == "__main__":
    sys.exit(main())
