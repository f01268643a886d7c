"""Thousands of back-to-back dispatches and combines on real GPUs, every one verified; torchrun.

``python -m torch.distributed.run --nproc-per-node N -m tests.cuda.stress_run`` calls engines in
turn, whose calls are staged and not, whose targets are compact and not, whose small rows come back
as they are, with random routings, sizes, schedules, numbers of combines and delays of single ranks.
Rows are compared bit by bit and sums with f32 on the device; the host only looks at the number of
mismatches now and then. Ranks that are more than GPUs share them.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from benchmarks.moe_cases import Model, expected_rows, gather_ragged, owners, program, routing
from fuscoc_runtime.engine.node.nvlink import CudaNode
from fuscoc_runtime.engine.node.schedule import Schedule
from fuscoc_runtime.engine.node.state import Limits
from tests.cuda.checks import troubles
from tests.cuda.edges import MANY, taking_back
from tests.gpu_ranks import join

KINDS = ("uniform", "single", "skewed", "messy")
SCHEDULES = (
    Schedule(),
    Schedule(num_sms=16, dispatch_group=3, combine_group=2),
    Schedule(num_sms=40, dispatch_group=4, combine_group=3),
    Schedule(dispatch_group=1, combine_group=1),
)
SMALL = Model(hidden=8, experts=64, topk=1, align=1)
DELAY_CYCLES = 200_000
LOOK_EVERY = 100


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs of one rank; slot ``slots[i]`` must have row ``origins[i]`` of ``everyones_x``, in the
    rank's row ``rows[i]``."""

    x: torch.Tensor
    topk_idx: torch.Tensor
    weights: torch.Tensor
    everyones_x: torch.Tensor
    slots: torch.Tensor
    rows: torch.Tensor
    origins: torch.Tensor
    sums: torch.Tensor


class Stress:
    """An engine, its batches, and how much has been wrong: [rows, elements of sums]. If it
    ``copies``, rows are not summed up on the way back."""

    def __init__(
        self, model: Model, most: int, shared: random.Random, copies: bool = False
    ) -> None:
        device, num_ranks = torch.device("cuda", torch.cuda.current_device()), dist.get_world_size()
        limits = Limits(most, num_ranks * most * model.topk + model.experts * model.align)
        self.name = f"{most} tokens{', compact' if model.compact else ''}"
        self.copies = copies
        printed = taking_back(model, "copy") if copies else program(model)
        self.engine = CudaNode(printed, limits, dist.group.WORLD, device)
        generator = torch.Generator(device).manual_seed(50 + dist.get_rank())
        self.batches = []
        for kind in KINDS * 2:
            sizes = [shared.choice((most, shared.randint(0, most))) for _ in range(num_ranks)]
            n = sizes[dist.get_rank()]
            topk_idx = routing(kind, n, model, num_ranks, generator)
            owner = owners(model, num_ranks, device)
            expected = expected_rows(
                gather_ragged(topk_idx, None), owner, model.align, dist.get_rank()
            )
            x = torch.randn(n, model.hidden, device=device, generator=generator).bfloat16()
            weights = torch.rand(n, model.topk, device=device, generator=generator)
            if copies:
                weights.fill_(1)
            everyone = gather_ragged(x, None)
            base = torch.tensor([0, *map(len, everyone)], device=device).cumsum(0)
            self.batches.append(
                Batch(
                    x, topk_idx, weights, torch.cat(list(everyone)), expected.slots,
                    expected.rows if model.compact else expected.slots,
                    base[expected.ranks] + expected.tokens,
                    x.float() * (weights * (topk_idx >= 0)).sum(1, keepdim=True),
                )
            )  # fmt: skip
        self.mismatches = torch.zeros(2, dtype=torch.int64, device=device)

    def step(self, shared: random.Random, own: random.Random) -> None:
        """One dispatch and up to two combines; ``shared`` is equal on all ranks."""
        batch = self.batches[shared.randrange(len(self.batches))]
        self.engine.configure(shared.choice(SCHEDULES))
        combines, poison, late = shared.randint(0, 2), shared.random() < 0.5, shared.random() < 0.4
        rows = self.engine.rows[0]
        if poison:
            rows[batch.rows] = float("nan")
        if late:
            torch.cuda._sleep(own.randrange(1, DELAY_CYCLES))
        n = len(batch.x)
        handle = self.engine.dispatch([batch.x], [batch.topk_idx], [n], n, batch.weights)
        for part in torch.arange(len(batch.slots), device=rows.device).split(1 << 13):
            wrong = rows[batch.rows[part]] != batch.everyones_x[batch.origins[part]]
            self.mismatches[0] += wrong.any(dim=1).sum()
        if handle.row_index is not None:
            refers = torch.full_like(handle.row_index, -1).index_copy(0, batch.slots, batch.rows)
            self.mismatches[0] += (handle.row_index != refers).sum()
            rows = rows[handle.row_index.clamp(min=0)]
        for _ in range(combines):
            result = torch.full_like(batch.x, float("nan"))
            if late:
                torch.cuda._sleep(own.randrange(1, DELAY_CYCLES))
            self.engine.combine([rows], handle, [result])
            if self.copies:
                off = result.float() != batch.sums
            else:
                off = (result.float() - batch.sums).abs() > 0.05 * batch.sums.abs() + 0.05
            self.mismatches[1] += (off | ~torch.isfinite(result)).sum()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=240, help="stop after so long")
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[256, 2048], help="at most, a rank"
    )
    parser.add_argument("--hidden", type=int, default=7168)
    options = parser.parse_args()
    device = join()
    rank, shared = dist.get_rank(), random.Random(3)
    own = random.Random(70 + rank)
    stresses = [
        Stress(Model(hidden=options.hidden, compact=compact), most, shared)
        for most in options.tokens
        for compact in (False, True)
    ]
    stresses.append(Stress(SMALL, MANY, shared, copies=True))
    start, done = time.monotonic(), 0
    while done < options.iterations:
        shared.choice(stresses).step(shared, own)
        done += 1
        if done % LOOK_EVERY == 0:
            wrong = sum(int(each.mismatches.sum()) for each in stresses)
            stop = torch.tensor(
                wrong > 0 or time.monotonic() - start > options.seconds, device=device
            )
            dist.all_reduce(count := stop.int())
            if int(count):
                break
    found = [
        f"{each.name}: {each.mismatches.tolist()} rows and elements differ {troubles(each.engine)}"
        for each in stresses
        if each.mismatches.any() or troubles(each.engine)
    ]
    everyone: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, found)
    if rank == 0:
        seconds = time.monotonic() - start
        for r, lines in enumerate(everyone):
            print("".join(f"WRONG on rank {r}: {line}\n" for line in lines), end="")
        mismatches = sum(map(len, everyone))
        print(f"stress: {done} iterations in {seconds:.1f} s, {mismatches} mismatches", flush=True)
    dist.destroy_process_group()
    return int(any(everyone) or done < min(options.iterations, LOOK_EVERY))


if __name__ == "__main__":
    sys.exit(main())
