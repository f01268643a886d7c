"""Mixture-of-experts layers end to end: what a shuffle costs where it is used.

    python -m benchmarks.moe_layer --compile-only --case deepseek-v3:1
    python -m torch.distributed.run --nproc-per-node 4 benchmarks/moe_layer.py --case deepseek-v3:1

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
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.moe_cases import SHAPES, spec
from benchmarks.moe_reference import actual, differences, reference
from benchmarks.moe_shuffles import NcclDeduplicated, NcclNaive
from examples.moe_layer import MoeLayer, Sizes
from fuscoc_runtime import Shuffle

WIDTHS = {"deepseek-v3": 2048, "qwen3-235b": 1536, "mixtral-8x7b": 14336, "gpt-oss-120b": 2880}
ARTIFACTS = Path("build/moe_layer")
HIDE_LAUNCH_CYCLES = 1_500_000  # the GPU is kept busy while the host enqueues a measured call
TOLERANCE = 2e-2
"""Of the norm, for bf16 against f32."""


@dataclass(frozen=True)
class Case:
    shape: str
    num_layers: int

    @staticmethod
    def parse(text: str) -> Case:
        shape, _, num_layers = text.partition(":")
        if shape not in WIDTHS:
            raise argparse.ArgumentTypeError(f"{shape} is none of {', '.join(WIDTHS)}")
        return Case(shape, int(num_layers or 1))

    @property
    def sizes(self) -> Sizes:
        model = SHAPES[self.shape]
        return Sizes(model.hidden, model.experts, model.topk, WIDTHS[self.shape])


def artifact(shape: str) -> Path:
    """The compiled shuffle of a model, its rows without padding; compiles it if it is not there."""
    path = ARTIFACTS / shape
    if not path.exists():
        import fuscoc

        fuscoc.compile(spec(replace(SHAPES[shape], align=1)), path)
    return path


class Mark(torch.autograd.Function):
    """A tensor as it is; an event where it passes, forward and backward."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, events: list[torch.cuda.Event]) -> Tensor:
        ctx.events = events
        _record(events)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        _record(ctx.events)
        return gradient, None


def _record(events: list[torch.cuda.Event]) -> None:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    events.append(event)


class Timed:
    """A shuffle, with events before and after each of its calls, forward and backward."""

    def __init__(self, shuffle: Any) -> None:
        self.shuffle = shuffle
        self.events: list[torch.cuda.Event] = []

    def dispatch(self, x: Tensor, **inputs: Tensor) -> tuple[Tensor, Any]:
        rows, handle = self.shuffle.dispatch(Mark.apply(x, self.events), **inputs)
        return Mark.apply(rows, self.events), handle

    def combine(self, rows: Tensor, handle: Any) -> Tensor:
        return Mark.apply(self.shuffle.combine(Mark.apply(rows, self.events), handle), self.events)

    def milliseconds(self) -> float:
        """GPU time of the calls since the last time this was asked; waits for them."""
        torch.cuda.synchronize()
        begins, ends = self.events[::2], self.events[1::2]
        self.events.clear()
        return sum(begin.elapsed_time(end) for begin, end in zip(begins, ends, strict=True))


class Stack(nn.Module):
    """Layers one after the other; this rank's part of them."""

    def __init__(self, case: Case, device: torch.device) -> None:
        super().__init__()
        sizes, local = case.sizes, case.sizes.experts // dist.get_world_size()
        torch.manual_seed(dist.get_rank())
        torch.set_default_dtype(torch.bfloat16)
        with device:
            layers = [MoeLayer(sizes, local, None) for _ in range(case.num_layers)]
        torch.set_default_dtype(torch.float32)
        self.layers = nn.ModuleList(layers)
        for layer in layers:
            for parameter in layer.router.parameters():
                dist.broadcast(parameter.data, 0)

    def use(self, shuffle: Any) -> None:
        for layer in self.layers:
            layer.shuffle = shuffle

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x, _ = layer(x)
        return x


def train(stack: Stack, x: Tensor, gradient: Tensor) -> None:
    stack.zero_grad()
    stack(x.detach().requires_grad_()).backward(gradient)


def prefill(stack: Stack, x: Tensor, gradient: Tensor) -> None:
    with torch.no_grad():
        stack(x)


MODES: dict[str, Callable[[Stack, Tensor, Tensor], None]] = {"train": train, "prefill": prefill}


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
    generator = torch.Generator("cuda").manual_seed(77 + dist.get_rank())
    shape = (num_tokens, layer.sizes.hidden)
    x, gradient = (
        torch.randn(shape, device="cuda", generator=generator).bfloat16() for _ in range(2)
    )
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


def run_case(case: Case, options: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    sizes, num_tokens = case.sizes, options.tokens
    ours = Shuffle(
        artifact(case.shape),
        max_sources=num_tokens,
        capacity=int(options.room * num_tokens * sizes.topk),
        num_handles=case.num_layers + 1,
    )
    shuffles = {
        f"fuscoc {ours.backend}": Timed(ours),
        "NCCL, rank-deduplicated": Timed(NcclDeduplicated(sizes.experts)),
        "NCCL, naive": Timed(NcclNaive(sizes.experts)),
    }
    stack = Stack(case, device)
    wrong = verify(stack, shuffles, options.verified_tokens)
    shape = (num_tokens, sizes.hidden)
    generator = torch.Generator(device).manual_seed(dist.get_rank())
    x, gradient = (
        torch.randn(shape, device=device, generator=generator).bfloat16() for _ in range(2)
    )
    report = []
    for mode in options.mode:
        measure(stack, shuffles, mode, x, gradient, 2)
        measured = measure(stack, shuffles, mode, x, gradient, options.iterations)
        for name, times in measured.items():
            setting = {"shape": case.shape, "layers": case.num_layers, "num_tokens": num_tokens}
            found = {"contender": name, **summarise(times), "wrong": wrong[name]}
            report.append({**setting, "mode": mode, **found})
    ours.check()
    return report


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
    if dist.get_rank() == 0 and options.json:
        setup = {
            "gpu": torch.cuda.get_device_name(), "ranks": dist.get_world_size(),
            "torch": torch.__version__, "python": platform.python_version(),
        }  # fmt: skip
        options.json.write_text(json.dumps({"setup": setup, "results": report}, indent=2))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
