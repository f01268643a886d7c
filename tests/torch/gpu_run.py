"""The PyTorch face on real GPUs; run by torchrun, one process a GPU.

``python -m torch.distributed.run --nproc-per-node N tests/torch/gpu_run.py MOE`` takes
``examples/moe.fsc``, compiled with hidden=2048, experts=64, and exits non-zero, after naming every
mismatch, when something is wrong.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from fuscoc_runtime import Pool, Shuffle, fused_shuffle
from tests.gpu_ranks import join

HIDDEN, EXPERTS, TOPK, MOST, CAPACITY = 2048, 64, 8, 1024, 32_768
WAITS = (
    "aten::item",
    "aten::_local_scalar_dense",
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cuStreamSynchronize",
)


class Face:
    """The checks; each adds what is wrong to ``wrong``."""

    def __init__(self, artifact: str) -> None:
        self.artifact = artifact
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.rank, self.num_ranks = dist.get_rank(), dist.get_world_size()
        self.random = torch.Generator(self.device).manual_seed(self.rank)
        self.scales = torch.rand(
            EXPERTS, device=self.device, generator=torch.Generator(self.device).manual_seed(9)
        )
        self.wrong: list[str] = []

    def batch(self, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.randn(tokens, HIDDEN, device=self.device, generator=self.random).bfloat16()
        idx = torch.rand(tokens, EXPERTS, device=self.device, generator=self.random).topk(TOPK)[1]
        idx[::5, 1] = -1
        weights = torch.rand(tokens, TOPK, device=self.device, generator=self.random)
        return x.requires_grad_(), idx, weights.requires_grad_()

    def experts(self, **options: Any) -> Any:
        """Every expert is a sine of the row, scaled by a parameter of its own."""
        local = EXPERTS // self.num_ranks
        mine = self.scales[self.rank * local : (self.rank + 1) * local].clone().requires_grad_()

        @fused_shuffle(self.artifact, **options)
        def experts(rows: Tensor, counts: Tensor, handle: Any) -> Tensor:
            slots = torch.arange(rows.shape[0], device=rows.device)
            key = (slots[:, None] >= handle.key_offsets[1:]).sum(1)
            scale = mine[key.clamp(max=local - 1)]
            return torch.sin(rows * scale[:, None].bfloat16())

        experts.scales = mine
        return experts

    def plain(self, x: Tensor, idx: Tensor, weights: Tensor, scales: Tensor) -> Tensor:
        """The same without a shuffle: every expert is here."""
        rows = x.float()[:, None] * scales[idx.clamp(min=0)][..., None]
        return (torch.sin(rows) * (weights * (idx >= 0))[..., None]).sum(1)

    def close(self, what: str, found: Tensor, wanted: Tensor, limit: float = 2e-2) -> None:
        found, wanted = found.detach().float(), wanted.detach().float()
        error = float((found - wanted).norm() / wanted.norm())
        if not error < limit:
            self.wrong.append(f"{what} is off by {error:.1e}")

    def check_gradients(self, what: str, experts: Any, call: Any, tokens: int) -> None:
        x, idx, weights = self.batch(tokens)
        seed = torch.randn(tokens, HIDDEN, device=self.device, generator=self.random).bfloat16()
        experts.scales.grad = None
        y = call(x, topk_idx=idx, topk_weights=weights)
        y.backward(seed)
        x2, weights2 = x.detach().requires_grad_(), weights.detach().requires_grad_()
        scales = self.scales.clone().requires_grad_()
        wanted = self.plain(x2, idx, weights2, scales)
        wanted.backward(seed.float())
        dist.all_reduce(scales.grad)
        local = EXPERTS // self.num_ranks
        self.close(f"{what}: result", y, wanted)
        self.close(f"{what}: grad of x", x.grad, x2.grad)
        self.close(f"{what}: grad of weights", weights.grad, weights2.grad)
        mine = scales.grad[self.rank * local : (self.rank + 1) * local]
        self.close(f"{what}: grad of scales", experts.scales.grad, mine, 5e-2)

    def gradients(self) -> None:
        fixed = self.experts(max_sources=MOST, capacity=CAPACITY)
        exact = self.experts()
        if fixed.shuffle().backend != "cuda":
            self.wrong.append("no CUDA kernels")
        for tokens in (MOST, 100 + 37 * self.rank, 8):
            self.check_gradients(f"fixed {tokens}", fixed, fixed, tokens)
        self.check_gradients("exact 300", exact, exact, 300 + self.rank)

    def compiled(self) -> None:
        """One graph without a break, for any number of tokens."""
        for name, options in (
            ("fixed", {"max_sources": MOST, "capacity": CAPACITY}),
            ("exact", {}),
        ):
            experts = self.experts(**options)

            def layer(
                x: Tensor, topk_idx: Tensor, topk_weights: Tensor, inner: Any = experts
            ) -> Any:
                return inner(x * 1.0, topk_idx=topk_idx, topk_weights=topk_weights + 0.0)

            traced = torch.compile(layer, fullgraph=True, dynamic=True)
            for tokens in (512, 300 + self.rank):
                self.check_gradients(f"compiled {name} {tokens}", experts, traced, tokens)

    def graph(self) -> None:
        """100 replays of one captured layer, each on other data."""
        experts = self.experts(max_sources=MOST, capacity=CAPACITY)
        x, idx, weights = (each.detach().clone() for each in self.batch(256))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.no_grad():
            with torch.cuda.stream(stream):
                experts(x, topk_idx=idx, topk_weights=weights)
            torch.cuda.synchronize()
            dist.barrier()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                y = experts(x, topk_idx=idx, topk_weights=weights)
            for replay in range(100):
                for static, new in zip((x, idx, weights), self.batch(256), strict=True):
                    static.copy_(new)
                graph.replay()
                if replay % 9 == 0:
                    wanted = self.plain(x, idx, weights, self.scales)
                    self.close(f"replay {replay}", y, wanted)
        experts.shuffle().check()

    def training_graph(self) -> None:
        """Forward and backward captured together."""
        experts = self.experts(max_sources=MOST, capacity=CAPACITY)
        x, idx, weights = self.batch(256)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())

        def step() -> None:
            x.grad = weights.grad = experts.scales.grad = None
            experts(x, topk_idx=idx, topk_weights=weights).float().square().sum().backward()

        with torch.cuda.stream(stream):
            step()
            step()
        torch.cuda.synchronize()
        dist.barrier()
        graph = torch.cuda.CUDAGraph()
        x.grad = weights.grad = experts.scales.grad = None
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            experts(x, topk_idx=idx, topk_weights=weights).float().square().sum().backward()
        for _ in range(10):
            with torch.no_grad():
                for static, new in zip((x, idx, weights), self.batch(256), strict=True):
                    static.copy_(new)
            graph.replay()
        x2, w2 = x.detach().requires_grad_(), weights.detach().requires_grad_()
        self.plain(x2, idx, w2, self.scales).square().sum().backward()
        self.close("graph: grad of x", x.grad, x2.grad)
        self.close("graph: grad of weights", weights.grad, w2.grad)

    def no_host_waits(self) -> None:
        experts = self.experts(max_sources=MOST, capacity=CAPACITY)
        x, idx, weights = self.batch(512)
        seed = torch.ones_like(x)
        for _ in range(3):
            experts(x, topk_idx=idx, topk_weights=weights).backward(seed)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
            torch.cuda.set_sync_debug_mode("error")
            try:
                with record_function("calls"):
                    experts(x, topk_idx=idx, topk_weights=weights).backward(seed)
                    with torch.no_grad():
                        experts(x, topk_idx=idx, topk_weights=weights)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        events = trace.events()
        [calls] = [e for e in events if e.name == "calls" and e.device_type.name == "CPU"]
        inside = [
            e.name
            for e in events
            if e.name in WAITS
            and e.time_range.start >= calls.time_range.start
            and e.time_range.end <= calls.time_range.end
        ]
        launches = sum("aunch" in e.name for e in events)
        if self.rank == 0:
            print(f"{launches} launches traced, waits: {sorted(set(inside))}", flush=True)
        if inside:
            self.wrong.append(f"the host waits: {sorted(set(inside))}")
        if not launches:
            self.wrong.append("the trace shows no launches")

    def overlapped(self) -> None:
        """Asynchronous calls give the same, also with a second batch between them; so they do on
        the general engine, inside a node and across nodes, whose calls end before their rows."""
        fixed: dict[str, Any] = {"max_sources": MOST, "capacity": CAPACITY, "num_sms": 32}
        settings: list[dict[str, Any]] = [fixed, {}, {"topology": f"{self.num_ranks}x1"}]
        for options in settings:
            with Shuffle(self.artifact, **options) as shuffle:
                for _ in range(5):
                    self.overlap_once(shuffle)
                self.overlap_with_gradients(shuffle)

    def overlap_once(self, shuffle: Shuffle) -> None:
        (x, idx, weights), (x2, idx2, weights2) = self.batch(700), self.batch(300)
        with torch.no_grad():
            rows, handle, event = shuffle.dispatch(
                x, topk_idx=idx, topk_weights=weights, async_op=True
            )
            event.wait()
            worked = rows * 2
            ready = torch.cuda.current_stream().record_event()
            torch.cuda._sleep(1_000_000)  # what the next call need not wait for
            rows2, handle2, event2 = shuffle.dispatch(
                x2, topk_idx=idx2, topk_weights=weights2, async_op=True, after=ready
            )
            event2.wait()
            y, done = shuffle.combine(worked, handle, async_op=True)
            y2, done2 = shuffle.combine(rows2 * 2, handle2, async_op=True)
            done.wait()
            done2.wait()
        for what, out, source, i, w in (
            ("first", y, x, idx, weights),
            ("second", y2, x2, idx2, weights2),
        ):
            wanted = 2 * source.float() * (w * (i >= 0)).sum(1, keepdim=True)
            self.close(f"overlapped {what} of {shuffle}", out, wanted)

    def overlap_with_gradients(self, shuffle: Shuffle) -> None:
        """The host is not made to wait for rows that autograd is given copies of."""
        x, idx, weights = self.batch(400)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            rows, handle, event = shuffle.dispatch(
                x, topk_idx=idx, topk_weights=weights, async_op=True
            )
            event.wait()
            y, done = shuffle.combine(rows * 2, handle, async_op=True)
            done.wait()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        seed = torch.randn(x.shape, device=self.device, generator=self.random)
        y.backward(seed.bfloat16())
        sums = 2 * (weights * (idx >= 0)).sum(1, keepdim=True)
        self.close(f"asynchronous result of {shuffle}", y, x * sums)
        self.close(f"its gradient of {shuffle}", x.grad, seed * sums)
        dots = 2 * (x * seed).sum(1, keepdim=True) * (idx >= 0)
        self.close(f"its gradient of weights of {shuffle}", weights.grad, dots)

    def after_inference(self) -> None:
        """What inference has opened and grown can be trained with; and rows that are combined as
        they came are there when the gradient of their weights is made."""
        fixed: dict[str, Any] = {"max_sources": MOST, "capacity": CAPACITY}
        settings: list[dict[str, Any]] = [fixed, {}, {"topology": f"{self.num_ranks}x1"}]
        for options in settings:
            x, idx, weights = self.batch(200)
            with torch.inference_mode():
                shuffle = Shuffle(self.artifact, **options)
                rows, handle = shuffle.dispatch(x, topk_idx=idx, topk_weights=weights)
                shuffle.combine(rows, handle)
            x, idx, weights = self.batch(300 + self.rank)
            rows, handle = shuffle.dispatch(x.detach(), topk_idx=idx, topk_weights=weights)
            seed = torch.randn(x.shape, device=self.device, generator=self.random).bfloat16()
            shuffle.combine(rows, handle).backward(seed)
            dots = (x.float() * seed.float()).sum(1, keepdim=True) * (idx >= 0)
            self.close(f"gradient of weights alone of {shuffle}", weights.grad, dots)
            shuffle.close()

    def pooled(self) -> None:
        """Layers of one pool take the memory of one, and give it back."""
        pool = Pool()
        layers = [
            Shuffle(self.artifact, max_sources=MOST, capacity=CAPACITY, pool=pool) for _ in range(3)
        ]
        if len(pool) != 1 or layers[0].memory() != layers[2].memory():
            self.wrong.append("layers of one pool differ")
        x, idx, weights = self.batch(200)
        h = x
        for layer in layers:
            rows, handle = layer.dispatch(h, topk_idx=idx, topk_weights=weights)
            h = layer.combine(rows, handle)
        h.float().sum().backward()
        sums = (weights * (idx >= 0)).sum(1, keepdim=True)
        self.close("three layers", h, x.float() * sums**3)
        self.close("their gradient", x.grad, (sums**3).expand_as(x))
        if self.rank == 0:
            print(layers[0].stats(), layers[0].memory(), flush=True)
        for layer in layers:
            layer.close()
        if len(pool):
            self.wrong.append("the pool still holds memory")


def main() -> int:
    join()
    face = Face(sys.argv[1])
    checks: tuple[Callable[[], None], ...] = (
        face.gradients,
        face.graph,
        face.no_host_waits,
        face.overlapped,
        face.after_inference,
        face.pooled,
        face.compiled,
        face.training_graph,
    )
    wanted = sys.argv[2:]
    for check in checks:
        if wanted and check.__name__ not in wanted:
            continue
        started = time.time()
        try:
            check()
        except Exception as error:
            import traceback

            traceback.print_exc()
            face.wrong.append(f"{check.__name__}: {error!r}")
        if face.rank == 0:
            print(f"{check.__name__}: {time.time() - started:.1f} s", flush=True)
    everyone: list[list[str]] = [[] for _ in range(face.num_ranks)]
    dist.all_gather_object(everyone, face.wrong)
    if face.rank == 0:
        for rank, lines in enumerate(everyone):
            print("".join(f"WRONG on rank {rank}: {line}\n" for line in lines[:9]), end="")
        state = "FAILED" if any(everyone) else "the face holds"
        print(f"{face.num_ranks} ranks: {state}", flush=True)
    dist.destroy_process_group()
    return int(any(everyone))


if __name__ == "__main__":
    sys.exit(main())
