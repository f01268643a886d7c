"""Results that ranks lend to each other on real GPUs, and what becomes of them; run by torchrun.

``python -m torch.distributed.run --nproc-per-node N -m tests.cuda.results_run ULYSSES`` takes the
compiled example of that name and exits non-zero, after naming every mismatch, when something is
wrong. A result has to stay as it is however it is kept, and its memory has to be lent again when
nothing keeps it any more.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from fuscoc_runtime import Shuffle
from fuscoc_runtime.comm.results import NUM_RESULTS
from fuscoc_runtime.engine.node import pieces
from fuscoc_runtime.errors import InputError, RefusedCallError
from tests.cuda.checks import settle
from tests.gpu_ranks import join

TOKENS, HEADS, WIDTH = 16384, 8, 64  # of all ranks; the example's block has 64
BUSY_CYCLES = 50_000_000
ROUNDS = 150


class Results:
    """The checks; each returns what is wrong on this rank."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self.rank, self.num_ranks, self.device = dist.get_rank(), dist.get_world_size(), device
        self.own = TOKENS // self.num_ranks
        self.random = torch.Generator(device).manual_seed(3 + self.rank)
        with mock.patch.object(pieces, "LENT_BYTES", 0):
            self.shuffle = self._opened(path)
        self.path = path

    def _opened(self, path: Path) -> Shuffle:
        most = self.own // 64 * HEADS
        return Shuffle(path, device=self.device, max_sources=most, capacity=most, num_sms=16)

    def source(self) -> Tensor:
        shape = (self.own, HEADS, WIDTH)
        return torch.randn(shape, device=self.device, generator=self.random).bfloat16()

    def lent(self, result: Tensor) -> bool:
        """Whether a result lies where peers store."""
        return self.shuffle.engine.results.offset(result) >= 0

    def call(self, x: Tensor) -> Tensor:
        """What comes back of twice its rows."""
        rows, handle = self.shuffle.dispatch(x.view(self.own, HEADS, -1))
        return self.shuffle.combine(rows * 2, handle).view_as(x)

    def kept(self) -> list[str]:
        """Some results are kept, each rank others, whole or as views; later calls change none."""
        chosen, kept, wrong = random.Random(self.rank), list[tuple[Tensor, Tensor]](), list[str]()
        num_lent = 0
        for number in range(ROUNDS):
            x = self.source()
            y = self.call(x)
            num_lent += self.lent(y)
            if not torch.equal(y, x * 2):
                wrong.append(f"{number}: what came back differs")
            if chosen.random() < 0.5:
                part = slice(None) if chosen.random() < 0.5 else slice(5, 9)
                kept.append((y[part], (x * 2)[part]))
            del y
            while len(kept) > chosen.randrange(5):
                kept.pop(chosen.randrange(len(kept)))
            wrong += [
                f"{number}: a kept one has changed"
                for held, wanted in kept
                if not torch.equal(held, wanted)
            ]
        if not 0 < num_lent < ROUNDS:
            wrong.append(f"{num_lent} of {ROUNDS} results were lent")
        return wrong[:5]

    def freed(self) -> list[str]:
        """So many are lent as there is room for; when nothing keeps them the next ones are."""
        x, wrong = self.source(), list[str]()
        for _ in range(3):
            held = [self.call(x) for _ in range(NUM_RESULTS + 1)]
            found = [self.lent(each) for each in held]
            if found != [True] * NUM_RESULTS + [False]:
                wrong.append(f"lent are {found}")
            wrong += ["what came back differs" for y in held if not torch.equal(y, x * 2)]
            del held
        return wrong

    def recorded(self) -> list[str]:
        """One that another stream still reads when the program lets go of it."""
        wrong, side = list[str](), torch.cuda.Stream()
        for _ in range(4):
            x = self.source()
            y = self.call(x)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(BUSY_CYCLES)
                read = y.clone()
            y.record_stream(side)
            del y
            later = [self.call(self.source()) for _ in range(NUM_RESULTS)]
            torch.cuda.current_stream().wait_stream(side)
            wrong += ["one that was read later differs"] * (not torch.equal(read, x * 2))
            del later
        return wrong

    def elsewhere(self) -> list[str]:
        """Calls of another stream, of another thread, and asynchronous ones."""
        x, wrong, side = self.source(), list[str](), torch.cuda.Stream()
        before = self.call(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = self.call(x)
        torch.cuda.current_stream().wait_stream(side)
        wrong += ["another stream's is lent"] * self.lent(y)
        made = list[Tensor]()
        thread = threading.Thread(target=lambda: made.append(self.call(x)))
        thread.start()
        thread.join()
        rows, handle = self.shuffle.dispatch(x)
        z, event = self.shuffle.combine(rows * 2, handle, async_op=True)
        event.wait()
        found = [before, y, *made, z.view_as(x)]
        return wrong + ["what came back differs" for y in found if not torch.equal(y, x * 2)]

    def graph(self) -> list[str]:
        """A captured call, replayed between others whose results are kept."""
        static, wrong = self.source(), list[str]()
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            captured = self.call(static)
        torch.cuda.synchronize()
        kept = list[tuple[Tensor, Tensor]]()
        for _ in range(3):
            x = self.source()
            kept.append((self.call(x), x * 2))
            static.copy_(self.source())
            graph.replay()
            wrong += ["a replay differs"] * (not torch.equal(captured, static * 2))
        wrong += ["a kept one has changed" for y, wanted in kept if not torch.equal(y, wanted)]
        return wrong

    def gradients(self) -> list[str]:
        """Two layers whose results autograd has saved."""
        x, wrong = self.source().requires_grad_(), list[str]()
        y = self.call(x)
        z = self.call(y * y)
        (z * z).sum().backward()
        a = x.detach().float()
        wanted = torch.autograd.functional.vjp(lambda v: ((2 * (2 * v) ** 2) ** 2).sum(), a)[1]
        if not torch.allclose(x.grad.float(), wanted, rtol=0.05, atol=0.5):
            wrong.append("gradients differ")
        return wrong

    def refused(self) -> list[str]:
        """A rank that refuses a combine: the next ones are whole again."""
        x, wrong = self.source(), list[str]()
        kept = self.call(x)
        rows, handle = self.shuffle.dispatch(x)
        work = rows * 2
        try:
            self.shuffle.combine(work.float() if self.rank == 0 else work, handle)
        except InputError:
            wrong += ["refused"] * (self.rank != 0)
        torch.cuda.synchronize()
        dist.barrier()
        try:
            self.shuffle.check()
            wrong += ["nobody hears that one has refused"] * (self.rank != 0)
        except RefusedCallError:
            wrong += ["it hears so itself"] * (self.rank == 0)
        found = [kept, self.call(x)]
        del kept
        return wrong + ["what came back differs" for y in found if not torch.equal(y, x * 2)]

    def closed(self) -> list[str]:
        """One that outlives its shuffle, and others that come by another one meanwhile."""
        x = self.source()
        y = self.call(x)
        wrong = ["none is lent at last"] * (not self.lent(y))
        self.shuffle.close()
        gc.collect()
        torch.cuda.empty_cache()
        with mock.patch.object(pieces, "LENT_BYTES", 0):
            self.shuffle = self._opened(self.path)
        for _ in range(3):
            self.call(self.source())
        wrong += ["it has changed"] * (not torch.equal(y, x * 2))
        self.shuffle.close()
        return wrong


def main() -> int:
    device = join()
    results, failed = Results(Path(sys.argv[1]), device), False
    checks: list[Callable[[], list[str]]] = [
        results.kept,
        results.freed,
        results.recorded,
        results.elsewhere,
        results.graph,
        results.gradients,
        results.refused,
        results.freed,
        results.closed,
    ]
    for check in checks:
        started = time.monotonic()
        failed = settle(check(), check.__name__) or failed
        if dist.get_rank() == 0:
            print(f"{check.__name__}: {time.monotonic() - started:.1f} s", flush=True)
    if dist.get_rank() == 0:
        print("FAILED" if failed else "all hold", flush=True)
    dist.destroy_process_group()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
