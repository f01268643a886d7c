"""Models of Megatron-Core on this rank's GPU: trained beside its own dispatcher, and with
``max_sources`` by layers and whole in CUDA graphs, where nothing waits for the host.

``python -m torch.distributed.run --nproc-per-node N -m tests.adapters.megatron_gpu_run``, with
Megatron-Core on the path; it needs neither Apex nor Transformer Engine.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from fuscoc.torch import megatron_dispatchers
from tests.adapters import megatron_models as models
from tests.adapters.megatron_layers import HIDDEN, TIMEOUT, Layout
from tests.adapters.ranks import device_of, far_apart

FIXED = {"max_sources": models.SEQUENCES * models.LENGTH}
BF16 = {"bf16": True, "params_dtype": torch.bfloat16, "masked_softmax_fusion": False}
GATED = {"gated_linear_unit": True, "activation_func": torch.nn.functional.silu}
REPLAYS = 4

Step = Callable[[], dict[str, Tensor]]
"""Forward and backward pass: what came of it, by name."""


def made(layout: Layout, device: torch.device) -> Any:
    model = models.build(layout, BF16 | GATED).to(device, torch.bfloat16)
    megatron_dispatchers(model, timeout=TIMEOUT, **FIXED)
    assert not any(each.waits for each in models.dispatchers(model))
    return model


def stepped(model: Any, x: Tensor | None, forward: Callable[[], Tensor]) -> Step:
    """``forward``, its gradients and those of ``x``."""

    def step() -> dict[str, Tensor]:
        model.zero_grad(set_to_none=True)
        if x is not None:
            x.grad = None
        y = forward()
        y.sum().backward()
        found = {name: weight.grad for name, weight in model.named_parameters()}
        found |= {"output": y.detach()} | ({} if x is None else {"input": x.grad})
        return {name: each for name, each in found.items() if each is not None}

    return step


def captured(step: Step, change: Callable[[int], None]) -> list[str]:
    """What differs between a step and a replay of its graph, after what ``change`` does."""
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    torch.cuda.synchronize()
    dist.barrier()
    graph, wrong = torch.cuda.CUDAGraph(), list[str]()
    with torch.cuda.graph(graph):
        found = step()
    for i in range(REPLAYS):
        change(i)
        graph.replay()
        replayed = {name: each.clone() for name, each in found.items()}
        wanted = step()
        wrong += far_apart({name: (each, wanted[name]) for name, each in replayed.items()})
    torch.cuda.synchronize()
    del graph
    return wrong


def layer(group: Any, layout: Layout, in_graph: bool) -> list[str]:
    """A layer with experts: forward and backward pass where every wait on the host is an error, or
    in a graph."""
    device = device_of(group)
    with models.megatron_for(layout, device):
        moe = models.moe_layers(made(layout, device))[0]
        shape = models.LENGTH, models.SEQUENCES, HIDDEN
        draw = torch.Generator().manual_seed(dist.get_rank(group))
        drawn = torch.randn(REPLAYS, *shape, generator=draw).to(device, torch.bfloat16)
        x = drawn[0].clone().requires_grad_()
        step = stepped(moe, x, lambda: moe(x)[0])
        if in_graph:

            def bring(number: int) -> None:
                x.data.copy_(drawn[number])

            return captured(step, bring)
        for _ in range(2):
            step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
    return []


def whole(group: Any, layout: Layout) -> list[str]:
    """A whole model, forward and backward pass, in one graph."""
    device = device_of(group)
    with models.megatron_for(layout, device):
        model = made(layout, device)
        given = models.batch(0, layout, device)

        def change(i: int) -> None:
            for mine, new in zip(given, models.batch(i, layout, device), strict=True):
                mine.copy_(new)

        *inputs, labels = given
        return captured(stepped(model, None, lambda: model(*inputs, labels=labels)), change)


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    group, is_wrong = dist.group.WORLD, False
    layout = Layout(1, dist.get_world_size())
    parts: dict[str, Callable[[], list[str]]] = {
        "a layer without a wait": partial(layer, group, layout, False),
        "a layer in a graph": partial(layer, group, layout, True),
        "a model in a graph": partial(whole, group, layout),
        "trained, of a fixed size": partial(models.train, group, layout, {}, FIXED, 3),
        "trained, of exact sizes": partial(models.train, group, layout, {}, {}, 3),
    }
    for name, part in parts.items():
        began = time.monotonic()
        try:
            with mock.patch.object(torch._dynamo.config, "disable", True):
                found = part()
        except Exception:
            print(f"rank {dist.get_rank()}: {name}", traceback.format_exc()[-3000:], flush=True)
            raise
        is_wrong |= bool(found)
        took = f"{len(found)} differ, {time.monotonic() - began:.0f} s"
        print(f"rank {dist.get_rank()}: {name}: {took}", *found[:8], sep="\n  ", flush=True)
    print("something differs" if is_wrong else "all hold", flush=True)
    dist.destroy_process_group()
    sys.exit(is_wrong)


if __name__ == "__main__":
    main()
