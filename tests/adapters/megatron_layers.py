"""One expert layer between Megatron-Core's own all-to-all dispatcher, or fuscoc's, on one rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fuscoc_runtime.adapters import megatron
from fuscoc_runtime.face.shuffle import Shuffle

TIMEOUT = 60.0
EXPERTS, TOPK, HIDDEN, WIDTH = 8, 2, 24, 16


@dataclass(frozen=True)
class Layout:
    """Expert tensor parallelism inside expert parallelism; ranks of one expert are neighbours."""

    tensor: int
    expert: int

    def groups(self) -> SimpleNamespace:
        """Megatron's process groups of this rank; collective over all ranks."""
        rank, size = dist.get_rank(), self.tensor * self.expert
        tensor = [list(range(i, i + self.tensor)) for i in range(0, size, self.tensor)]
        expert = [list(range(i, size, self.tensor)) for i in range(self.tensor)]
        found = {"tp_ep": dist.new_group(list(range(size)))}
        for name, groups in (("expt_tp", tensor), ("ep", expert)):
            for ranks in groups:
                group = dist.new_group(ranks)
                if rank in ranks:
                    found[name] = group
        return SimpleNamespace(**found)


@contextmanager
def on_cpu() -> Iterator[None]:
    """Megatron asks for CUDA streams and devices even where it has nothing to put on them."""
    event = SimpleNamespace(synchronize=lambda: None)
    stream = SimpleNamespace(wait_stream=lambda other: None, record_event=lambda: event)
    instead = {
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda entered: nullcontext(),
        "current_device": lambda: torch.device("cpu"),
    }
    from megatron.core.transformer.moe import token_dispatcher

    def on_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and isinstance(tensor, Tensor) else tensor

    with (
        mock.patch.multiple(torch.cuda, **instead),
        mock.patch.object(token_dispatcher, "maybe_move_tensor_to_cpu", on_host),
        mock.patch.object(torch._dynamo.config, "disable", True),
    ):
        yield


def configuration(layout: Layout, **settings: Any) -> Any:
    from megatron.core.transformer.transformer_config import TransformerConfig

    return TransformerConfig(
        num_layers=1, hidden_size=HIDDEN, num_attention_heads=4, num_moe_experts=EXPERTS,
        moe_router_topk=TOPK, expert_model_parallel_size=layout.expert,
        expert_tensor_parallel_size=layout.tensor, moe_token_dispatcher_type="alltoall",
        use_cpu_initialization=True, add_bias_linear=False, **settings,
    )  # fmt: skip


def compare(
    group: Any,
    artifact: str,
    layout: Layout,
    num_tokens: int,
    keep: float,
    fixed: bool,
    recompute: bool = False,
) -> list[str]:
    """What differs between the dispatchers: the output, and the gradients of tokens, probabilities
    and experts. ``keep``: share of the routed points that are not dropped. ``fixed``: whether
    fuscoc's rows have a fixed capacity. ``recompute``: whether the backward pass calls fuscoc's
    dispatcher once more, as of a layer that is recomputed; else experts of a fixed capacity are
    given all of it, and the host would not wait on a GPU."""
    with on_cpu():
        from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

        groups = layout.groups()
        # Dropped points make the sizes irregular, which Megatron has to be told.
        config = configuration(layout, moe_expert_capacity_factor=None if keep == 1 else 1.0)
        num_local = EXPERTS // layout.expert
        first = dist.get_rank(groups.ep) * num_local
        indices = list(range(first, first + num_local))
        most = num_tokens if fixed else None
        shuffle = Shuffle(artifact, group=groups.tp_ep, timeout=TIMEOUT, max_sources=most)
        theirs = MoEAlltoAllTokenDispatcher(num_local, indices, config, groups)
        experts = torch.nn.Module() if fixed and not recompute else None
        with experts_that_take_all_rows():
            ours = megatron.token_dispatcher(shuffle, num_local, indices, config, groups, experts)
        want = run(theirs, groups, layout, num_tokens, keep)
        got = run(ours, groups, layout, num_tokens, keep, recompute)
    return [
        f"{name} is off by {float((got[name] - want[name]).abs().max()):.1e}"
        for name in want
        if not torch.allclose(got[name], want[name], atol=1e-5)
    ]


def experts_that_take_all_rows() -> Any:
    """Any are taken for such, and stay what they are."""
    known = {"can_stay_on_device": lambda _: True, "keep_on_device": lambda _: None}
    return mock.patch.multiple(megatron, **known)


def run(
    dispatcher: Any,
    groups: Any,
    layout: Layout,
    num_tokens: int,
    keep: float,
    recompute: bool = False,
) -> dict[str, Tensor]:
    torch.manual_seed(dist.get_rank())
    hidden = torch.randn(num_tokens, 1, HIDDEN, requires_grad=True)
    # Gloo gathers equal sizes only, so tensor-parallel ranks choose the same experts.
    torch.manual_seed(dist.get_rank(groups.ep))
    scores, chosen = torch.randn(num_tokens, EXPERTS).softmax(-1).topk(TOPK)
    kept = torch.rand(chosen.shape) < keep
    routing = torch.zeros(num_tokens, EXPERTS, dtype=torch.bool).scatter(1, chosen, kept)
    probs = torch.zeros(num_tokens, EXPERTS).scatter(1, chosen, scores * kept).requires_grad_()
    gradient = torch.randn(num_tokens, 1, HIDDEN)
    parameters = expert_parameters(groups, layout)

    def layer(hidden: Tensor, probs: Tensor) -> Any:
        rows, row_probs = dispatcher.dispatch_preprocess(hidden, routing, probs)
        rows, row_probs = dispatcher.token_dispatch(rows, row_probs)
        rows, counts, row_probs = dispatcher.dispatch_postprocess(rows, row_probs)
        sizes = counts.tolist()
        sizes.append(len(rows) - sum(sizes))  # of no expert
        *mine, others = zip(rows.split(sizes), row_probs.split(sizes), strict=True)
        parts = []
        for (x, gate), up, down in zip(mine, *parameters, strict=True):
            inner = torch.nn.functional.silu(x @ up) * gate.unsqueeze(-1)
            parts.append(inner @ down)
        parts.append(torch.full_like(others[0], torch.nan))
        output = dispatcher.combine_preprocess(torch.cat(parts))
        return dispatcher.combine_postprocess(dispatcher.token_combine(output))

    if recompute:
        output: Any = checkpoint(layer, hidden, probs, use_reentrant=True)
    else:
        output = layer(hidden, probs)
    output.backward(gradient)
    return {
        "output": output.detach(),
        "gradient of tokens": hidden.grad,
        "gradient of probabilities": probs.grad * routing,
        **{f"gradient of weight {i}": weight.grad for i, weight in enumerate(parameters)},
    }


def expert_parameters(groups: Any, layout: Layout) -> list[Tensor]:
    """This rank's experts, and its part of their width."""
    torch.manual_seed(99)
    up, down = torch.randn(EXPERTS, HIDDEN, WIDTH), torch.randn(EXPERTS, WIDTH, HIDDEN)
    experts, width = EXPERTS // layout.expert, WIDTH // layout.tensor
    first = dist.get_rank(groups.ep) * experts
    column = dist.get_rank(groups.expt_tp) * width
    mine, part = slice(first, first + experts), slice(column, column + width)
    return [each.clone().requires_grad_() for each in (up[mine, :, part], down[mine, part])]


def make(group: Any, artifact: str, settings: dict[str, Any]) -> None:
    """A dispatcher for a layer of these settings."""
    with on_cpu():
        layout = Layout(1, dist.get_world_size(group))
        groups = layout.groups()
        config = configuration(layout)
        for name, value in settings.items():  # unchecked by Megatron
            setattr(config, name, value)
        shuffle = Shuffle(artifact, group=group, timeout=TIMEOUT)
        megatron.token_dispatcher(shuffle, EXPERTS // layout.expert, [], config, groups)
