"""Two micro-batches: the shuffle of one is hidden behind the GEMM of the other.

    torchrun --nproc-per-node 2 examples/overlap.py

On GPUs of one node it prints how much of the shorter of the two, communication and GEMM, the longer
one hides. Without GPUs it does the same calls, which then simply follow each other. An artifact
directory as the first argument is used instead of ``moe.fsc``, whose constants it has to have.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fuscoc_runtime import Shuffle

REPEATS = 50


@dataclass(frozen=True)
class Size:
    """Per rank: tokens of a micro-batch, SMs for its shuffle, and rows of the GEMM."""

    hidden: int
    experts: int
    topk: int
    tokens: int
    num_sms: int
    gemm_rows: int


GPU = Size(7168, 256, 8, 4096, 12, 16_384)
CPU = Size(64, 8, 2, 32, 2, 64)


def main() -> None:
    on_gpu = torch.cuda.is_available()
    size = GPU if on_gpu else CPU
    with (
        Shuffle(
            artifact(size),
            max_sources=size.tokens,
            num_sms=size.num_sms,
        ) as shuffle,
        torch.no_grad(),
    ):
        batches = [batch(size, shuffle, number) for number in range(2)]
        weight = torch.randn(size.hidden, size.hidden, device=shuffle.device).bfloat16()
        rows = torch.randn(size.gemm_rows, size.hidden, device=shuffle.device).bfloat16()

        def gemm() -> None:
            torch.mm(rows, weight)

        def communicate(asynchronous: bool) -> Any:
            """One micro-batch there and back."""
            x, inputs = batches[0]
            arrived, handle, event = shuffle.dispatch(x, **inputs, async_op=True)
            if not asynchronous:
                event.wait()
            _, event = shuffle.combine(arrived, handle, async_op=True)
            return event

        two_micro_batches(shuffle, batches, gemm)
        if not on_gpu:
            print(f"rank {shuffle.rank}: done; there is nothing to hide on a CPU")
            return

        def alone() -> None:
            communicate(asynchronous=False).wait()

        def together() -> None:
            event = communicate(asynchronous=True)
            gemm()
            event.wait()

        shuffle_ms, gemm_ms = timed(alone), timed(gemm)
        leave_sms_free(size.num_sms)
        both_ms = timed(together)
        hidden = (shuffle_ms + gemm_ms - both_ms) / min(shuffle_ms, gemm_ms)
        print(
            f"rank {shuffle.rank}: shuffle {shuffle_ms:.2f} ms on {size.num_sms} SMs, GEMM "
            f"{gemm_ms:.2f} ms, together {both_ms:.2f} ms: {hidden:.0%} of the shorter is hidden"
        )


def two_micro_batches(
    shuffle: Shuffle,
    batches: list[tuple[torch.Tensor, dict[str, torch.Tensor]]],
    gemm: Callable[[], None],
) -> list[torch.Tensor]:
    """The way it is used: while one micro-batch travels, the other one is worked on."""
    results, pending = [], None
    for x, inputs in batches:
        rows, handle, arrived = shuffle.dispatch(x, **inputs, async_op=True)
        gemm()  # work that does not need these rows, such as the attention of the other batch
        if pending is not None:
            pending.wait()
        arrived.wait()
        result, pending = shuffle.combine(rows * 2, handle, async_op=True)
        results.append(result)
    assert pending is not None
    pending.wait()
    return results


def leave_sms_free(num_sms: int) -> None:
    """Let cuBLAS count on so many SMs less.

    Its GEMM has one CTA for each SM and gives each an equal part. If the shuffle has some of the
    SMs, those parts would only begin when all others have ended.
    """
    cublas = ctypes.CDLL(f"libcublas.so.{str(torch.version.cuda).split('.')[0]}")
    available = torch.cuda.get_device_properties().multi_processor_count
    handle = ctypes.c_void_p(torch.cuda.current_blas_handle())
    assert cublas.cublasSetSmCountTarget(handle, available - num_sms) == 0


def batch(size: Size, shuffle: Shuffle, seed: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    random = torch.Generator(shuffle.device).manual_seed(2 * shuffle.rank + seed)
    options: dict[str, Any] = {"device": shuffle.device, "generator": random}
    x = torch.randn(size.tokens, size.hidden, **options).bfloat16()
    idx = torch.randint(0, size.experts, (size.tokens, size.topk), **options)
    weights = torch.rand(size.tokens, size.topk, **options)
    return x, {"topk_idx": idx, "topk_weights": weights}


def artifact(size: Size) -> Any:
    if len(sys.argv) > 1:
        return sys.argv[1]
    from fuscoc.torch import as_artifact

    constants = {"hidden": size.hidden, "experts": size.experts, "topk": size.topk}
    return as_artifact(Path(__file__).with_name("moe.fsc"), constants)


def timed(call: Callable[[], None]) -> float:
    """Milliseconds of a call, over many in a row."""
    for _ in range(3):
        call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if dist.is_initialized():
        dist.barrier()
    begin.record()
    for _ in range(REPEATS):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / REPEATS


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
