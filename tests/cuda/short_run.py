"""Back-to-back calls of short rows that are sorted by key, every one verified; torchrun.

``python -m torch.distributed.run --nproc-per-node N -m tests.cuda.short_run`` calls engines of
several rows in turn, with random sizes, routings, schedules, numbers of combines and delays of
single ranks; of one, half of the rows do not fit. Rows and what comes back are compared bit by bit
on the device. What is said of the first difference is the call, the slot or the row, and where it
is from.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import sys
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from benchmarks.moe_cases import Expected, Model, expected_rows, gather_ragged, owners, routing
from fuscoc_runtime.engine.node.nvlink import CudaNode
from fuscoc_runtime.engine.node.schedule import Schedule
from fuscoc_runtime.engine.node.state import Limits, parse_state
from tests.cuda.checks import make_source, troubles
from tests.cuda.edges import taking_back
from tests.gpu_ranks import join

SHORT = (
    Model(hidden=4, experts=64, topk=1, dtype="i32", placement="cyclic", align=1),
    Model(hidden=16, experts=64, topk=1, dtype="i32", placement="expert_to_rank", align=8),
    Model(hidden=28, experts=60, topk=1, dtype="i32", align=1),
    Model(hidden=8, experts=40, topk=1, dtype="u8", extra=(("y", "i64", 3),), align=1),
    Model(hidden=4, experts=30, topk=1, dtype="i32", extra=(("y", "i64", 4),), align=1),
)
LONGER = (  # sorted from sm_90 on, where lanes move rows
    Model(hidden=128, experts=64, topk=1, dtype="i32", placement="cyclic", align=1),
    Model(hidden=52, experts=60, topk=1, dtype="i32", placement="expert_to_rank", align=8),
)
KINDS = ("uniform", "skewed", "single", "messy")
SCHEDULES = (Schedule(), Schedule(num_sms=16), Schedule(num_sms=5, combine_group=32), Schedule())
DELAY_CYCLES = 200_000
LOOK_EVERY = 20
NEVER = 1 << 62
SHIFT = 32  # of a call in the word that says what differs first


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs of one rank, uint8 by field. ``slots`` have the rows ``origins`` of ``everyones``;
    ``back`` is what comes back."""

    n: int
    source: list[torch.Tensor]
    topk_idx: torch.Tensor
    everyones: list[torch.Tensor]
    expected: Expected
    slots: torch.Tensor
    origins: torch.Tensor
    back: list[torch.Tensor]
    dropped: int


class Short:
    """An engine, its batches, and which call and row was the first to be wrong, there and back."""

    def __init__(
        self, model: Model, most: int, half: bool, shared: random.Random, device: torch.device
    ) -> None:
        num_ranks, rank = dist.get_world_size(), dist.get_rank()
        capacity = most // 2 if half else num_ranks * most + model.experts * model.align
        self.name = f"{model} of {most}, capacity {capacity}"
        printed = taking_back(model, "copy")
        assert printed.sorts
        self.engine = CudaNode(printed, Limits(most, capacity), dist.group.WORLD, device)
        generator = torch.Generator(device).manual_seed(50 + rank)
        self.owner, self.dropped = owners(model, num_ranks, device), 0
        self.batches = [
            self._batch(model, kind, most, capacity, shared, generator) for kind in KINDS * 2
        ]
        self.first = torch.full((2,), NEVER, dtype=torch.int64, device=device)
        self.calls: list[str] = []

    def _batch(
        self,
        model: Model,
        kind: str,
        most: int,
        capacity: int,
        shared: random.Random,
        generator: torch.Generator,
    ) -> Batch:
        num_ranks, rank, device = dist.get_world_size(), dist.get_rank(), generator.device
        sizes = [shared.choice((most, shared.randint(0, most))) for _ in range(num_ranks)]
        n = sizes[rank]
        topk_idx = routing(kind, n, model, num_ranks, generator)
        source = [each.view(torch.uint8) for each in make_source(model, n, generator)]
        everyone = gather_ragged(topk_idx, None)
        everyones = [torch.cat(gather_ragged(each, None)) for each in source]
        base = torch.tensor([0, *map(len, everyone)], device=device).cumsum(0)
        goes = torch.zeros(n, 1, dtype=torch.bool, device=device)
        own: Expected | None = None
        for r in range(num_ranks):
            expected = expected_rows(everyone, self.owner, model.align, r)
            mine = (expected.slots < capacity) & (expected.ranks == rank)
            goes[expected.tokens[mine]] = True
            own = expected if r == rank else own
        assert own is not None
        there = own.slots < capacity
        return Batch(
            n, source, topk_idx, everyones, own,
            own.slots[there], (base[own.ranks] + own.tokens)[there],
            [each * goes for each in source],
            int(((topk_idx >= 0) & ~goes).sum()),
        )  # fmt: skip

    def step(self, shared: random.Random, own: random.Random) -> None:
        """One dispatch and up to two combines; ``shared`` is equal on all ranks."""
        number = shared.randrange(len(self.batches))
        batch, schedule = self.batches[number], shared.choice(SCHEDULES)
        combines, poison, late = shared.randint(0, 2), shared.random() < 0.5, shared.random() < 0.4
        self.calls.append(f"batch {number} of {batch.n} rows, {schedule}, late {late}")
        call = (len(self.calls) - 1) << SHIFT
        self.engine.configure(schedule)
        rows = [each.view(torch.uint8) for each in self.engine.rows]
        if poison:
            for each in rows:
                each[batch.slots] = 0xA5
        if late:
            torch.cuda._sleep(own.randrange(1, DELAY_CYCLES))
        handle = self.engine.dispatch(
            batch.source, [batch.topk_idx, self.owner], [batch.n], batch.n
        )
        self.settle()
        self.dropped += batch.dropped
        for each, theirs in zip(rows, batch.everyones, strict=True):
            self._compare(0, call, each[batch.slots], theirs[batch.origins])
        for _ in range(combines):
            results = [torch.full_like(each, 7) for each in batch.source]
            if late:
                torch.cuda._sleep(own.randrange(1, DELAY_CYCLES))
            self.engine.combine(self.engine.rows, handle, results)
            self.settle()
            for result, wanted in zip(results, batch.back, strict=True):
                self._compare(1, call, result, wanted)

    def settle(self) -> None:
        """What follows is behind the call in the stream; threads of the host have none."""
        if self.owner.device.type == "cpu":
            torch.cuda.synchronize()

    def _compare(self, way: int, call: int, found: torch.Tensor, wanted: torch.Tensor) -> None:
        if len(found):
            wrong = (found != wanted).any(1)
            at = torch.where(wrong.any(), call + wrong.int().argmax(), NEVER)
            self.first[way] = torch.minimum(self.first[way], at)

    def problems(self) -> list[str]:
        """What has been wrong until now."""
        found = []
        for way, first in enumerate(self.first.tolist()):
            if first == NEVER:
                continue
            call, at = first >> SHIFT, first & ((1 << SHIFT) - 1)
            said = self.calls[call]
            batch = self.batches[int(said.split()[1])]
            if way == 0:
                slot = int(batch.slots[at])
                expected = batch.expected
                index = int((expected.slots == slot).nonzero()[0])
                key, token, rank = (
                    int(each[index]) for each in (expected.keys, expected.tokens, expected.ranks)
                )
                where = f"slot {slot} of key {key}, row {token} of rank {rank}"
            else:
                where = f"row {at} to key {int(batch.topk_idx[at, 0])}"
            found.append(f"{self.name}: call {call} ({said}), {('there', 'back')[way]}: {where}")
        overflowed = parse_state(self.engine.state.tolist()).overflowed
        if overflowed != self.dropped:
            found.append(f"{self.name}: {overflowed} rows are dropped, not {self.dropped}")
        if not self.dropped:
            found += [f"{self.name}: {each}" for each in troubles(self.engine)]
        return found


def shorts(most: int, device: torch.device, shared: random.Random) -> list[Short]:
    """Engines of all models; the first one's has more rows, and another one half of the slots."""
    models = [*SHORT, *(each for each in LONGER if taking_back(each, "copy").sorts)]
    made = [
        Short(model, most if i else 8 * most, False, shared, device)
        for i, model in enumerate(models)
    ]
    return [*made, Short(SHORT[0], most, True, shared, device)]


def stress(
    engines: list[Short], iterations: int, seconds: float, device: torch.device
) -> list[str]:
    """What is wrong on this rank; all ranks stop together."""
    shared, own = random.Random(3), random.Random(70 + dist.get_rank())
    start, found = time.monotonic(), list[str]()
    for done in range(1, iterations + 1):
        shared.choice(engines).step(shared, own)
        if done % LOOK_EVERY == 0 or done == iterations:
            found = [problem for each in engines for problem in each.problems()]
            everyone: list[bool] = [False] * dist.get_world_size()
            late = time.monotonic() - start > seconds
            dist.all_gather_object(everyone, bool(found) or late)
            if any(everyone):
                break
    if dist.get_rank() == 0:
        print(f"{done} calls in {time.monotonic() - start:.1f} s", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=60, help="stop after so long")
    parser.add_argument("--rows", type=int, default=70_000, help="of a rank, at most")
    options = parser.parse_args()
    faulthandler.dump_traceback_later(options.seconds + 60, exit=True)
    device = join()
    found = stress(
        shorts(options.rows, device, random.Random(5)), options.iterations, options.seconds, device
    )
    everyone: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, found)
    if dist.get_rank() == 0:
        lines = [f"WRONG on rank {r}: {each}" for r, said in enumerate(everyone) for each in said]
        print("\n".join([*lines, f"short rows: {len(lines)} problems"]), flush=True)
    dist.destroy_process_group()
    return int(any(everyone))


if __name__ == "__main__":
    sys.exit(main())
