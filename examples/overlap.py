"""Two micro-batches: while one of them travels, the other one is computed.

    torchrun --nproc-per-node 2 examples/overlap.py

On GPUs of one node it prints how much of the communication is hidden: behind one GEMM, and in a
stack of mixture-of-experts layers that runs two micro-batches in turn. Without GPUs it makes the
same calls, which then simply follow each other. An artifact directory as the first argument is
used instead of ``moe.fsc``, whose constants it has to have. ``benchmarks/moe_overlap.py`` does the
same for other sizes.
"""

from __future__ import annotations

import ctypes
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from fuscoc_runtime import Shuffle

ROUNDS, MILLISECONDS = 3, 80


@dataclass(frozen=True)
class Size:
    """Per rank: tokens of a micro-batch, hidden units of an expert, layers, rows of the one GEMM.

    ``num_sms`` is what the shuffle has: the fewest SMs on which it takes no longer than what it
    runs beside, because the GEMMs lose them for as long as *they* run. GEMMs by weights of
    ``scale`` 0 take as many steps and less power.
    """

    hidden: int
    experts: int
    topk: int
    tokens: int
    width: int
    layers: int
    num_sms: int
    rows: int = 0
    scale: float = 1.0


GPU = Size(hidden=7168, experts=256, topk=8, tokens=4096, width=2048, layers=6, num_sms=4)
GEMM = replace(GPU, rows=32_768, num_sms=8)
CPU = Size(hidden=64, experts=8, topk=2, tokens=32, width=32, layers=2, num_sms=1)


class Layer:
    """A dense part in the place of attention, with about as many weights as DeepSeek-V3's has, and
    SwiGLU experts; no gradients."""

    def __init__(self, size: Size, shuffle: Shuffle, seed: int) -> None:
        hidden, width = size.hidden, size.width
        local = size.experts // shuffle.topology.num_ranks
        options: dict[str, Any] = {"device": shuffle.device, "dtype": torch.bfloat16}
        torch.manual_seed(seed)
        self.topk = size.topk
        self.router = torch.randn(hidden, size.experts, **options) * hidden**-0.5
        self.dense = torch.randn(4, hidden, hidden, **options) * size.scale * hidden**-0.5
        self.gate_up = torch.randn(local, hidden, 2 * width, **options) * size.scale * hidden**-0.5
        self.down = torch.randn(local, width, hidden, **options) * size.scale * width**-0.5

    def before(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The tokens after the dense part, and their experts."""
        y = x
        for weights in self.dense:
            y = F.silu(y @ weights)
        x = x + y
        weights, idx = (x @ self.router).float().softmax(-1).topk(self.topk)
        return x, {"topk_idx": idx, "topk_weights": weights}

    def experts(self, rows: Tensor, key_offsets: Tensor) -> Tensor:
        ends = key_offsets[1:].to(torch.int32)
        gate, up = F.grouped_mm(rows, self.gate_up, offs=ends).chunk(2, dim=-1)
        return F.grouped_mm(F.silu(gate) * up, self.down, offs=ends)


def forward(
    layers: Sequence[Layer], shuffles: Sequence[Shuffle], batches: Sequence[Tensor]
) -> list[Tensor]:
    """All micro-batches through all layers. Each has a shuffle of its own: rows lie in a shuffle's
    memory until its next dispatch, and those of one batch must outlast the dispatch of the other.

    What is enqueued between a call and its ``wait`` runs beside it: behind the dense part of the
    second batch the first one travels to the experts, behind the experts of the first batch the
    second one, and so on.
    """
    xs = list(batches)
    combined: list[Any] = [None] * len(xs)
    for layer in layers:
        sent = []
        for i, shuffle in enumerate(shuffles):
            if combined[i] is not None:
                y, event = combined[i]
                event.wait()
                xs[i] = xs[i] + y
            xs[i], inputs = layer.before(xs[i])
            sent.append(shuffle.dispatch(xs[i], **inputs, async_op=True))
        for i, shuffle in enumerate(shuffles):
            rows, handle, event = sent[i]
            event.wait()
            rows = layer.experts(rows, handle.key_offsets)
            combined[i] = shuffle.combine(rows, handle, async_op=True)
    for i, (y, event) in enumerate(combined):
        event.wait()
        xs[i] = xs[i] + y
    return xs


def one_after_the_other(
    layers: Sequence[Layer], shuffles: Sequence[Shuffle], batches: Sequence[Tensor]
) -> list[Tensor]:
    """The same without overlap."""
    xs = []
    for x, shuffle in zip(batches, shuffles, strict=True):
        for layer in layers:
            x, inputs = layer.before(x)
            rows, handle = shuffle.dispatch(x, **inputs)
            x = x + shuffle.combine(layer.experts(rows, handle.key_offsets), handle)
        xs.append(x)
    return xs


def leave_sms_free(num_sms: int) -> None:
    """Let the GEMMs of cuBLAS and CUTLASS count on so many SMs less; 0: on all of them.

    They have one CTA for each SM and give each an equal part. If the shuffle has some of the SMs,
    those parts would only begin when all others have ended.
    """
    torch._C._set_sm_carveout_experimental(num_sms or None)  # grouped GEMMs, and cuBLASLt
    cublas = ctypes.CDLL(f"libcublas.so.{str(torch.version.cuda).split('.')[0]}")
    available = torch.cuda.get_device_properties().multi_processor_count
    handle = ctypes.c_void_p(torch.cuda.current_blas_handle())
    status = cublas.cublasSetSmCountTarget(handle, available - num_sms if num_sms else 0)
    if status != 0:
        raise RuntimeError(f"cublasSetSmCountTarget fails with {status}")


@dataclass(frozen=True)
class Times:
    """Milliseconds of every round: of the shuffle on its SMs, of the GEMMs on all SMs and on those
    that the shuffle leaves, of both together, and of both one after the other, each on all SMs."""

    shuffle: list[float]
    gemms: list[float]
    gemms_beside: list[float]
    together: list[float]
    in_turn: list[float]

    def hidden(self, gemms: list[float]) -> list[float]:
        """How much of the shorter of the two, the shuffle and the GEMMs, the longer one hides."""
        times = zip(self.shuffle, gemms, self.together, strict=True)
        return [(one + other - both) / min(one, other) for one, other, both in times]

    def __str__(self) -> str:
        one, gemms, beside, both, turn = (statistics.median(each) for each in vars(self).values())
        hidden, of_beside = self.hidden(self.gemms), self.hidden(self.gemms_beside)
        return (
            f"shuffle {one:.2f} ms, GEMMs {gemms:.2f} ms ({beside:.2f} ms on the SMs left), "
            f"together {both:.2f} ms: {statistics.median(hidden):.0%} of the shorter is hidden, "
            f"{min(hidden):.0%} to {max(hidden):.0%} ({statistics.median(of_beside):.0%}); one "
            f"after the other, on all SMs, {turn:.2f} ms"
        )


def beside_a_gemm(artifact: Any, size: Size) -> Times:
    """A dispatch and a combine of a micro-batch beside one GEMM of other data."""
    with (
        Shuffle(artifact, max_sources=size.tokens, num_sms=size.num_sms) as shuffle,
        Shuffle(artifact, max_sources=size.tokens) as fastest,
    ):
        x, inputs = batch(size, shuffle)
        left = torch.randn(size.rows, size.hidden, device=shuffle.device).bfloat16()
        right = torch.randn(size.hidden, size.hidden, device=shuffle.device).bfloat16()

        def communicate(shuffle: Shuffle) -> None:
            shuffle.combine(*shuffle.dispatch(x, **inputs))

        def together() -> None:
            rows, handle, _ = shuffle.dispatch(x, **inputs, async_op=True)
            _, event = shuffle.combine(rows, handle, async_op=True)  # follows the dispatch
            left @ right
            event.wait()

        def in_turn() -> None:
            communicate(fastest)
            left @ right

        return measure(size, lambda: communicate(shuffle), lambda: left @ right, together, in_turn)


def micro_batches(artifact: Any, size: Size) -> Times | None:
    """Two micro-batches through a stack of layers; without GPUs nothing is measured."""
    local = size.experts // (dist.get_world_size() if dist.is_initialized() else 1)
    options: dict[str, Any] = {
        "max_sources": size.tokens,
        "capacity": int(1.25 * size.tokens * size.topk) + 128 * local,
    }
    with (
        Shuffle(artifact, **options, num_sms=size.num_sms) as one,
        Shuffle(artifact, **options, num_sms=size.num_sms) as other,
        Shuffle(artifact, **options) as fastest,
    ):
        shuffles = (one, other)
        layers = [Layer(size, one, seed) for seed in range(size.layers)]
        batches = [batch(size, one, seed)[0] for seed in range(2)]

        def in_turn() -> list[Tensor]:
            return one_after_the_other(layers, [fastest, fastest], batches)

        for found, wanted in zip(forward(layers, shuffles, batches), in_turn(), strict=True):
            torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02)
        if one.device.type == "cpu":
            return None
        sent = [layers[0].before(tokens) for tokens in batches]
        arrived = [
            (rows, handle.key_offsets)
            for shuffle, (x, inputs) in zip(shuffles, sent, strict=True)
            for rows, handle in [shuffle.dispatch(x, **inputs)]
        ]

        def compute() -> None:
            for layer in layers:
                for tokens, (rows, key_offsets) in zip(batches, arrived, strict=True):
                    layer.before(tokens)
                    layer.experts(rows, key_offsets)

        def communicate() -> None:
            for _ in layers:
                for shuffle, (x, inputs) in zip(shuffles, sent, strict=True):
                    shuffle.combine(*shuffle.dispatch(x, **inputs))

        def together() -> None:
            forward(layers, shuffles, batches)

        return measure(size, communicate, compute, together, in_turn)


def measure(
    size: Size,
    communicate: Callable[[], object],
    compute: Callable[[], object],
    together: Callable[[], object],
    in_turn: Callable[[], object],
) -> Times:
    """Every call once in every round, so that all of them see the same GPU."""
    calls = (
        (communicate, 0), (compute, 0), (compute, size.num_sms), (together, size.num_sms),
        (in_turn, 0),
    )  # fmt: skip
    rounds = []
    for _ in range(ROUNDS):
        times = []
        for call, num_sms in calls:
            leave_sms_free(num_sms)
            times.append(timed(call))
        rounds.append(times)
    leave_sms_free(0)
    return Times(*(list(times) for times in zip(*rounds, strict=True)))


def batch(size: Size, shuffle: Shuffle, seed: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    random = torch.Generator(shuffle.device).manual_seed(2 * shuffle.rank + seed)
    options: dict[str, Any] = {"device": shuffle.device, "generator": random}
    x = torch.randn(size.tokens, size.hidden, **options).bfloat16()
    idx = torch.rand(size.tokens, size.experts, **options).topk(size.topk).indices
    weights = torch.rand(size.tokens, size.topk, **options)
    return x, {"topk_idx": idx, "topk_weights": weights}


def timed(call: Callable[[], object]) -> float:
    """Milliseconds of a call in a row of them that is long enough for the GPU's clock, which its
    power limits under GEMMs, to be what it will stay; the largest of all ranks."""
    repeats = math.ceil(MILLISECONDS / in_a_row(call, 3))
    in_a_row(call, repeats)
    return in_a_row(call, repeats)


def in_a_row(call: Callable[[], object], repeats: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if dist.is_initialized():
        dist.barrier()
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    taken = torch.tensor(begin.elapsed_time(end) / repeats, device="cuda")
    if dist.is_initialized():
        dist.all_reduce(taken, op=dist.ReduceOp.MAX)
    return float(taken)


def compiled(size: Size) -> Any:
    from fuscoc.torch import as_artifact

    constants = {"hidden": size.hidden, "experts": size.experts, "topk": size.topk}
    return as_artifact(Path(__file__).with_name("moe.fsc"), constants)


@torch.no_grad()
def main() -> None:
    size = GPU if torch.cuda.is_available() else CPU
    artifact = sys.argv[1] if len(sys.argv) > 1 else compiled(size)
    times = micro_batches(artifact, size)
    if times is None:
        print("done; there is nothing to hide on a CPU")
        return
    one = beside_a_gemm(artifact, GEMM)
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(
            f"{GEMM.tokens} tokens on {GEMM.num_sms} SMs beside a GEMM of {GEMM.rows} rows: {one}"
        )
        what = f"2 x {size.tokens} tokens on {size.num_sms} SMs through {size.layers} layers"
        print(f"{what}: {times}")


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
