"""Slots that the relation gives, through the Triton kernels of one node on real GPUs.

``python -m torch.distributed.run --nproc-per-node N -m tests.node_triton.given_gpu_run ARTIFACT…``
takes artifacts of ``given_specs.EXAMPLES``, in folders of their names, and exits non-zero, after
naming every mismatch, when something is wrong. ``--stress N`` is so many calls of each in a row.
Where slots follow from pieces, all of it is once more on few SMs, where results are lent.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from fuscoc_runtime import Shuffle
from fuscoc_runtime.demo.verify import (
    MismatchError,
    check_result,
    check_rows,
    expect,
    tolerance,
    work_on,
)
from fuscoc_runtime.engine.node import pieces
from fuscoc_runtime.reference import RankData, RankResult, RankRows
from tests.gpu_ranks import join
from tests.node_triton.given_specs import EXAMPLES, Small
from tests.node_triton.rank_work import batch

ITERATIONS = 200
PER_BATCH = 100  # of these, and three batches at least
DELAY_CYCLES = 200_000
FEW_SMS, ROOM = 16, 400
"""On which results are lent, and segments and slots that there is room for then: for any source."""


class Case:
    """A batch on the device, turned so many times, and what this rank must hold of it."""

    def __init__(self, shuffle: Shuffle, sizes: Sequence[int], seed: int, turns: int = 0) -> None:
        spec, rank = shuffle.spec, shuffle.rank
        ranks = [turned(data, turns) for data in batch(spec, sizes, seed)]
        expected = expect(spec, ranks)
        data: RankData = ranks[rank]
        tensors = {**data.source, **data.inputs}
        self.given: dict[str, Any] = {k: each.to(shuffle.device) for k, each in tensors.items()}
        self.given |= data.extents
        self.rows: RankRows = expected.rows[rank]
        self.written = self.rows.written.to(shuffle.device)
        self.result: RankResult | None = expected.results and expected.results[rank]
        slots = len(self.rows.written)
        worked = work_on(spec, self.rows.fields, self.rows.written, torch.zeros(slots).long())
        self.worked = {name: each.to(shuffle.device) for name, each in worked.items()}

    def check(self, shuffle: Shuffle, given: Any, handle: Any, result: Any) -> list[str]:
        """What is wrong."""
        try:
            check_rows(self.rows, by_field(shuffle, given), handle)
            if self.result is not None:
                check_result(self.result, by_field(shuffle, result))
        except MismatchError as error:
            return [str(error)]
        return []


def turned(data: RankData, turns: int) -> RankData:
    """Other data and another routing of the same shapes and extents: every outermost entry has the
    inputs of one before it, so no slot is named twice."""
    source = {name: each.roll(turns) for name, each in data.source.items()}
    inputs = {name: each.roll(turns, 0) for name, each in data.inputs.items()}
    return RankData(source, inputs, data.extents)


def by_field(shuffle: Shuffle, given: Tensor | Mapping[str, Tensor]) -> dict[str, Tensor]:
    if isinstance(given, Mapping):
        return dict(given)
    return {shuffle.spec.declared.fields[0].name: given}


def both(shuffle: Shuffle, case: Case) -> tuple[Any, Any, Any]:
    rows, handle = shuffle.dispatch(**case.given)
    combines = case.result is not None
    return rows, handle, shuffle.combine(case.worked, handle) if combines else None


def stress(shuffle: Shuffle, cases: Sequence[Case], iterations: int) -> list[str]:
    """Back to back, with delays; all is looked at on the device, and at the end. Where results are
    lent, ranks keep some, so that others are staged."""
    shared, own = random.Random(3), random.Random(70 + shuffle.rank)
    off = torch.zeros((), dtype=torch.int64, device=shuffle.device)
    kept, lent = list[Any](), 0
    started = time.monotonic()
    for _ in range(iterations):
        case = shared.choice(cases)
        if shared.random() < 0.4:
            torch.cuda._sleep(own.randrange(1, DELAY_CYCLES))
        rows, handle, result = both(shuffle, case)
        off += (handle.launched.filled != case.written).sum()
        for name, each in by_field(shuffle, rows).items():
            wanted = case.rows.fields[name].to(off.device)[case.written]
            off += (each[case.written] != wanted).sum()
        if result is not None and case.result is not None:
            for name, each in by_field(shuffle, result).items():
                off += differing(case.result, name, each)
                lent += lies_where_peers_store(shuffle, each)
            if shuffle.engine.results is not None and own.random() < 0.3:
                kept.append((case, result))
        while len(kept) > own.randrange(4):
            held, result = kept.pop(own.randrange(len(kept)))
            for name, each in by_field(shuffle, result).items():
                off += differing(held.result, name, each)
    differ = int(off)
    if shuffle.rank == 0:
        done = f"{iterations} calls of {len(cases)} batches, {lent} results lent"
        print(f"{shuffle.spec.name}: {done} in {time.monotonic() - started:.1f} s", flush=True)
    wrong = [f"stress: {differ} elements differ"] if differ else []
    if shuffle.engine.results is not None and not 0 < lent < iterations:
        wrong.append(f"stress: {lent} of {iterations} results were lent")
    return wrong


def lies_where_peers_store(shuffle: Shuffle, result: Tensor) -> bool:
    """Whether all ranks store into a result, if none of them keeps its own."""
    results = shuffle.engine.results
    return results is not None and results.offset(result) >= 0


def differing(expected: RankResult, name: str, found: Tensor) -> Tensor:
    """How many elements of a field are not what they must be: bits of a copy, or a sum."""
    wanted = expected.fields[name].to(found.device)
    if name not in expected.magnitude:
        return (found != wanted).sum()
    allowed = tolerance(found.dtype, expected.magnitude[name]).to(found.device)
    return (~((found.double() - wanted).abs() <= allowed)).sum()


def graph(shuffle: Shuffle, static: Case, cases: Sequence[Case]) -> list[str]:
    """A dispatch and a combine of ``static``, captured, and replayed on ``cases``, whose data have
    its shapes on every rank; kernels have run before."""
    captured = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.graph(captured, stream=stream, capture_error_mode="thread_local"):
        rows, handle, result = both(shuffle, static)
    wrong = []
    for case in cases:
        for into, new in ((static.given, case.given), (static.worked, case.worked)):
            for name, each in new.items():
                if isinstance(each, Tensor):
                    into[name].copy_(each)
        captured.replay()
        wrong += [f"graph: {each}" for each in case.check(shuffle, rows, handle, result)]
    shuffle.check()
    return wrong


def run(
    artifact: str,
    small: Small,
    captures: bool = True,
    iterations: int = ITERATIONS,
    lends: bool = False,
) -> list[str]:
    """What is wrong in so many ``iterations``; ``captures``: also in a CUDA graph; if it ``lends``
    results, with those that can be."""
    options = small.options
    if lends:
        room = {"max_sources": ROOM} | dict.fromkeys(options.keys() & {"capacity"}, ROOM)
        options = {**options, **room, "num_sms": FEW_SMS}
    with mock.patch.object(pieces, "LENT_BYTES", 0):  # which matters on few SMs alone
        shuffle = Shuffle(artifact, **options)
    assert shuffle.backend == "triton"
    if lends and shuffle.engine.results is None:
        shuffle.close()
        return []
    num_ranks = shuffle.topology.num_ranks
    batches = [sizes[:num_ranks] for sizes in small.batches]
    cases = [Case(shuffle, sizes, 3 + n) for n, sizes in enumerate(batches)]
    wrong = []
    for case in cases:
        wrong += case.check(shuffle, *both(shuffle, case))
    others = range(len(cases), iterations // PER_BATCH)
    more = [Case(shuffle, batches[n % len(batches)], 3 + n) for n in others]
    wrong += stress(shuffle, [*cases, *more], iterations)
    shuffle.check()
    if not captures:
        return wrong
    # All ranks replay as often, so what is alike is asked of all of them.
    alike = [case for case, sizes in zip(cases, batches, strict=True) if sizes == batches[0]]
    alike += [Case(shuffle, batches[0], 3, turns) for turns in (1, 2)]
    return wrong + graph(shuffle, Case(shuffle, batches[0], 3), alike)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("artifacts", nargs="+", type=Path)
    parser.add_argument("--stress", type=int, default=ITERATIONS, help="calls in a row of each")
    options = parser.parse_args()
    join()
    wrong: list[str] = []
    for artifact in options.artifacts:
        small = EXAMPLES[artifact.name]
        if small.least_ranks > dist.get_world_size():
            continue
        for lends in (False, True):
            found = run(str(artifact), small, iterations=options.stress, lends=lends)
            wrong += [f"{artifact.name}{' lent' * lends}: {each}" for each in found]
    everyone: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, wrong)
    if dist.get_rank() == 0:
        for rank, lines in enumerate(everyone):
            print("".join(f"WRONG on rank {rank}: {line}\n" for line in lines[:6]), end="")
        print(f"{len(everyone)} ranks: {'FAILED' if any(everyone) else 'all hold'}", flush=True)
    dist.destroy_process_group()
    return int(any(everyone))


if __name__ == "__main__":
    sys.exit(main())
