"""``Shuffle`` over the CUDA kernels on real GPUs; run by torchrun, one process a GPU.

``python -m torch.distributed.run --nproc-per-node N -m tests.cuda.face_run MOE QUANTISED`` takes
the compiled model of that name, whose tokens may repeat an expert, and ``tests/cuda/quantised.fsc``
and exits non-zero, after naming every mismatch, when something is wrong.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.moe_cases import (
    Model,
    check_combine,
    check_rows,
    expected_rows,
    expert_outputs,
    gather_ragged,
    owners,
    routing,
)
from fuscoc_runtime import FuscoRuntimeError, Shuffle
from fuscoc_runtime.errors import (
    BackendError,
    HopTimeoutError,
    InputError,
    KeyRangeError,
    NoSlotError,
    OutdatedError,
    RefusedCallError,
)
from tests.gpu_ranks import join

MOST = 520
MOE = Model()
QUANTISED = Model(hidden=4096, experts=60, topk=4, placement="expert_to_rank", align=16)


class Faces:
    """The checks; each adds what is wrong to ``wrong``."""

    def __init__(self, moe: Path, quantised: Path) -> None:
        self.moe, self.quantised = moe, quantised
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.rank, self.num_ranks = dist.get_rank(), dist.get_world_size()
        self.random = torch.Generator(self.device).manual_seed(40 + self.rank)
        self.wrong: list[str] = []

    def batch(self, model: Model, kind: str, tokens: int) -> tuple[Any, Any, Any]:
        x = torch.randn(tokens, model.hidden, device=self.device, generator=self.random)
        weights = torch.rand(tokens, model.topk, device=self.device, generator=self.random)
        idx = routing(kind, tokens, model, self.num_ranks, self.random)
        return x.bfloat16(), idx, weights

    def note(self, what: str, problems: list[str]) -> None:
        self.wrong += [f"{what}: {problem}" for problem in problems]

    def raises(self, what: str, kind: type[FuscoRuntimeError], call: Callable[[], object]) -> None:
        try:
            call()
        except kind as error:
            if self.rank == 0:
                print(f"{what}: {error}", flush=True)
            return
        self.note(what, [f"raised no {kind.__name__}"])

    def check_moe(self, shuffle: Shuffle, kind: str, tokens: int, what: str) -> None:
        x, idx, weights = self.batch(MOE, kind, tokens)
        rows, handle = shuffle.dispatch(x, topk_idx=idx, topk_weights=weights)
        expected = expected_rows(
            gather_ragged(idx, None), owners(MOE, self.num_ranks, self.device), MOE.align, self.rank
        )
        used = rows[: int(handle.key_offsets[-1])]
        self.note(what, check_rows(handle, [used], [x], expected, None))
        if len(rows) != handle.num_slots:
            self.note(what, [f"{len(rows)} rows, {handle.num_slots} slots"])
        outputs = expert_outputs(rows, expected, MOE.experts)
        for _ in range(2):
            result = shuffle.combine(outputs, handle)
            self.note(what, check_combine(result, x, idx, weights, MOE.experts))
        shuffle.check()

    def routings_and_sizes(self) -> None:
        shuffle = Shuffle(self.moe, max_sources=MOST)
        capped = Shuffle(self.moe, max_sources=MOST, num_sms=16)
        without = Shuffle(self.moe)
        if (shuffle.backend, without.backend) != ("cuda", "triton"):
            self.note("backend", [shuffle.backend, without.backend])
        for kind in ("uniform", "single", "messy"):
            for tokens in (MOST, 1 + 100 * self.rank, 0):
                self.check_moe(shuffle, kind, tokens, f"{kind} {tokens}")
                self.check_moe(capped, kind, tokens, f"{kind} {tokens} 16 SMs")
        self.check_moe(without, "uniform", 77, "triton")

    def graph(self) -> None:
        """One captured dispatch and combine replayed on other data."""
        shuffle = Shuffle(self.moe, max_sources=MOST)
        x, idx, weights = self.batch(MOE, "uniform", 128)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            rows, handle = shuffle.dispatch(x, topk_idx=idx, topk_weights=weights)
            shuffle.combine(rows, handle)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            rows, handle = shuffle.dispatch(x, topk_idx=idx, topk_weights=weights)
            result = shuffle.combine(rows, handle)
        for kind in ("single", "messy", "uniform"):
            other = self.batch(MOE, kind, 128)
            for static, new in zip((x, idx, weights), other, strict=True):
                static.copy_(new)
            graph.replay()
            sums = weights * (idx >= 0)
            want = x.float() * sums.sum(1, keepdim=True)
            error = float((result.float() - want).norm() / want.norm())
            if not error < 1e-2:
                self.note(f"graph {kind}", [f"off by {error:.1e}"])
        shuffle.check()

    def table_and_fields(self) -> None:
        shuffle = Shuffle(self.quantised, max_sources=MOST)
        table = owners(QUANTISED, self.num_ranks, self.device)
        for tokens in (MOST, 3 + self.rank):
            x, idx, _ = self.batch(QUANTISED, "messy", tokens)
            fields = (
                x.to(torch.float8_e4m3fn),
                torch.rand(tokens, 32, device=self.device, generator=self.random),
                torch.arange(tokens, device=self.device),
            )
            rows, handle = shuffle.dispatch(*fields, topk_idx=idx, owner=table)
            expected = expected_rows(gather_ragged(idx, None), table, QUANTISED.align, self.rank)
            flat = [each.view(len(each), -1) for each in rows.values()]
            source = [each.view(tokens, -1) for each in fields]
            self.note(f"fields {tokens}", check_rows(handle, flat, source, expected, None))
            shuffle.check()
        self.raises("no max_sources", BackendError, lambda: Shuffle(self.quantised))

    def mistakes(self) -> None:
        """Of all ranks: told once, by check, and no later call is harmed."""
        shuffle = Shuffle(self.moe, max_sources=64)
        x, idx, weights = self.batch(MOE, "uniform", 64)
        bad = idx.clone()
        bad[0, 0], bad[1, 1] = MOE.experts, -2
        _, old = shuffle.dispatch(x, topk_idx=bad, topk_weights=weights)
        if int(old.dropped) != 2:
            self.note("bad keys", [f"{int(old.dropped)} points were dropped"])
        self.raises("bad keys", KeyRangeError, shuffle.check)
        shuffle.check()
        self.raises(
            "too many",
            InputError,
            lambda: shuffle.dispatch(x.repeat(2, 1), topk_idx=idx.repeat(2, 1)),
        )
        rows, handle = shuffle.dispatch(x, topk_idx=idx, topk_weights=weights)
        self.raises(
            "weights twice", InputError, lambda: shuffle.combine(rows, handle, topk_weights=weights)
        )
        shuffle.dispatch(x, topk_idx=idx, topk_weights=weights)
        self.raises("outdated", InputError, lambda: shuffle.combine(rows, old))
        self.check_moe(shuffle, "uniform", 64, "after mistakes")

        small = Shuffle(self.moe, max_sources=64, capacity=128)
        small.dispatch(x, topk_idx=torch.zeros_like(idx), topk_weights=weights)
        for _ in range(4):  # none of them says what the first one did
            small.dispatch(x, topk_idx=torch.full_like(idx, -1), topk_weights=weights)
            torch.cuda.synchronize()
        if self.rank == 0 or self.num_ranks > 1:
            self.raises("no room", NoSlotError, small.check)
        small.check()

    def refused(self) -> None:
        """An error of one rank: the others go on without its rows, and all are whole afterwards."""
        if self.num_ranks == 1:
            return
        shuffle = Shuffle(self.moe, max_sources=64)
        x, idx, weights = self.batch(MOE, "uniform", 64)
        if self.rank == 0:
            self.raises("unsent", InputError, lambda: shuffle.dispatch(x, topk_idx=idx[1:]))
        else:
            rows, handle = shuffle.dispatch(x, topk_idx=idx, topk_weights=weights)
            lost = shuffle.combine(rows, handle).isnan().any(1)
            if not torch.equal(lost, (idx // (MOE.experts // self.num_ranks) == 0).any(1)):
                self.note("refused", [f"{int(lost.sum())} sums are NaN"])
            self.raises("refused", RefusedCallError, shuffle.check)
        self.check_moe(shuffle, "uniform", 64, "after a refusal")

    def replays_and_handles(self) -> None:
        """A replay among eager calls leaves their handles alone, and takes the window's rows."""
        shuffle = Shuffle(self.moe, max_sources=64)
        x, idx, weights = self.batch(MOE, "uniform", 64)
        given = {"topk_idx": idx, "topk_weights": weights}
        for _ in range(2):
            shuffle.combine(*shuffle.dispatch(x, **given))
        graph = torch.cuda.CUDAGraph()
        other = self.batch(MOE, "single", 64)
        with torch.cuda.graph(graph):
            captured = shuffle.dispatch(other[0], topk_idx=other[1], topk_weights=other[2])
            result = shuffle.combine(*captured)
        rows, handle = shuffle.dispatch(x, **given)
        kept = rows.clone()
        graph.replay()
        self.note("kept rows", self.off(shuffle.combine(kept, handle), x, idx, weights))
        if not shuffle.combine(rows, handle).isnan().all():
            self.note("overwritten rows", ["plausible numbers"])
        self.raises("overwritten", OutdatedError, shuffle.check)
        self.note("replayed", self.off(result, *other))
        idx.fill_(-5)
        other[1].fill_(-5)  # a server that only replays learns of it so
        graph.replay()
        if int(captured[1].dropped) != idx.numel():
            self.note("replayed", [f"{int(captured[1].dropped)} points were dropped"])
        self.raises("replayed", KeyRangeError, shuffle.check)

    def off(self, result: Any, x: Any, idx: Any, weights: Any) -> list[str]:
        want = x.float() * (weights * (idx >= 0)).sum(1, keepdim=True)
        error = float((result.float() - want).norm() / want.norm())
        return [] if error < 1e-2 else [f"off by {error:.1e}"]

    def two_streams(self) -> None:
        """Two shuffles on two streams, on which ranks are late in turn, and by chance."""
        shuffles = [Shuffle(self.moe, max_sources=MOST) for _ in range(2)]
        streams = [torch.cuda.Stream() for _ in range(2)]
        x, idx, weights = self.batch(MOE, "uniform", MOST)
        torch.cuda.synchronize()
        results = []
        for turn in range(20):
            for which, (shuffle, stream) in enumerate(zip(shuffles, streams, strict=True)):
                with torch.cuda.stream(stream):
                    late = turn < 10 and which != self.rank % 2
                    cycles = torch.randint(2_000_000, ()).item() if turn >= 10 else 5_000_000 * late
                    torch.cuda._sleep(int(cycles))
                    rows, handle = shuffle.dispatch(x, topk_idx=idx, topk_weights=weights)
                    results.append(shuffle.combine(rows, handle))
        for shuffle in shuffles:
            shuffle.check()
        for result in results:
            self.note("two streams", self.off(result, x, idx, weights))

    def late(self) -> None:
        """By less than the timeout is no error; by more names the rank, and what waits ends."""
        if self.num_ranks == 1:
            return
        shuffle = Shuffle(self.moe, max_sources=64, timeout=30)
        if self.rank == 0:
            time.sleep(3)
        self.check_moe(shuffle, "uniform", 64, "a late rank")
        shuffle = Shuffle(self.moe, max_sources=64, timeout=1)
        x, idx, weights = self.batch(MOE, "uniform", 64)
        if self.rank > 0:
            rows, handle = shuffle.dispatch(x, topk_idx=idx, topk_weights=weights)
            result = shuffle.combine(rows, handle)
            self.raises("late", HopTimeoutError, shuffle.check)
            if not result.isnan().all():
                self.note("late", ["plausible numbers"])
            self.raises("lost", HopTimeoutError, lambda: shuffle.combine(rows, handle))
        dist.barrier()


def main() -> int:
    join()
    faces = Faces(Path(sys.argv[1]), Path(sys.argv[2]))
    checks = (
        faces.routings_and_sizes,
        faces.graph,
        faces.table_and_fields,
        faces.mistakes,
        faces.refused,
        faces.replays_and_handles,
        faces.two_streams,
        faces.late,
    )
    for check in checks:
        check()
    everyone: list[list[str]] = [[] for _ in range(faces.num_ranks)]
    dist.all_gather_object(everyone, faces.wrong)
    if faces.rank == 0:
        for rank, lines in enumerate(everyone):
            print("".join(f"WRONG on rank {rank}: {line}\n" for line in lines[:6]), end="")
        print(
            f"{faces.num_ranks} ranks: {'FAILED' if any(everyone) else 'the face holds'}",
            flush=True,
        )
    dist.destroy_process_group()
    return int(any(everyone))


if __name__ == "__main__":
    sys.exit(main())
