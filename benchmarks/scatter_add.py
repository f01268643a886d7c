"""``examples/scatter_add.fsc`` on GPUs, checked and timed beside torch.

    python -m benchmarks.scatter_add --compile
    torchrun --nproc-per-node 2 -m benchmarks.scatter_add

``--compile`` writes the artifact into ``build/scatter_add`` and needs no GPU. Every rank has
messages of random edges, for random nodes of all ranks, and knows where those that it gets are to
be added. What is in memory afterwards is compared bit by bit with a loop on the host, in the order
of slots, and within rounding with torch's ``index_add_`` on the GPU, whose atomics know no order.
Torch takes an order of messages that was made before, all-to-all and ``index_add_``; fuscoc reads
its tables in every call. All are warmed up, and take turns. Time is the host's between two waits
for the GPU, behind a barrier, the median of turns, of the rank that takes longest, and the GPU's;
see ``embedding.py``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.embedding import captured, join, tell
from benchmarks.layouts import moved
from fuscoc_runtime import Shuffle

FOLDER = Path("build/scatter_add")
EXAMPLE = Path(__file__).parents[1] / "examples" / "scatter_add.fsc"
WIDTH, NODES = 64, 1 << 16


class Edges:
    """Messages of this rank, and what both sides know of them: slots are by rank, then in order."""

    def __init__(self, edges: int, rank: int, ranks: int, device: torch.device) -> None:
        torch.manual_seed(5 + rank)
        self.messages = torch.randn(edges, WIDTH, device=device)
        to = torch.randint(ranks, (edges,), device=device)
        heads = torch.randint(NODES, (edges,), device=device)
        self.order = to.argsort(stable=True)
        counts = torch.bincount(to, minlength=ranks)
        everybody = counts.new_empty(ranks, ranks)
        if ranks > 1:
            dist.all_gather_into_tensor(everybody, counts)
        else:
            everybody.copy_(counts)
        self.outgoing, self.incoming = everybody[rank].tolist(), everybody[:, rank].tolist()
        first = everybody.cumsum(0)[rank] - counts  # of this rank's slots, on every rank
        within = torch.empty_like(to)
        within[self.order] = (
            torch.arange(edges, device=device) - (counts.cumsum(0) - counts)[to[self.order]]
        )
        self.destination = torch.stack([to, first[to] + within], 1)
        self.heads = moved(heads[self.order], self.outgoing, self.incoming)

    def by_torch(self, sums: Tensor) -> Tensor:
        came = moved(self.messages[self.order], self.outgoing, self.incoming)
        return sums.index_add_(0, self.heads, came)

    def wanted(self, sums: Tensor) -> Tensor:
        """The same on the host, one message after the other."""
        came = moved(self.messages[self.order], self.outgoing, self.incoming)
        return sums.cpu().index_add_(0, self.heads.cpu(), came.cpu())


def main(edges: int) -> None:
    device = join()
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    case = Edges(edges, rank, ranks, device)
    sums = torch.randn(NODES, WIDTH, device=device)
    wanted = case.wanted(sums)
    sizes = {"max_sources": edges, "capacity": 2 * edges}
    opened = {
        "fixed": Shuffle(FOLDER, device=device, timeout=60.0, **sizes),
        "exact": Shuffle(FOLDER, device=device, timeout=60.0),
    }
    tables = {"destination": case.destination, "heads": case.heads}
    calls: dict[str, Callable[[], object]] = {"torch": partial(case.by_torch, sums.clone())}
    for name, shuffle in opened.items():
        held = sums.clone()
        found, _ = shuffle.dispatch(case.messages, **tables, sums=held)
        assert torch.equal(found.cpu(), wanted), f"{name} differs from a loop"
        print(f"rank {rank} of {shuffle.topology}: {name} as a loop, to the bit", flush=True)
        calls[name] = partial(shuffle.dispatch, case.messages, **tables, sums=held)
    torch.testing.assert_close(case.by_torch(sums.clone()).cpu(), wanted, rtol=1e-4, atol=1e-4)
    if opened["exact"].topology.num_nodes == 1:
        held = sums.clone()
        add = partial(opened["fixed"].dispatch, case.messages, **tables, sums=held)
        graph, _ = captured(add)
        held.copy_(sums)
        graph.replay()
        assert torch.equal(held.cpu(), wanted), "a replay differs from a loop"
        calls["fixed, a graph"] = graph.replay
    tell(calls, ranks, f"{opened['exact'].topology}, {edges} messages of {WIDTH} f32 a rank")
    for shuffle in opened.values():
        shuffle.check()
        shuffle.close()
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--edges", type=int, default=1 << 18)
    options = parser.parse_args()
    if options.compile:
        import fuscoc

        fuscoc.compile(EXAMPLE, FOLDER, width=WIDTH)
    else:
        main(options.edges)
