"""``examples/embedding.fsc`` on GPUs, checked and timed beside torch.

    python -m benchmarks.embedding --compile
    torchrun --nproc-per-node 2 -m benchmarks.embedding

``--compile`` writes the artifact into ``build/embedding`` and needs no GPU. Every rank looks up
bags of random ids; sums, and the gradients of table and weights, are compared with those of
``torch.nn.functional.embedding_bag`` on the whole table, and sums have to repeat to the bit.
Torch's own way over several ranks is compared, too: ids sorted by owner, all-to-all,
``index_select``, rows back, permuted and summed up, where fuscoc sums up at the owner. Ranks share
GPUs where there are fewer, each as a node of its own. All are warmed up, and take turns. Time is
the host's between two waits for the GPU, behind a barrier, the median of turns, of the rank that
takes longest.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import embedding_bag

from benchmarks.layouts import moved
from fuscoc_runtime import Shuffle

FOLDER = Path("build/embedding")
EXAMPLE = Path(__file__).parents[1] / "examples" / "embedding.fsc"
ROWS, WIDTH, BAG, BAGS = 1 << 20, 128, 32, 8192
WARM_UP, TURNS = 3, 7


def join() -> torch.device:
    """A job of all ranks; those that share a GPU are told apart by host ids of their own."""
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    if world > torch.cuda.device_count():
        os.environ["NCCL_HOSTID"] = f"node-{rank}"
    if world > 1:
        dist.init_process_group("nccl", device_id=device)
    return device


def by_torch(ids: Tensor, weights: Tensor, mine: Tensor, first: int, ranks: int) -> Tensor:
    """Bags by permute, all-to-all and ``index_select``, over ranks that have equal parts."""
    flat = ids.flatten()
    owner = flat // len(mine)
    order = owner.argsort(stable=True)
    counts = torch.bincount(owner, minlength=ranks)
    theirs = counts if ranks == 1 else torch.empty_like(counts)
    if ranks > 1:
        dist.all_to_all_single(theirs, counts)
    send, receive = counts.tolist(), theirs.tolist()
    asked = moved(flat[order], send, receive)
    came = moved(mine.index_select(0, asked - first), receive, send)
    rows = torch.empty_like(came).index_copy_(0, order, came).view(*ids.shape, -1)
    return (rows * weights.unsqueeze(2)).sum(1)


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


def main(bags: int) -> None:
    device = join()
    shuffle = Shuffle(FOLDER, device=device, timeout=60.0)
    rank, ranks = shuffle.rank, shuffle.topology.num_ranks
    torch.manual_seed(3)
    table = torch.randn(ROWS, WIDTH, device=device)
    torch.manual_seed(17 + rank)
    ids = torch.randint(ROWS, (bags, BAG), device=device)
    weights = torch.rand(bags, BAG, device=device)
    first = rank * (ROWS // ranks)
    mine = table[first : first + ROWS // ranks].clone()

    def by_fuscoc(mine: Tensor, weights: Tensor) -> Tensor:
        asked, handle = shuffle.dispatch(ids, indices=ids, per_sample_weights=weights)
        result: Tensor = shuffle.combine(mine.index_select(0, asked - first), handle)
        return result

    found = []
    for _ in range(2):
        held, weighed = mine.clone().requires_grad_(), weights.clone().requires_grad_()
        sums = by_fuscoc(held, weighed)
        sums.square().sum().backward()
        found.append((sums.detach(), held.grad, weighed.grad))
    whole, plain = table.clone().requires_grad_(), weights.clone().requires_grad_()
    want = embedding_bag(ids, whole, mode="sum", per_sample_weights=plain)
    want.square().sum().backward()
    if ranks > 1:
        dist.all_reduce(whole.grad)
    own = whole.grad[first : first + len(mine)]
    sums, of_table, of_weights = found[1]
    pairs = {
        "sums": (sums, want.detach()),
        "table": (of_table, own),
        "weights": (of_weights, plain.grad),
        "sums by torch": (by_torch(ids, weights, mine, first, ranks), want.detach()),
    }
    for name, (got, wanted) in pairs.items():
        error = float((got - wanted).norm() / wanted.norm())
        print(f"rank {rank} of {shuffle.topology}: {name} off by {error:.1e}", flush=True)
        assert error < 1e-5
    assert torch.equal(found[0][0], found[1][0]), "sums do not repeat"

    with torch.no_grad():
        given = {"indices": ids, "per_sample_weights": weights}
        calls = {
            "fuscoc": lambda: by_fuscoc(mine, weights),
            "of which dispatch": lambda: shuffle.dispatch(ids, **given),
            "torch": lambda: by_torch(ids, weights, mine, first, ranks),
            "embedding_bag of the whole table": lambda: embedding_bag(
                ids, table, mode="sum", per_sample_weights=weights
            ),
        }
        times = medians_ms(calls, ranks)
    if rank == 0:
        name = torch.cuda.get_device_name()
        print(f"{name}, {shuffle.topology}, {bags} bags of {BAG} ids, {WIDTH} f32 a row")
        print(", ".join(f"{what} {ms:.2f} ms" for what, ms in times.items()), flush=True)
    shuffle.close()
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--bags", type=int, default=BAGS)
    options = parser.parse_args()
    if options.compile:
        import fuscoc

        constants = {"rows": ROWS, "width": WIDTH, "bag": BAG}
        fuscoc.compile(EXAMPLE, FOLDER, **constants)
    else:
        main(options.bags)
