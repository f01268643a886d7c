"""Targets of given slots and segments with places through the CUDA kernels on real GPUs; run by
torchrun.

``python -m torch.distributed.run --nproc-per-node N -m tests.cuda.dense_run FOLDER`` takes what
``python -m tests.cuda.dense_cases FOLDER`` has compiled, which may be another machine's, and exits
non-zero, after naming every mismatch, when something is wrong. More ranks than GPUs share them, in
turns. ``--quick`` is few calls of each case, for compute-sanitizer, which finds what ``--plant``
puts into the kernels of pieces; ``--stress N`` so many in any order, and it is wrong if there were
fewer; ``--face`` the same through `Shuffle`.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import torch
import torch.distributed as dist

from fuscoc_runtime import Shuffle, reference
from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.engine.node import pieces
from fuscoc_runtime.engine.node.state import Trouble
from fuscoc_runtime.kernels import cuda
from tests.cuda.checks import settle
from tests.cuda.dense_cases import CASES, GIVEN
from tests.cuda.dense_mistakes import MISTAKES, tables
from tests.cuda.dense_node import (
    FEW_SMS,
    SCHEDULES,
    Batch,
    Dense,
    in_bytes,
    ranks_of,
)
from tests.cuda.headers import headers
from tests.cuda.sanitizer_run import PIECE_FAULTS, plant
from tests.gpu_ranks import join

SEEDS = 3
DELAY_CYCLES = 200_000
LOOK_EVERY = 50


class Run:
    """The checks of one case; each returns what is wrong on this rank."""

    def __init__(
        self,
        folder: Path,
        name: str,
        device: torch.device,
        seeds: range,
        lends: bool = False,
    ) -> None:
        self.name, self.path, self.device = name, folder / name, device
        self.data = ranks_of(self.path, CASES[name].tokens, seeds)
        self.dense = Dense(self.path, self.data, device, lends=lends)
        self.batches = [self.dense.batch(each, seed) for seed, each in enumerate(self.data)]

    def lending(self) -> list[Run]:
        """The same calls of kernels that lend results, where they can."""
        other = copy(self)
        other.dense = Dense(self.path, self.data, self.device, lends=True)
        return [other] if getattr(other.dense.node, "results", None) is not None else []

    def quick(self) -> list[str]:
        """A call by all CTAs that it may have, and one by few."""
        wrong = []
        for schedule in (SCHEDULES[0], SCHEDULES[-1]):
            self.dense.node.configure(schedule)
            wrong += self.call(self.batches[0])
        return wrong

    def calls(self) -> list[str]:
        """Several calls in a row of every schedule, each verified."""
        wrong = []
        for number, schedule in enumerate(SCHEDULES):
            self.dense.node.configure(schedule)
            for seed, batch in enumerate(self.batches):
                wrong += [f"{number} {seed}: {each}" for each in self.call(batch)]
        self.dense.node.configure(SCHEDULES[0])
        return wrong

    def call(self, batch: Batch) -> list[str]:
        dense, wrong = self.dense, []
        dense.wipe()
        torch.cuda.synchronize()
        dist.barrier()
        handle = dense.dispatch(batch)
        torch.cuda.synchronize()
        if count := int(dense.wrong_rows(batch, handle)):
            wrong.append(f"{count} of {int(batch.filled.sum())} rows")
        results = [dense.combine(batch, handle) for _ in range(2 * (batch.worked is not None))]
        counts = [int(dense.wrong_result(batch, each)) for each in results]
        wrong += [f"{count} elements of the result" for count in counts if count]
        if dense.troubles() != Trouble():
            wrong.append(str(dense.troubles()))
        return wrong

    def graph(self) -> list[str]:
        """One captured dispatch and combine, replayed on other rows and routes."""
        dense, wrong = self.dense, list[str]()
        static = dense.batch(self.data[0])  # its tensors change
        variants = [self.changed(seed) for seed in (11, 12, 13)]
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        result = None
        with torch.cuda.stream(stream):
            dense.dispatch(static)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            handle = dense.dispatch(static)
            if static.worked is not None:
                result = dense.combine(static, handle)
        for batch in variants:
            pairs = [(static.source, batch.source), (static.inputs, batch.inputs)]
            if batch.worked is not None and static.worked is not None:
                pairs.append((static.worked, batch.worked))
            for old, new in pairs:
                for name in old:
                    old[name].copy_(new[name])
            dense.wipe()
            torch.cuda.synchronize()
            dist.barrier()
            graph.replay()
            torch.cuda.synchronize()
            wrong += [f"{count} rows" for count in [int(dense.wrong_rows(batch, handle))] if count]
            if result is not None and (count := int(dense.wrong_result(batch, result))):
                wrong.append(f"{count} elements of the result")
        return wrong + ([str(dense.troubles())] if dense.troubles() != Trouble() else [])

    def changed(self, seed: int) -> Batch:
        """The first call with other rows and, where that leaves as many as a graph has captured,
        some more of its destinations dropped."""
        generator = torch.Generator().manual_seed(seed)
        declared = self.dense.shuffle.declared
        routes = [each.name for each in declared.inputs if each.role == "route"]
        if declared.target.kind == "packed":
            routes = []
        ranks = []
        for data in self.data[0]:
            source, inputs = dict(data.source), dict(data.inputs)
            for name, each in source.items():
                mixed = in_bytes(each)[torch.randperm(len(each), generator=generator)]
                source[name] = mixed.view(each.dtype).view(each.shape)
            for name in routes:
                dropped = torch.rand(inputs[name].shape, generator=generator) < 0.2
                inputs[name] = torch.where(dropped, -1, inputs[name])
            ranks.append(replace(data, source=source, inputs=inputs))
        return self.dense.batch(ranks, seed)

    def face(self) -> list[str]:
        """The same calls through `Shuffle`, and once more where results are lent."""
        with mock.patch.object(pieces, "LENT_BYTES", 0):
            return self._face(False) + self._face(True)

    def _face(self, lends: bool) -> list[str]:
        limits, wrong = self.dense.node.limits, []
        shuffle = Shuffle(
            self.path,
            device=self.device,
            max_sources=limits.max_sources + lends * self.dense.segments_of(self.data),
            capacity=limits.capacity,
            num_sms=FEW_SMS if lends else None,
        )
        if shuffle.backend != "cuda":
            return [f"its kernels are those of {shuffle.backend}"]
        for batch in self.batches:
            extents = {name: batch.extents[name] for name in shuffle.spec.declared.extents}
            rows, handle = shuffle.dispatch(**batch.source, **batch.inputs, **extents)
            fields = (rows,) if isinstance(rows, torch.Tensor) else tuple(rows.values())
            for found, wanted in zip(fields, batch.rows, strict=True):
                if not torch.equal(in_bytes(found)[batch.filled], wanted[batch.filled]):
                    wrong.append("rows differ")
            if batch.worked is not None:
                fields = shuffle.spec.declared.source_fields
                worked = {
                    each.name: batch.worked[each.name].view(-1, *each.shape) for each in fields
                }
                found = shuffle.combine(worked, handle)
                result = {fields[0].name: found} if len(fields) == 1 else found
                wrong += ["results differ"] * bool(self.dense.wrong_result(batch, result))
            shuffle.check()
        shuffle.close()
        return wrong

    def refusal(self, of_combine: bool = False) -> list[str]:
        """The last rank refuses a dispatch, or the combine alone: what others would get from it is
        NaN, no more."""
        dense, batch, last = self.dense, self.batches[0], dist.get_world_size() - 1
        if last == 0 or batch.worked is None:
            return []
        if not all(each.is_floating_point() for each in batch.worked.values()):
            return []
        before, wrong = dense.troubles(), []
        joins = dense.rank < last
        if joins or of_combine:
            handle = dense.dispatch(batch)
        if not joins and of_combine:
            dense.node.refuse_combine(handle)
        elif not joins:
            dense.node.refuse_dispatch()
        else:
            results = dense.combine(batch, handle)
            expected = reference.dispatch(dense.shuffle, self.data[0])
            fields = dense.shuffle.program.buffers["source"]
            values = [float("nan") if rank == last else 1.0 for rank in range(last + 1)]
            rows = [
                {
                    each.name: torch.full(
                        (len(rank.written), *each.shape), value, dtype=TORCH_DTYPES[each.dtype]
                    )
                    for each in fields
                }
                for rank, value in zip(expected, values, strict=True)
            ]
            wanted = reference.combine(dense.shuffle, self.data[0], rows)[dense.rank].fields
            torch.cuda.synchronize()
            kept = dict(batch.result)
            for name, result in results.items():
                lost = wanted[name].isnan().to(self.device)
                if not (in_bytes(result[lost]) == 0xFF).all() and not batch.allowed:
                    wrong.append("a part of the rank that refused is not lost")
                kept[name] = torch.where(lost, result, batch.result[name])
                if batch.allowed and not torch.equal(result.isnan(), lost):
                    wrong.append("other sums are NaN than those of the rank that refused")
            if not batch.allowed and int(dense.wrong_result(replace(batch, result=kept), results)):
                wrong.append("more is lost than what the rank that refused had")
        found = dense.errors(before)
        if found != ({} if dense.rank == last else {"RefusedCallError": 1}):
            wrong.append(f"a refusal was told as {found}")
        dist.barrier()
        return wrong


def stress(runs: list[Run], iterations: int, seconds: float) -> list[str]:
    """Any calls in any order, each of other bytes, with delays of single ranks; looked at now and
    then. Fewer of them than ``iterations``, because ``seconds`` are over, are wrong, too."""
    shared, own = random.Random(5), random.Random(80 + dist.get_rank())
    counts = torch.zeros(2, dtype=torch.int64, device=runs[0].device)
    start, done, lent = time.monotonic(), 0, 0
    while done < iterations:
        run = shared.choice(runs)
        dense = run.dense
        batch = dense.mixed(shared.choice(run.batches), shared.randrange(256))
        dense.node.configure(shared.choice(SCHEDULES))
        combines, late = shared.randint(0, 2), shared.random() < 0.4
        dense.wipe()
        if late:
            torch.cuda._sleep(own.randrange(1, DELAY_CYCLES))
        handle = dense.dispatch(batch)
        counts[0] += dense.wrong_rows(batch, handle)
        for _ in range(combines if batch.worked is not None else 0):
            if late:
                torch.cuda._sleep(own.randrange(1, DELAY_CYCLES))
            results = dense.combine(batch, handle)
            counts[1] += dense.wrong_result(batch, results)
            lent += dense.are_lent(results)
        done += 1
        if done % LOOK_EVERY == 0:
            stop = [bool(counts.any()) or time.monotonic() - start > seconds]
            everyone = [False] * dist.get_world_size()
            dist.all_gather_object(everyone, stop[0])
            if any(everyone):
                break
    if dist.get_rank() == 0:
        took = f"{time.monotonic() - start:.1f} s"
        print(f"stress: {done} calls in {took}, {lent} results lent", flush=True)
    wrong = [f"{counts.tolist()} rows and elements"] if counts.any() else []
    wrong += [f"only {done} of {iterations} calls"] if done < iterations else []
    troubled = [run for run in runs if run.dense.troubles() != Trouble()]
    return wrong + [f"{run.name}: {run.dense.troubles()}" for run in troubled]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--quick", action="store_true", help="few calls of each case")
    parser.add_argument("--plant", choices=PIECE_FAULTS, help="into the headers of quick calls")
    parser.add_argument("--stress", type=int, default=0, help="calls in any order, and no others")
    parser.add_argument("--face", action="store_true", help="calls of `Shuffle`, of given slots")
    parser.add_argument("--lends", action="store_true", help="results are lent, of pieces")
    parser.add_argument("--seconds", type=float, default=200, help="the stress may take so long")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="batches of each case")
    parser.add_argument(
        "--constant", nargs=2, action="append", dest="constants", metavar=("NAME", "VALUE"),
        help="of the headers",
    )  # fmt: skip
    options = parser.parse_args()
    others = TemporaryDirectory()
    if options.constants:
        texts = headers({name: int(value) for name, value in options.constants})
        for name, text in texts.items():
            Path(others.name, name).write_text(text)
        cuda.INCLUDE = Path(others.name)
    if options.plant:
        cuda.INCLUDE = plant(PIECE_FAULTS[options.plant], Path(others.name))
    names = [name for name in options.cases if not options.face or name in GIVEN]
    device = join()
    failed = False

    def check(what: str, found: Callable[[], list[str]]) -> None:
        nonlocal failed
        started = time.monotonic()
        failed = settle(found(), what) or failed
        if dist.get_rank() == 0:
            print(f"{what}: {time.monotonic() - started:.1f} s", flush=True)

    seeds = range(1 if options.quick or options.plant else options.seeds)
    if options.plant:  # results are not looked at
        try:
            for name in names:
                Run(options.folder, name, device, seeds).quick()
        except RuntimeError as error:  # the tool ends a kernel that reads where it must not
            print(error, flush=True)
            os._exit(0)  # whatever still uses the GPU would only abort
    elif options.stress:
        runs = [Run(options.folder, name, device, seeds) for name in names]
        runs += [each for run in runs for each in run.lending()]
        check("stress", lambda: stress(runs, options.stress, options.seconds))
    else:
        for name in names:
            run = Run(options.folder, name, device, seeds, options.lends)
            if options.lends and getattr(run.dense.node, "results", None) is None:
                if options.quick:
                    check(name, lambda: ["no results are lent"])
                continue
            if options.quick:
                check(name + " lent" * options.lends, run.quick)
                continue
            for part in (run.face,) if options.face else (run.calls, run.graph, run.refusal):
                check(f"{name} {part.__name__}", part)
        if not options.quick and not options.face and not options.lends:
            for what, found in MISTAKES.items():
                check(what, lambda found=found: found(options.folder, device))
            if dist.get_world_size() > 1:  # one rank's table differs from no other
                check("tables that differ", lambda: tables(options.folder, device))
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks: {'FAILED' if failed else 'all hold'}", flush=True)
    dist.destroy_process_group()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
