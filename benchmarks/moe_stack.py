"""Stacks of mixture-of-experts layers, and what times the shuffles in them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.moe_cases import SHAPES, spec
from examples.moe_layer import MoeLayer, Sizes

WIDTHS = {"deepseek-v3": 2048, "qwen3-235b": 1536, "mixtral-8x7b": 14336, "gpt-oss-120b": 2880}
ARTIFACTS = Path("build/moe_layer")


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

    def __init__(self, sizes: Sizes, num_layers: int, device: torch.device) -> None:
        super().__init__()
        local = sizes.experts // dist.get_world_size()
        torch.manual_seed(dist.get_rank())
        torch.set_default_dtype(torch.bfloat16)
        with device:
            layers = [MoeLayer(sizes, local, None) for _ in range(num_layers)]
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


def peak_bytes() -> int:
    """The most memory of this GPU in use at once: tensors, and all that is not PyTorch's."""
    available, total = torch.cuda.mem_get_info()
    others = total - available - torch.cuda.memory_reserved()
    return others + torch.cuda.max_memory_allocated()
