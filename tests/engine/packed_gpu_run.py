"""Rows of experts by source rank, and of experts in copies, on the GPUs of one node, and their time
beside torch's.

``torchrun --nproc-per-node N -m tests.engine.packed_gpu_run ARTIFACT…`` takes artifacts of
``moe_by_source.fsc``, ``moe_replicated.fsc``, or of ``moe.fsc`` with as many experts. What arrives
is compared bit by bit with what all ranks have sent; it exits non-zero where something is wrong.
Torch sorts points by owner, exchanges counts and rows, and sorts what comes by expert; so a token
crosses once for each of its experts. Times are microseconds of the GPU between events, the largest
over the ranks, the median of the turns.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.layouts import gpu_times, moved
from benchmarks.nvlink_timing import Barrier
from fuscoc_runtime import Shuffle

TOKENS, TURNS = 4096, 11


def gathered(own: Tensor) -> list[Tensor]:
    """One tensor of every rank."""
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    return every


def by_torch(x: Tensor, idx: Tensor, experts: int) -> Tensor:
    """Rows of this rank's experts by (expert, source rank), one behind the other."""
    ranks = dist.get_world_size()
    flat = idx.flatten()
    order = flat.argsort(stable=True)[int((flat < 0).sum()) :]
    counts = torch.bincount(flat[order], minlength=experts).view(ranks, -1)
    came = torch.empty_like(counts)
    dist.all_to_all_single(came, counts)
    outgoing, incoming = torch.stack([counts.sum(1), came.sum(1)]).tolist()
    rows = moved(x[order // idx.shape[1]], outgoing, incoming)
    local = torch.arange(counts.shape[1], device=x.device).repeat(ranks)
    expert = local.repeat_interleave(came.flatten(), output_size=sum(incoming))
    return rows[expert.argsort(stable=True)]


def wrong_rows(
    rows: Tensor,
    handle: object,
    align: int,
    group: int,
    every_x: list[Tensor],
    every_idx: list[Tensor],
) -> list[str]:
    """What is not as all ranks have sent it: an expert has ``group`` keys, one a source rank, or
    one with the rows of all."""
    ranks, rank = len(every_x), dist.get_rank()
    counts = handle.key_counts.view(-1, group).tolist()
    starts = handle.key_offsets[:-1].view(-1, group).tolist()
    wrong = []
    for number in range(len(counts)):
        expert = rank * len(counts) + number
        sent = [
            x[(idx == expert).nonzero()[:, 0]] for x, idx in zip(every_x, every_idx, strict=True)
        ]
        for key, wanted in enumerate(sent if group == ranks else [torch.cat(sent)]):
            begin, count = starts[number][key], counts[number][key]
            if count != len(wanted) or begin % align:
                wrong.append(f"expert {expert}, key {key}: {count} rows from {begin} on")
            elif not torch.equal(rows[begin : begin + count], wanted):
                wrong.append(f"expert {expert}, key {key}: other rows")
    return wrong


def copies(logical: int, reps: int, slots: int, device: torch.device) -> Tensor:
    """A table [logical, reps] of physical experts: all have one, the first ones two."""
    expert = torch.arange(logical, device=device)
    second = torch.where(expert < slots - logical, logical + expert, expert)
    pair = torch.stack([expert, second], 1)
    return pair[:, torch.arange(reps, device=device) % 2].contiguous()


def run(path: str, barrier: Barrier) -> list[str]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", torch.cuda.current_device())
    random = torch.Generator(device).manual_seed(3 + rank)
    with Shuffle(path, group=dist.group.WORLD, max_sources=TOKENS) as shuffle:
        declared = shuffle.spec.declared
        constants = declared.constants
        experts, topk, hidden = (constants[name] for name in ("experts", "topk", "hidden"))
        x = torch.randn(TOKENS, hidden, device=device, generator=random).bfloat16()
        idx = torch.rand(TOKENS, experts, device=device, generator=random).topk(topk).indices
        idx[torch.rand(TOKENS, topk, device=device, generator=random) < 0.1] = -1
        weights = torch.rand(TOKENS, topk, device=device, generator=random)
        inputs, slots, copy = {"topk_idx": idx}, experts, None
        if "slots" in constants:
            slots, reps = constants["slots"], constants["reps"]
            inputs["replicas"] = copies(experts, reps, slots, device)
            copy = (torch.arange(TOKENS, device=device)[:, None] + rank) % reps
        state = {}

        def physical() -> Tensor:
            if copy is None:
                return idx
            return torch.where(idx < 0, -1, inputs["replicas"][idx.clamp(min=0), copy])

        def there() -> None:
            state["rows"], state["handle"] = shuffle.dispatch(x, **inputs, topk_weights=weights)

        def torch_there() -> None:
            state["torch"] = by_torch(x, physical(), slots)

        there()
        shuffle.check()
        every_x, every_idx = gathered(x), gathered(physical())
        align, group = declared.target.align, declared.target.group
        wrong = wrong_rows(state["rows"], state["handle"], align, group, every_x, every_idx)
        counts = state["handle"].key_counts.tolist()
        starts = state["handle"].key_offsets.tolist()
        spans = zip(starts, counts, strict=False)
        packed = torch.cat([state["rows"][begin : begin + count] for begin, count in spans])
        torch_there()
        if not torch.equal(packed, state["torch"]):
            wrong.append("other rows than torch's")
        work = state["rows"].clone()

        def back() -> None:
            state["back"] = shuffle.combine(work, state["handle"])

        back()
        shuffle.check()
        wanted = x.double() * (weights * (idx >= 0)).double().sum(1, keepdim=True)
        if not torch.allclose(state["back"].double(), wanted, rtol=0.02, atol=0.02):
            wrong.append("another sum came back")
        times = gpu_times(
            {"there": there, "back": back, "torch there": torch_there}, TURNS, barrier
        )
        if rank == 0:
            said = ", ".join(f"{name} {time:.0f}" for name, time in times.items())
            print(f"{shuffle.spec.name} {shuffle.backend}, {ranks} ranks, us: {said}", flush=True)
        return [f"{path} on rank {rank}: {each}" for each in wrong]


def main(paths: list[str]) -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    barrier = Barrier(device)
    wrong = [problem for path in paths for problem in run(path, barrier)]
    dist.destroy_process_group()
    if wrong:
        raise SystemExit("\n".join(wrong[:10]))


if __name__ == "__main__":
    main(sys.argv[1:])
