"""``Shuffle`` over the CUDA kernels on real GPUs; run by torchrun, one process a GPU.

``python -m torch.distributed.run --nproc-per-node N -m tests.cuda.face_run MOE QUANTISED`` takes
the compiled ``examples/moe.fsc`` and ``tests/cuda/quantised.fsc`` and exits non-zero, after naming
every mismatch, when something is wrong.
"""

from __future__ import annotations

import sys
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
from fuscoc_runtime.comm.group import join
from fuscoc_runtime.errors import (
    BackendError,
    HopTimeoutError,
    InputError,
    KeyRangeError,
    NoSlotError,
    RefusedCallError,
)

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
        shuffle = Shuffle(self.moe, max_sources=64)
        x, idx, weights = self.batch(MOE, "uniform", 64)
        bad = idx.clone()
        bad[0, 0], bad[1, 1] = MOE.experts, -2
        _, old = shuffle.dispatch(x, topk_idx=bad, topk_weights=weights)
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

        small = Shuffle(self.moe, max_sources=64, capacity=128)
        small.dispatch(x, topk_idx=torch.zeros_like(idx), topk_weights=weights)
        torch.cuda.synchronize()

        def calls() -> None:
            for _ in range(4):  # every rank notices at the same one, because each is waited for
                small.dispatch(x, topk_idx=torch.full_like(idx, -1), topk_weights=weights)
                torch.cuda.synchronize()

        self.raises("no room", NoSlotError, calls)

    def refused(self) -> None:
        """An error of one rank ends the others' wait long before the timeout."""
        if self.num_ranks == 1:
            return
        shuffle = Shuffle(self.moe, max_sources=64, timeout=100)
        x, idx, weights = self.batch(MOE, "uniform", 64)
        if self.rank == 0:
            self.raises("unsent", InputError, lambda: shuffle.dispatch(x, topk_idx=idx[1:]))
        else:
            shuffle.dispatch(x, topk_idx=idx, topk_weights=weights)
            self.raises("refused", RefusedCallError, shuffle.check)
        dist.barrier()

    def late(self) -> None:
        if self.num_ranks == 1:
            return
        shuffle = Shuffle(self.moe, max_sources=64, timeout=1)
        x, idx, weights = self.batch(MOE, "uniform", 64)
        if self.rank > 0:
            shuffle.dispatch(x, topk_idx=idx, topk_weights=weights)
            self.raises("late", HopTimeoutError, shuffle.check)
        dist.barrier()


def main() -> int:
    join(timeout=60)
    faces = Faces(Path(sys.argv[1]), Path(sys.argv[2]))
    checks = (
        faces.routings_and_sizes,
        faces.graph,
        faces.table_and_fields,
        faces.mistakes,
        faces.refused,
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
