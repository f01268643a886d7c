"""Exact sizes by the Triton kernels of one node, or of several, on real GPUs; run by torchrun.

``python -m torch.distributed.run --nproc-per-node N -m tests.node_exact.exact_gpu_run FOLDER``
takes what ``models.compile_all`` has written there and exits non-zero, after naming every mismatch,
when something is wrong. With ``--times`` it also prints what calls take, beside the general engine.
``--topology 2x1`` makes two nodes of two ranks; NCCL has the wire that its environment says.

Ranks may share a GPU.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from fuscoc_runtime import Shuffle
from fuscoc_runtime.comm import device_memory, windows
from fuscoc_runtime.demo.verify import (
    MismatchError,
    by_slot,
    check_result,
    check_rows,
    expect,
    slot_keys,
    work_on,
)
from fuscoc_runtime.engine.node.exact_engine import ExactEngine
from fuscoc_runtime.engine.process import ProcessEngine
from fuscoc_runtime.errors import PreparationError
from fuscoc_runtime.face import open as opening
from fuscoc_runtime.face.choice import exact_kernels
from fuscoc_runtime.manifest.artifact import load_artifact
from fuscoc_runtime.topology import Topology
from tests.gpu_ranks import device_of, join
from tests.node_exact.rank_work import on_the_device
from tests.node_triton.rank_work import batch, by_field, said_by

SIZES = (5, 0, 12, 1, 40, 3)
"""Outermost extents in a row: they grow and shrink."""
ITERATIONS, MOST, REPEATS = 300, 400, 21
TIMED = {"moe": (4096, 128), "moe_compact": (4096, 128), "hash_buckets": (262144, 4096)}
"""Source segments of a rank."""
RANK, NUM_RANKS = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--topology", type=Topology.parse, default=Topology(1, NUM_RANKS))
parser.add_argument("--times", action="store_true")
OPTIONS = parser.parse_args()
TOPOLOGY = OPTIONS.topology
DEVICE = device_of(TOPOLOGY, RANK)


def open_exact(artifact: Path) -> Shuffle:
    """By the kernels of one node, also where the choice would be another."""
    with on_the_device():
        shuffle = Shuffle(artifact, topology=TOPOLOGY, device=DEVICE)
    assert isinstance(shuffle.engine, ExactEngine)
    return shuffle


def to_host(handle: Any) -> Any:
    names = ("keys", "key_counts", "key_offsets", "row_index")
    parts = {name: getattr(handle, name) for name in names}
    held = {name: part if part is None else part.cpu() for name, part in parts.items()}
    return SimpleNamespace(**held, num_slots=handle.num_slots)


class Verified:
    """Random calls of one shuffle, compared with the reference bit by bit."""

    def __init__(self, artifact: Path, wrong: list[str]) -> None:
        self.name, self.shuffle, self.wrong = artifact.name, open_exact(artifact), wrong
        combine = self.shuffle.spec.declared.combine
        weighted = combine is not None and combine.weight is not None
        self.weight = combine.weight.input if weighted and combine is not None else None

    def run(self) -> None:
        is_static = self.shuffle.spec.program.is_static
        kept = []
        for number, size in enumerate(SIZES):
            sizes = [1 if is_static else (size * (rank + 1)) % 41 for rank in range(NUM_RANKS)]
            kept.append(self._call(sizes, number))
        for number in (4, 0, 2):  # windows have grown since, and hold others' rows
            self._combine(*kept[number], f"later {number}")
        self.shuffle.check()
        self.shuffle.close()

    def _call(self, sizes: list[int], seed: int) -> tuple[Any, ...]:
        spec = self.shuffle.spec
        ranks = batch(spec, sizes, seed)
        data, expected = ranks[RANK], expect(spec, list(ranks), RANK)
        inputs = {name: each.to(DEVICE) for name, each in data.inputs.items()}
        weights = {}
        if self.weight is not None and seed % 2:  # with combine instead
            weights = {self.weight: inputs.pop(self.weight)}
        source = {name: each.to(DEVICE) for name, each in data.source.items()}
        rows, handle = self.shuffle.dispatch(**source, **inputs, **data.extents)
        own, first = expected.rows[RANK], spec.declared.fields[0].name
        fields = {name: each.cpu() for name, each in by_field(rows, first).items()}
        on_host = to_host(handle)
        self._compare(lambda: check_rows(own, fields, on_host), f"rows of {sizes}")
        outputs = {}
        if expected.results is not None:
            worked = work_on(spec, by_slot(fields, on_host), own.written, slot_keys(own))
            outputs = {name: each.to(DEVICE) for name, each in worked.items()}
            self._combine(handle, outputs, weights, expected, f"sums of {sizes}")
        return handle, outputs, weights, expected

    def _combine(
        self, handle: Any, outputs: dict[str, Any], weights: Any, expected: Any, what: str
    ) -> None:
        if expected.results is not None:
            given = next(iter(outputs.values())) if len(outputs) == 1 else outputs
            result = by_field(self.shuffle.combine(given, handle, **weights), next(iter(outputs)))
            found = {name: each.cpu() for name, each in result.items()}
            self._compare(lambda: check_result(expected.results[RANK], found), what)

    def _compare(self, check: Callable[[], None], what: str) -> None:
        try:
            check()
        except MismatchError as error:
            self.wrong.append(f"{self.name}, {what}: {error}")


def waits(artifact: Path, wrong: list[str]) -> None:
    """One wait a dispatch that plans, none in any other call; no call synchronises by torch."""
    shuffle = open_exact(artifact)
    x = torch.rand(64, 24, device=DEVICE)
    idx = torch.randint(12, (64, 3), device=DEVICE)
    weights = torch.rand(64, 3, device=DEVICE)
    for _ in range(2):
        rows, handle = shuffle.dispatch(x, idx=idx)
        shuffle.combine(rows, handle, weights=weights)
    report = shuffle.engine.node.report
    waited, wait = [0], report.wait

    def counted(epoch: int) -> Any:
        waited[0] += 1
        return wait(epoch)

    report.wait = counted
    torch.cuda.set_sync_debug_mode("error")
    try:
        rows, handle = shuffle.dispatch(x, idx=idx)
        held = rows.clone()
        torch.cuda._sleep(200_000_000)
        asleep = torch.cuda.Event()
        asleep.record()
        result = shuffle.combine(held, handle, weights=weights)
        rows, again = shuffle.dispatch(x + 1, handle=handle)
        other = shuffle.combine(rows, again, weights=weights)
        if asleep.query():
            wrong.append("waits: calls along a known routing have waited")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    if waited[0] != 1:
        wrong.append(f"waits: {waited[0]} in a dispatch that plans and calls along its routing")
    total = weights.sum(1, keepdim=True)
    for found, wanted in ((result, x * total), (other, (x + 1) * total)):
        if not torch.allclose(found, wanted, rtol=1e-4, atol=1e-5):
            wrong.append("waits: sums are off")
    shuffle.check()
    shuffle.close()


def captures(artifact: Path, wrong: list[str]) -> None:
    """Calls of exact sizes are refused while a graph is being captured; others are whole."""
    shuffle = open_exact(artifact)
    x, idx = torch.rand(8, 24, device=DEVICE), torch.randint(12, (8, 3), device=DEVICE)
    weights = torch.rand(8, 3, device=DEVICE)
    rows, handle = shuffle.dispatch(x, idx=idx)
    held = rows.clone()
    calls = (
        partial(shuffle.dispatch, x, idx=idx),
        partial(shuffle.dispatch, x, handle=handle),
        partial(shuffle.combine, held, handle, weights=weights),
    )
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        x.add_(0)
        said = [said_by(call) for call in calls]
    wrong += [f"captures: {each}" for each in said if "CUDA graph" not in each]
    result = shuffle.combine(held, handle, weights=weights)
    if int(_off(result, x * weights.sum(1, keepdim=True))):
        wrong.append("captures: sums are off")
    shuffle.check()
    shuffle.close()


def scarce(artifact: Path, wrong: list[str]) -> None:
    """The last rank's GPU has no memory for a larger window: all ranks say so, and go on."""
    shuffle = open_exact(artifact)
    x, idx = torch.rand(8, 24, device=DEVICE), torch.randint(12, (8, 3), device=DEVICE)
    weights = torch.rand(8, 3, device=DEVICE)
    shuffle.dispatch(x, idx=idx)
    allocator = device_memory if NUM_RANKS > 1 else windows
    name = "_SymmetricMemory" if NUM_RANKS > 1 else "private_window"
    real = getattr(allocator, name)

    def none(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    large = x.repeat(64, 1), idx.repeat(64, 1)
    most = shuffle.memory().window_bytes

    def empty(size: tuple[int], *rest: Any) -> Any:
        return none() if size[0] > most else real.empty_strided_p2p(size, *rest)

    def private(nbytes: int, *rest: Any) -> Any:
        try:
            return none() if nbytes > most else real(nbytes, *rest)
        except torch.OutOfMemoryError as error:  # as it says this itself
            raise PreparationError(RANK, str(error)) from error

    if RANK == NUM_RANKS - 1:
        replaced = SimpleNamespace(empty_strided_p2p=empty) if NUM_RANKS > 1 else private
        setattr(allocator, name, replaced)
    try:
        said = said_by(lambda: shuffle.dispatch(large[0], idx=large[1]))
    finally:
        setattr(allocator, name, real)
    if "no memory" not in said or f"rank {NUM_RANKS - 1}" not in said:
        wrong.append(f"scarce: {said}")
    for given in ((x, idx, weights), (*large, weights.repeat(64, 1))):
        rows, handle = shuffle.dispatch(given[0], idx=given[1])
        result = shuffle.combine(rows, handle, weights=given[2])
        if int(_off(result, given[0] * given[2].sum(1, keepdim=True))):
            wrong.append("scarce: sums are off")
    shuffle.check()
    shuffle.close()


def stress(artifact: Path, wrong: list[str]) -> None:
    """Back to back: other routings, sizes, delays, handles of any age, gradients now and then."""
    shuffle, shared, own = open_exact(artifact), random.Random(3), random.Random(70 + RANK)
    off = torch.zeros((), dtype=torch.int64, device=DEVICE)
    held: list[tuple[Any, ...]] = []

    def summed(x: Any, idx: Any, weights: Any) -> Any:
        return x * (weights * (idx >= 0)).sum(1, keepdim=True)

    def by_slots(rows: Any, handle: Any) -> Any:
        index = handle.row_index
        return rows if index is None else rows[index.clamp(min=0)]

    for _ in range(ITERATIONS):
        tokens = [shared.randint(0, MOST) for _ in range(NUM_RANKS)][RANK]
        x = torch.rand(tokens, 24, device=DEVICE)
        idx = torch.randint(-1, 12, (tokens, 3), device=DEVICE)
        weights = torch.rand(tokens, 3, device=DEVICE)
        if shared.random() < 0.4:
            torch.cuda._sleep(own.randrange(1, 200_000))
        grads = shared.random() < 0.1
        x.requires_grad_(grads)
        weights.requires_grad_(grads)
        early = {"weights": weights} if shared.random() < 0.5 else {}
        late = {} if early else {"weights": weights}
        rows, handle = shuffle.dispatch(x, idx=idx, **early)
        result = shuffle.combine(by_slots(rows, handle), handle, **late)
        off += _off(result, summed(x, idx, weights))
        if grads:
            leaves = [x, weights]
            found = torch.autograd.grad(result.square().sum(), leaves)
            wanted = torch.autograd.grad(summed(x, idx, weights).square().sum(), leaves)
            off += sum(_off(*each) for each in zip(found, wanted, strict=True))
            continue
        held.append((x, idx, weights, handle))
        x, idx, weights, handle = held[shared.randrange(len(held))]
        rows, again = shuffle.dispatch(x + 1, handle=handle)
        result = shuffle.combine(by_slots(rows, again), again, weights=weights)
        off += _off(result, summed(x + 1, idx, weights))
        held = held[-20:]
    shuffle.check()
    if int(off):
        wrong.append(f"stress of {artifact.name}: {int(off)} elements differ")
    shuffle.close()


def _off(found: Any, wanted: Any) -> Any:
    return (~((found - wanted).abs() <= 1e-4 * wanted.abs() + 1e-4)).sum()


def mistakes(artifact: Path, wrong: list[str]) -> None:
    """One bad index on the last rank: all ranks raise it, nothing has moved, all goes on."""
    shuffle = open_exact(artifact)
    x, idx = torch.rand(8, 24, device=DEVICE), torch.randint(12, (8, 3), device=DEVICE)
    weights, bad = torch.rand(8, 3, device=DEVICE), idx.clone()
    rows, handle = shuffle.dispatch(x, idx=idx)
    before = rows.clone()
    if RANK == NUM_RANKS - 1:
        bad[3, 1] = 99
    said = said_by(lambda: shuffle.dispatch(x, idx=bad))
    if f"`idx[3, 1]` on rank {NUM_RANKS - 1} is 99" not in said:
        wrong.append(f"mistakes: {said}")
    if not torch.equal(rows, before):
        wrong.append("mistakes: rows have moved")
    result = shuffle.combine(rows, handle, weights=weights)
    if int(_off(result, x * weights.sum(1, keepdim=True))):
        wrong.append("mistakes: sums are off")
    shuffle.check()
    shuffle.close()


def given(name: str, tokens: int) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Source, routing and weights of a large example."""
    if name == "hash_buckets":
        x = torch.rand(tokens, 128, device=DEVICE)
        return x, {"ids": torch.randint(1 << 40, (tokens,), device=DEVICE)}, {}
    x = torch.randn(tokens, 7168, device=DEVICE, dtype=torch.bfloat16)
    idx = torch.rand(tokens, 256, device=DEVICE).topk(8).indices
    weights = torch.rand(tokens, 8, device=DEVICE)
    return x, {"topk_idx": idx}, {"topk_weights": weights}


def timed(folder: Path, wrong: list[str]) -> None:
    """Both engines on the same data, bit by bit, in turn: milliseconds, medians."""
    for name, sizes in TIMED.items():
        if isinstance(exact_kernels(load_artifact(folder / name).shuffle(None), TOPOLOGY), str):
            continue
        engines = {"exact": open_exact(folder / name)}
        with mock.patch.dict(os.environ, FUSCOC_ENGINE="general"):
            opened = Shuffle(folder / name, topology=TOPOLOGY, device=DEVICE)
        assert isinstance(opened.engine, ProcessEngine)
        engines["general"] = opened
        for tokens in sizes:
            x, routing, weights = given(name, tokens)
            found, times = {}, {}
            for kind, shuffle in engines.items():
                rows, handle = shuffle.dispatch(x, **routing)
                index = handle.row_index
                back = rows.clone() if index is None else rows[index.clamp(min=0)]
                valid = used(handle)
                found[kind] = (handle.key_offsets, handle.key_counts, index)
                found[kind] += (back[valid], shuffle.combine(back, handle, **weights))
                times[kind] = (shuffle, handle, back)
            for one, other in zip(*found.values(), strict=True):
                if one is not None and not torch.equal(one, other):
                    wrong.append(f"{name} {tokens}: the engines differ")
            del found
            measured: dict[str, list[list[float]]] = {kind: [] for kind in engines}
            for _ in range(REPEATS):
                for kind, (shuffle, handle, back) in times.items():
                    calls = (
                        partial(shuffle.dispatch, x, **routing),
                        partial(shuffle.dispatch, x, handle=handle),
                        partial(shuffle.combine, back, handle, **weights),
                    )
                    measured[kind].append([clocked(call) for call in calls])
            if RANK == 0:
                for kind, samples in measured.items():
                    medians = [statistics.median(each) for each in zip(*samples, strict=True)]
                    each = ", ".join(f"{value:.3f}" for value in medians)
                    print(
                        f"{name} {tokens} {kind}: dispatch, again, combine: {each} ms", flush=True
                    )
        for shuffle in engines.values():
            shuffle.close()


def used(handle: Any) -> Any:
    """Which slots are no padding."""
    counts, offsets = handle.key_counts, handle.key_offsets
    slots = torch.arange(handle.num_slots, device=DEVICE)
    key = torch.searchsorted(offsets[1:], slots, right=True)
    return slots < (offsets[:-1] + counts)[key.clamp(max=len(counts) - 1)]


def clocked(call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) * 1e3


def main() -> int:
    join(TOPOLOGY, is_one_host=True)
    wrong: list[str] = []
    small = OPTIONS.folder / "small"
    chosen = opening.choose_exact
    for artifact in sorted(small.iterdir()):
        reason = exact_kernels(load_artifact(artifact).shuffle(None), TOPOLOGY)
        if TOPOLOGY.num_nodes > 1 and isinstance(reason, str):
            continue
        Verified(artifact, wrong).run()
    assert opening.choose_exact is chosen
    plain = Shuffle(small / "expanded", topology=TOPOLOGY, device=DEVICE)
    if not isinstance(plain.engine, ExactEngine):
        reason = exact_kernels(plain.spec, plain.topology)
        wrong.append(f"what is opened by default is the general engine: {reason}")
    plain.close()
    for name in ("expanded", "compacted"):
        stress(small / name, wrong)
    waits(small / "expanded", wrong)
    mistakes(small / "expanded", wrong)
    captures(small / "expanded", wrong)
    if TOPOLOGY.num_nodes == 1:
        scarce(small / "expanded", wrong)
    if OPTIONS.times:
        timed(OPTIONS.folder / "large", wrong)
    everyone: list[list[str]] = [[] for _ in range(NUM_RANKS)]
    dist.all_gather_object(everyone, wrong)
    if RANK == 0:
        for rank, lines in enumerate(everyone):
            print("".join(f"WRONG on rank {rank}: {line}\n" for line in lines[:8]), end="")
        print(f"{TOPOLOGY}: {'FAILED' if any(everyone) else 'all hold'}", flush=True)
    dist.destroy_process_group()
    return int(any(everyone))


if __name__ == "__main__":
    sys.exit(main())
