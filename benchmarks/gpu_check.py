"""Verify and time the MoE example on the GPUs of one machine, at a real size.

    fuscoc compile examples/moe.fsc -o build/moe
    torchrun --nproc-per-node 4 -m benchmarks.gpu_check build/moe
    torchrun --nproc-per-node 4 -m benchmarks.gpu_check build/moe --nodes 2

With ``--nodes 2`` NCCL takes the ranks for two hosts and uses its network between them. Rows are
compared bit by bit, sums within 2 units in the last place of the sum of absolute terms, with a
vectorised computation in plain torch that shares nothing with the runtime. Times are host times of
whole calls, planning and the final synchronisation included: median over the iterations, then the
largest of all ranks.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from fuscoc_runtime import Shuffle, load_artifact
from fuscoc_runtime.comm.group import join
from fuscoc_runtime.manifest.declared import PackedTarget

WARM_UP = 3
ULPS = 2


@dataclass(frozen=True)
class Moe:
    """The sizes of the spec, and this rank's random batch."""

    num_experts: int
    align: int
    x: Tensor
    topk_idx: Tensor
    topk_weights: Tensor


def make_batch(shuffle: Shuffle, tokens: int, seed: int) -> Moe:
    """``tokens`` rows on every rank, each to distinct random experts."""
    spec = shuffle.spec
    assert isinstance(spec.declared.target, PackedTarget)
    [field] = spec.declared.fields
    random = torch.Generator(shuffle.device).manual_seed(seed * 1009 + shuffle.rank)
    scores = torch.rand(
        tokens, spec.declared.target.num_keys, generator=random, device=shuffle.device
    )
    idx = scores.topk(spec.program.fanout, dim=1).indices
    x = torch.randn(tokens, *field.shape, generator=random, device=shuffle.device)
    weights = torch.rand(tokens, spec.program.fanout, generator=random, device=shuffle.device)
    return Moe(
        spec.declared.target.num_keys, spec.declared.target.align, x.bfloat16(), idx, weights
    )


def gather(tensor: Tensor) -> Tensor:
    """[num_ranks, ...]: the tensor of every rank."""
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return torch.stack(parts)


def expected_rows(moe: Moe, rank: int, num_ranks: int) -> tuple[Tensor, Tensor, int]:
    """(slots, the rows they must hold, number of slots) of this rank."""
    experts_per_rank = moe.num_experts // num_ranks
    idx, x = gather(moe.topk_idx).flatten(), gather(moe.x).flatten(0, 1)
    point = torch.nonzero(idx // experts_per_rank == rank).flatten()
    order = torch.sort(idx[point], stable=True).indices
    point = point[order]
    expert = idx[point] - rank * experts_per_rank
    counts = torch.bincount(expert, minlength=experts_per_rank)
    padded = (counts + moe.align - 1) // moe.align * moe.align
    position = torch.arange(len(point), device=idx.device) - (counts.cumsum(0) - counts)[expert]
    slots = (padded.cumsum(0) - padded)[expert] + position
    return slots, x[point // moe.topk_idx.shape[1]], int(padded.sum())


def apply_expert(rows: Tensor, expert: Tensor) -> Tensor:
    """Stands in for the experts: a factor of the expert's own, rounded to the rows' dtype."""
    return (rows.float() * (1 + (expert % 8).unsqueeze(1) / 8)).to(rows.dtype)


def check_rows(moe: Moe, rows: Tensor, rank: int, num_ranks: int) -> None:
    slots, wanted, num_slots = expected_rows(moe, rank, num_ranks)
    assert len(rows) == num_slots, f"{len(rows)} slots where {num_slots} were expected"
    same = (rows[slots].view(torch.int16) == wanted.view(torch.int16)).all(1)
    assert bool(same.all()), f"{int((~same).sum())} of {len(slots)} rows are wrong"


def check_result(moe: Moe, result: Tensor) -> float:
    """Returns the largest error in units in the last place; raises if it is too large."""
    total = torch.zeros(moe.x.shape, dtype=torch.float64, device=moe.x.device)
    magnitude = torch.zeros_like(total)
    for expert, weight in zip(moe.topk_idx.unbind(1), moe.topk_weights.unbind(1), strict=True):
        term = apply_expert(moe.x, expert).double() * weight.double().unsqueeze(1)
        total += term
        magnitude += term.abs()
    ulp = torch.ldexp(
        torch.full_like(magnitude, torch.finfo(result.dtype).eps),
        torch.frexp(magnitude).exponent - 1,
    )
    worst = float(((result.double() - total).abs() / ulp).nan_to_num(torch.inf).max())
    assert worst <= ULPS, f"the result is off by {worst:.2f} units in the last place"
    return worst


def verify(shuffle: Shuffle, moe: Moe) -> float:
    """Dispatch, work, combine and check; returns the largest error of a sum."""
    rows, handle = shuffle.dispatch(moe.x, topk_idx=moe.topk_idx)
    check_rows(moe, rows, shuffle.rank, shuffle.topology.num_ranks)
    expert = torch.repeat_interleave(handle.keys, handle.key_offsets.diff())
    worked = apply_expert(rows, expert)
    return check_result(moe, shuffle.combine(worked, handle, topk_weights=moe.topk_weights))


def median_ms(call: Callable[[], object], iterations: int) -> float:
    """The slowest rank's median."""
    times = []
    for number in range(WARM_UP + iterations):
        dist.barrier()
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        torch.cuda.synchronize()
        if number >= WARM_UP:
            times.append((time.perf_counter() - started) * 1e3)
    slowest = torch.tensor([statistics.median(times)], device="cuda")
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("artifact", help="the compiled examples/moe.fsc")
    parser.add_argument("--nodes", type=int, default=1, help="nodes to pretend [1]")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of a rank [4096]")
    parser.add_argument("--iterations", type=int, default=20, help="timed calls [20]")
    parser.add_argument("--sms", type=int, help="SMs that kernels may use [all]")
    options = parser.parse_args()
    local_rank, local_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if torch.cuda.device_count() < local_size:
        sys.exit(f"{local_size} ranks need as many GPUs; there are {torch.cuda.device_count()}")
    # NCCL reads it when it starts, and so does the runtime to tell the nodes apart.
    os.environ["NCCL_HOSTID"] = f"node-{local_rank * options.nodes // local_size}"
    join(timeout=60)

    shuffle = Shuffle(load_artifact(options.artifact), num_sms=options.sms)
    for seed in (1, 2):
        verify(shuffle, make_batch(shuffle, options.tokens - 37 * seed, seed))
    moe = make_batch(shuffle, options.tokens, seed=0)
    worst = verify(shuffle, moe)
    print(f"rank {shuffle.rank}: verified, worst sum {worst:.2f} ulp", flush=True)

    dispatch_ms = median_ms(
        lambda: shuffle.dispatch(moe.x, topk_idx=moe.topk_idx), options.iterations
    )
    rows, handle = shuffle.dispatch(moe.x, topk_idx=moe.topk_idx)
    combine_ms = median_ms(
        lambda: shuffle.combine(rows, handle, topk_weights=moe.topk_weights), options.iterations
    )
    print(handle, flush=True)
    if shuffle.rank == 0:
        print(
            f"{shuffle.topology}, {len(moe.x)} tokens a rank on {torch.cuda.get_device_name()}: "
            f"dispatch {dispatch_ms:.3f} ms (planning {shuffle.stats().planning_ms:.3f} ms), "
            f"combine {combine_ms:.3f} ms"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
