"""Mixture-of-experts layers end to end: what a shuffle costs where it is used.

    python -m benchmarks.moe_layer --compile-only --case deepseek-v3:1
    python -m torch.distributed.run --nproc-per-node 4 -m benchmarks.moe_layer --case deepseek-v3:1

A case is a model's layer shape and how many such layers are stacked. The layers are those of
`examples/moe_layer.py` in bf16, with one set of parameters for all contenders, who differ in
nothing but the shuffle and take turns on the same inputs. A time is CUDA events around an
iteration, after a device barrier; the largest over the ranks counts, and the median over the
iterations. ``train`` is forward and backward, without an optimiser; ``prefill`` is forward alone,
without gradients. The share of shuffling is what CUDA events around every dispatch and combine,
forward and backward, say: the host's waits within them are part of it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.moe_reference import actual, differences, reference
from benchmarks.moe_shuffles import NcclDeduplicated, NcclNaive
from benchmarks.moe_stack import MODES, Case, Stack, Timed, artifact, peak_bytes
from benchmarks.verdict import exit_if_wrong
from examples.moe_layer import Sizes
from fuscoc_runtime import Shuffle

HIDE_LAUNCH_CYCLES = 1_500_000  # the GPU is kept busy while the host enqueues a measured call
TOLERANCE = 2e-2
"""Of the norm, for bf16 against f32."""


def measure(
    stack: Stack,
    shuffles: dict[str, Timed],
    mode: str,
    x: Tensor,
    gradient: Tensor,
    iterations: int,
) -> dict[str, Tensor]:
    """Milliseconds [iterations, 2] (iteration, its shuffling) of every contender."""
    word = torch.zeros(1, device=x.device)
    times: dict[str, list[list[float]]] = {name: [] for name in shuffles}
    for _ in range(iterations):
        for name, shuffle in shuffles.items():
            stack.use(shuffle)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(HIDE_LAUNCH_CYCLES)
            dist.all_reduce(word)
            begin.record()
            MODES[mode](stack, x, gradient)
            end.record()
            shuffling = shuffle.milliseconds()
            times[name].append([begin.elapsed_time(end), shuffling])
    result = {}
    for name, own in times.items():
        both = torch.tensor(own, device=x.device)
        dist.all_reduce(both, op=dist.ReduceOp.MAX)
        result[name] = both.cpu()
    return result


def verify(stack: Stack, shuffles: dict[str, Timed], num_tokens: int) -> dict[str, list[str]]:
    """What every contender gets wrong in the first layer, on all ranks."""
    layer: Any = stack.layers[0]
    x, gradient = inputs(num_tokens, layer.sizes, torch.device("cuda"))
    expected = reference(layer, x, gradient)
    wrong = {}
    for name, shuffle in shuffles.items():
        stack.use(shuffle)
        everyone: list[list[str]] = [[] for _ in range(dist.get_world_size())]
        mine = differences(actual(layer, x, gradient), expected, TOLERANCE)
        dist.all_gather_object(everyone, mine)
        shuffle.milliseconds()
        wrong[name] = [line for lines in everyone for line in lines]
    return wrong


@contextmanager
def contenders(case: Case, options: argparse.Namespace) -> Iterator[dict[str, Timed]]:
    with Shuffle(
        artifact(case.shape),
        max_sources=options.tokens,
        capacity=int(options.room * options.tokens * case.sizes.topk),
        num_handles=case.num_layers + 1,
    ) as ours:
        yield {
            f"fuscoc {ours.backend}": Timed(ours),
            "NCCL, rank-deduplicated": Timed(NcclDeduplicated(case.sizes.experts)),
            "NCCL, naive": Timed(NcclNaive(case.sizes.experts)),
        }


def run_case(case: Case, options: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    x, gradient = inputs(options.tokens, case.sizes, device)
    with contenders(case, options) as shuffles:
        stack = Stack(case.sizes, case.num_layers, device)
        wrong = verify(stack, shuffles, options.verified_tokens)
        torch.cuda.reset_peak_memory_stats()
        report = []
        for mode in options.mode:
            measure(stack, shuffles, mode, x, gradient, 2)
            measured = measure(stack, shuffles, mode, x, gradient, options.iterations)
            setting = {
                "shape": case.shape, "layers": case.num_layers, "num_tokens": options.tokens,
                "mode": mode, "peak_gib": peak_bytes() / 2**30,
            }  # fmt: skip
            for name, times in measured.items():
                found = {"contender": name, **summarise(times), "wrong": wrong[name]}
                report.append({**setting, **found})
    return report


def inputs(num_tokens: int, sizes: Sizes, device: torch.device) -> tuple[Tensor, Tensor]:
    """This rank's tokens and a gradient for what becomes of them, [num_tokens, hidden] each."""
    generator = torch.Generator(device).manual_seed(dist.get_rank())
    shape = (num_tokens, sizes.hidden)
    x, gradient = (
        torch.randn(shape, device=device, generator=generator).bfloat16() for _ in range(2)
    )
    return x, gradient


def summarise(times: Tensor) -> dict[str, float]:
    tenth, median, ninetieth = times[:, 0].quantile(torch.tensor([0.1, 0.5, 0.9])).tolist()
    shuffling = times[:, 1].median().item()
    return {
        "ms": median,
        "p10_ms": tenth,
        "p90_ms": ninetieth,
        "shuffle_ms": shuffling,
        "share": shuffling / median,
    }


def markdown(report: list[dict[str, Any]]) -> str:
    lines = [
        "| shape | layers | mode | contender | iteration, ms | p10 | p90 | shuffling, ms | share "
        "| right |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for e in report:
        right = "yes" if not e["wrong"] else "; ".join(e["wrong"])
        lines.append(
            f"| {e['shape']} | {e['layers']} | {e['mode']} | {e['contender']} | {e['ms']:.2f} "
            f"| {e['p10_ms']:.2f} | {e['p90_ms']:.2f} | {e['shuffle_ms']:.2f} | {e['share']:.1%} "
            f"| {right} |"
        )
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--case", type=Case.parse, nargs="+", default=[Case("deepseek-v3", 1)],
        help="SHAPE:LAYERS",
    )  # fmt: skip
    parser.add_argument("--mode", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--tokens", type=int, default=8192, help="of each rank")
    parser.add_argument("--verified-tokens", type=int, default=256)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument(
        "--room", type=float, default=1.1, help="rows of a rank, as a multiple of an even load"
    )
    parser.add_argument("--compile-only", action="store_true", help="write the artifacts and stop")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.compile_only:
        for case in options.case:
            print(artifact(case.shape))
        return
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    report = []
    for case in options.case:
        report += run_case(case, options, device)
        torch.cuda.empty_cache()
        if dist.get_rank() == 0:
            print(markdown(report[-3 * len(options.mode) :]), flush=True)
            print(f"at most {report[-1]['peak_gib']:.1f} GiB of GPU 0 in use", flush=True)
    if dist.get_rank() == 0 and options.json:
        setup = {
            "gpu": torch.cuda.get_device_name(), "ranks": dist.get_world_size(),
            "torch": torch.__version__, "python": platform.python_version(),
        }  # fmt: skip
        options.json.write_text(json.dumps({"setup": setup, "results": report}, indent=2))
    dist.destroy_process_group()
    exit_if_wrong([{**e, "routing": f"{e['shape']}:{e['layers']}, {e['mode']}"} for e in report])


if __name__ == "__main__":
    main()
