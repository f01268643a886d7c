"""Every example with and without ``max_sources``, on GPUs of one node; run by torchrun.

``python -m tests.examples.gpu_run --compile FOLDER`` compiles them with small sizes and needs no
GPU; ``python -m torch.distributed.run --nproc-per-node N -m tests.examples.gpu_run FOLDER`` runs
them, prints a line for each and exits non-zero, after naming every mismatch, when something is
wrong. With ``max_sources`` calls are compared with the reference, then made behind a GPU that is
asleep, which they must not wait for, and captured in a graph that is replayed on other data.
Without, the waits of a dispatch and of a combine are counted.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from fuscoc_runtime import Shuffle
from fuscoc_runtime.comm.group import join
from fuscoc_runtime.demo import rank as demo
from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.demo.verify import (
    MismatchError,
    by_slot,
    check_memory,
    check_result,
    check_rows,
    slot_keys,
    work_on,
)
from fuscoc_runtime.engine.node.engine import NodeEngine
from fuscoc_runtime.engine.node.exact_engine import ExactEngine
from fuscoc_runtime.engine.node.report import Report
from fuscoc_runtime.reference import RankData
from tests.node_triton.rank_work import filled_up

EXAMPLES = Path(__file__).parents[2] / "examples"
PAGES = {"layers": 3, "page": 2, "heads": 2, "width": 5}
EXPERTS = {"hidden": 256, "experts": 16, "topk": 4}
SMALL: Mapping[str, Mapping[str, int]] = {
    "all_gather": {"total": 40, "width": 24},
    "embedding": {"width": 16, "bag": 4},
    "fft_pencil": {"nx": 8, "ny": 10, "nz": 6},
    "fft_transpose": {"nx": 5, "ny": 8, "nz": 4},
    "halo": {"rows": 40, "width": 16},
    "hash_buckets": {"width": 4, "buckets": 8},
    "kv_cache": PAGES,
    "kv_pages": PAGES,
    "moe": EXPERTS,
    "moe_by_source": EXPERTS,
    "moe_compact": EXPERTS,
    "moe_f32": {},
    "moe_fp8": {**EXPERTS, "block": 128},
    "moe_replicated": {"hidden": 64, "experts": 5, "topk": 2, "reps": 2, "slots": 10},
    "ragged_text": {"width": 6, "buckets": 8},
    "redistribute": {"rows": 16, "columns": 7},
    "reshard": {"rows": 7, "columns": 5, "high": 2, "wide": 2},
    "scatter_add": {"width": 6},
    "ulysses": {"tokens": 32, "heads": 8, "width": 6, "block": 4},
    "vit_patches": {"p": 2, "c": 3},
    "vit_patches_nchw": {"p": 2, "c": 3},
    "vit_patches_normalised": {"p": 2},
    "vit_unpack": {"p": 2, "c": 3, "rows": 3, "columns": 2},
}
"""Constants, so small that the reference takes no time."""
TOKENS = 12
FIXED = {"max_sources": 512, "capacity": 2048}
ASLEEP_CYCLES = 400_000_000
WAITS = "called a synchronizing CUDA operation"
FIRST, SEEDS = 3, range(5, 12)


def compile_one(name: str, folder: Path) -> str:
    import fuscoc

    return str(fuscoc.compile(EXAMPLES / f"{name}.fsc", folder / name, **SMALL[name]))


def compile_all(folder: Path) -> None:
    with ProcessPoolExecutor() as pool:
        list(pool.map(compile_one, SMALL, [folder] * len(SMALL)))


@dataclass
class Waits:
    """What a host has waited for, as torch, `Report` and events and streams say: torch says the
    line of Python."""

    by_torch: list[str] = field(default_factory=list)
    for_plan: int = 0
    for_events: int = 0

    @property
    def total(self) -> int:
        return len(self.by_torch) + self.for_plan + self.for_events

    def __str__(self) -> str:
        known = {"plan": self.for_plan, "events": self.for_events, **Counter(self.by_torch)}
        named = [f"{what} {times}" for what, times in known.items() if times]
        return f"{self.total} ({', '.join(named)})" if named else "0"


@contextmanager
def counted() -> Iterator[Waits]:
    """The waits of the host meanwhile."""
    waits, wait = Waits(), Report.wait
    events = {
        cls: cls.synchronize for cls in (torch.cuda.Event, torch.cuda.Stream)
    }  # of which torch's mode does not warn

    def for_plan(report: Report, epoch: int) -> Any:
        waits.for_plan += 1
        return wait(report, epoch)

    def for_event(each: Any) -> None:
        waits.for_events += 1
        events[type(each)](each)

    patches: list[Any] = [mock.patch.object(Report, "wait", for_plan)]
    patches += [mock.patch.object(cls, "synchronize", for_event) for cls in events]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        for patch in patches:
            patch.start()
        try:
            yield waits
        finally:
            for patch in patches:
                patch.stop()
            torch.cuda.set_sync_debug_mode("default")
    waits.by_torch = [
        f"{Path(each.filename).name}:{each.lineno}"
        for each in caught
        if WAITS in str(each.message)  # not that torch says once that it may overlook some
    ]


class Case:
    """Data of all ranks, this rank's on its device, and what it must hold of it."""

    def __init__(self, shuffle: Shuffle, seed: int, turns: int = 0) -> None:
        made = generate(shuffle.spec, shuffle.topology, TOKENS, seed)
        self.ranks = [turned(each, turns) for each in made] if turns else made
        mine, self.rows, self.result, self.memory = demo._expected(shuffle, self.ranks)
        self.given = demo._dispatch_arguments(shuffle, mine)
        into = shuffle.spec.into
        named = () if into is None else (into.argument,)
        self._before = {
            name: [each.clone() for each in _tensors(self.given[name])] for name in named
        }
        self.weights = demo._weights(shuffle, mine)

    def restore(self) -> None:
        """Memory of the caller's, to which calls may add, as it was before any."""
        for name, before in self._before.items():
            for memory, each in zip(_tensors(self.given[name]), before, strict=True):
                memory.copy_(each)

    def shapes(self) -> list[Any]:
        """What a graph of the calls has of the data of every rank."""
        return [(each.extents, *map(_shapes, (each.source, each.inputs))) for each in self.ranks]


def turned(data: RankData, turns: int) -> RankData:
    """Other data and another routing of the same shapes: every outermost entry has the inputs of
    one before it, so no slot is named twice."""
    source = {name: each.roll(turns) for name, each in data.source.items()}
    inputs = {name: each.roll(turns, 0) for name, each in data.inputs.items()}
    return replace(data, source=source, inputs=inputs)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: each.shape for name, each in tensors.items()}


class Run:
    """One shuffle, opened with some options, and what is wrong with it."""

    def __init__(self, artifact: Path, name: str, **options: Any) -> None:
        self.shuffle = Shuffle(str(artifact), name, **options)
        self.device, self.wrong = self.shuffle.device, list[str]()
        self.is_fixed = isinstance(self.shuffle.engine, NodeEngine)

    def dispatch(self, case: Case) -> tuple[dict[str, Tensor], Any]:
        weights = case.weights if self.is_fixed else {}  # elsewhere they come with combine
        rows, handle = self.shuffle.dispatch(**case.given, **weights)
        return demo._by_field(self.shuffle.spec.declared.fields, rows), handle

    def worked(self, case: Case, rows: Mapping[str, Tensor], handle: Any) -> dict[str, Tensor]:
        """What combine takes: for all slots that there is room for."""
        num_slots = len(case.rows.written)
        held = {name: each[:num_slots] for name, each in by_slot(rows, handle).items()}
        if case.memory is not None:
            held = {name: each.to(self.device) for name, each in case.rows.fields.items()}
        worked = work_on(self.shuffle.spec, held, case.rows.written, slot_keys(case.rows))
        return filled_up(worked, handle.num_slots)

    def combine(self, case: Case, worked: Mapping[str, Tensor], handle: Any) -> dict[str, Tensor]:
        fields = self.shuffle.spec.back.declared.fields
        weights = {} if self.is_fixed else case.weights
        return demo._by_field(fields, self.shuffle.combine(worked, handle, **weights))

    def check(self, what: str, check: Callable[[], None]) -> None:
        try:
            check()
        except MismatchError as error:
            self.wrong.append(f"{what}: {error}")

    def check_rows(self, case: Case, what: str, rows: Mapping[str, Tensor], handle: Any) -> None:
        if case.memory is not None:
            memory = case.memory
            self.check(what, lambda: check_memory(memory, rows))
        else:
            num_rows = len(case.rows.written)
            if self.shuffle.spec.program.is_compact:
                num_rows = case.rows.num_rows
            used = {name: each[:num_rows] for name, each in rows.items()}
            self.check(what, lambda: check_rows(case.rows, used, handle))

    def check_result(self, case: Case, what: str, result: dict[str, Tensor] | None) -> None:
        expected = case.result
        if expected is not None and result is not None:
            self.check(what, lambda: check_result(expected, result))

    def verified(self, case: Case, what: str) -> tuple[Any, dict[str, Tensor]]:
        """A dispatch and a combine, compared with the reference: the handle, what combine takes."""
        case.restore()
        rows, handle = self.dispatch(case)
        self.check_rows(case, f"rows {what}", rows, handle)
        if case.result is None:
            return handle, {}
        worked = self.worked(case, rows, handle)
        self.check_result(case, f"result {what}", self.combine(case, worked, handle))
        return handle, worked

    def again(self, case: Case) -> Case:
        """Data of the same shapes on all ranks."""
        others = (Case(self.shuffle, seed) for seed in SEEDS)
        alike = (each for each in others if each.shapes() == case.shapes())
        return next(alike, None) or Case(self.shuffle, FIRST, turns=1)


def fixed(run: Run) -> str:
    """Nothing waits, and a graph of the calls is replayed on other data; unless the shuffle is one
    of those that have no such kernels, which the decisions list."""
    case = Case(run.shuffle, FIRST)
    _, worked = run.verified(case, "first")
    run.verified(case, "second")
    if not run.is_fixed:
        return "no kernels of fixed capacity"
    case.restore()
    torch.cuda.synchronize()
    with counted() as waits:
        torch.cuda._sleep(ASLEEP_CYCLES)  # type: ignore[no-untyped-call]
        asleep: Any = torch.cuda.current_stream().record_event()
        rows, handle = run.dispatch(case)
        result = run.combine(case, worked, handle) if case.result is not None else None
        was_late = asleep.query()
    if was_late or waits.total:
        run.wrong.append(f"the host has waited: {waits}, the GPU was asleep: {not was_late}")
    run.check_rows(case, "rows behind a GPU asleep", rows, handle)
    run.check_result(case, "result behind it", result)
    other, static = run.again(case), Case(run.shuffle, FIRST)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        rows, handle = run.dispatch(static)
        result = run.combine(static, worked, handle) if case.result is not None else None
    for each in (other, case, other):
        _, work = run.verified(each, "for a replay")
        each.restore()
        with torch.no_grad():
            _copy(static.given, each.given)
            _copy(static.weights, each.weights)
            _copy(worked, work)
        graph.replay()
        torch.cuda.synchronize()
        run.check_rows(each, "rows of a replay", rows, handle)
        run.check_result(each, "result of a replay", result)
    return f"{run.shuffle.backend}, waits {waits.total}, graph"


def _copy(into: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for name, each in new.items():
        for to, of in zip(_tensors(into[name]), _tensors(each), strict=True):
            to.copy_(of)


def _tensors(given: Any) -> list[Tensor]:
    if isinstance(given, Mapping):
        return [each for value in given.values() for each in _tensors(value)]
    return [given] if isinstance(given, Tensor) else []


def exact(run: Run) -> str:
    """Verified; and how often a host waits in each call."""
    for seed in (3, 4):
        case = Case(run.shuffle, seed)
        _, worked = run.verified(case, f"of exact sizes {seed}")
    torch.cuda.synchronize()
    with counted() as there:
        _, handle = run.dispatch(case)
    with counted() as back:
        if case.result is not None:
            run.combine(case, worked, handle)
    is_exact = isinstance(run.shuffle.engine, ExactEngine)  # others read counts as they come
    if there.total > 1 or back.total or (is_exact and there.for_plan != 1):
        run.wrong.append(f"the host has waited: {there} there, {back} back")
    kind = "the kernels of a node" if is_exact else "general engine"
    return f"{kind}, waits {there} there, {back} back"


def run_example(folder: Path, example: str) -> list[str]:
    """What is wrong, each with the shuffle's name; prints a line a shuffle."""
    from fuscoc_runtime.manifest.artifact import load_artifact

    wrong = []
    for shuffle in load_artifact(folder / example).manifest.shuffles:
        started, said = time.monotonic(), []
        for kind, options in ((fixed, FIXED), (exact, {})):
            try:
                run = Run(folder / example, shuffle.name, **options)
                said.append(kind(run))
                run.shuffle.check()
                run.shuffle.close()
                found = run.wrong
            except Exception as error:
                found = [f"{type(error).__name__}: {str(error)[:400]}"]
            wrong += [f"{shuffle.name}, {kind.__name__}: {each}" for each in found]
        if dist.get_rank() == 0:
            seconds = time.monotonic() - started
            print(f"{shuffle.name}: {'; '.join(said)} ({seconds:.1f} s)", flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--examples", nargs="+", default=sorted(SMALL), choices=sorted(SMALL))
    options = parser.parse_args()
    if options.compile:
        compile_all(options.folder)
        return 0
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    join(timeout=60)
    wrong = [each for name in options.examples for each in run_example(options.folder, name)]
    everyone: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, wrong)
    if dist.get_rank() == 0:
        for rank, lines in enumerate(everyone):
            print("".join(f"WRONG on rank {rank}: {line}\n" for line in lines[:20]), end="")
        print(f"{len(everyone)} ranks: {'FAILED' if any(everyone) else 'all hold'}", flush=True)
    dist.destroy_process_group()
    return int(any(everyone))


if __name__ == "__main__":
    sys.exit(main())
