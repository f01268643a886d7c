"""A decode step of one layer where there is room for far more tokens; on the GPUs of one node.

    python -m benchmarks.decode_step --compile
    torchrun --nproc-per-node 1 -m benchmarks.decode_step

A step is a dispatch of 64 tokens, two grouped GEMMs and a combine, in a CUDA graph. Contenders have
room for 64 tokens a rank, for 8192, and for 8192 with rows cut to what 64 tokens can need. They are
replayed in turn; results are equal bit by bit, before and after. Microseconds of GPU time between
events behind a barrier, the largest over the ranks, the median of the turns.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.layouts import gpu_times
from benchmarks.nvlink_timing import Barrier
from fuscoc_runtime import Shuffle

ARTIFACT = Path("build/decode_step")
MOE = Path(__file__).parents[1] / "examples" / "moe.fsc"
HIDDEN, EXPERTS, TOPK, WIDTH = 4096, 64, 8, 1024
FEW, MANY = 64, 8192
Step = Callable[[], Tensor]


class Layer:
    """This rank's experts, and the tokens of a step."""

    def __init__(self) -> None:
        rank, num_ranks = dist.get_rank(), dist.get_world_size()
        draw = torch.Generator("cuda").manual_seed(rank)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, device="cuda", generator=draw).bfloat16()

        local = EXPERTS // num_ranks
        self.up = normal(local, HIDDEN, 2 * WIDTH) / HIDDEN**0.5
        self.down = normal(local, WIDTH, HIDDEN) / WIDTH**0.5
        scores = torch.rand(FEW, EXPERTS, device="cuda", generator=draw)
        weights, idx = scores.topk(TOPK)
        self.given = {"x": normal(FEW, HIDDEN), "topk_idx": idx, "topk_weights": weights}

    @torch.no_grad()
    def step(self, shuffle: Shuffle, cuts: bool) -> Tensor:
        rows, handle = shuffle.dispatch(**self.given)
        if cuts:
            rows = rows[: shuffle.capacity_for(FEW)]
        ends = handle.key_offsets[1:].int()
        gate, inner = torch._grouped_mm(rows, self.up, offs=ends).chunk(2, -1)
        worked = torch._grouped_mm(torch.nn.functional.silu(gate) * inner, self.down, offs=ends)
        result: Tensor = shuffle.combine(worked, handle)
        return result


def captured(step: Step) -> tuple[Callable[[], object], Tensor]:
    """What replays a step, and where its result is."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    return graph.replay, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--turns", type=int, default=31)
    options = parser.parse_args()
    if options.compile:
        import fuscoc

        fuscoc.compile(MOE, ARTIFACT, hidden=HIDDEN, experts=EXPERTS, topk=TOPK)
        return
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    layer, barrier = Layer(), Barrier(device)
    small, large = (Shuffle(ARTIFACT, group=dist.group.WORLD, max_sources=n) for n in (FEW, MANY))
    contenders = {
        f"room for {FEW}": (small, False),
        f"room for {MANY}": (large, False),
        f"room for {MANY}, rows cut": (large, True),
    }
    expected = layer.step(small, cuts=False)
    replays, results = dict[str, Callable[[], object]](), list[Tensor]()
    for name, (shuffle, cuts) in contenders.items():
        replays[name], result = captured(lambda s=shuffle, c=cuts: layer.step(s, c))
        results.append(result)

    def check() -> None:
        for name, result in zip(contenders, results, strict=True):
            replays[name]()
            torch.cuda.synchronize()
            assert torch.equal(result, expected), f"{name} is wrong"

    check()
    times = gpu_times(replays, options.turns, barrier)
    check()
    if dist.get_rank() == 0:
        print("| contender | µs | × |\n|---|---|---|")
        for name, time in times.items():
            print(f"| {name} | {time:.1f} | {time / times[f'room for {FEW}']:.2f} |")
    for shuffle in (small, large):
        shuffle.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
