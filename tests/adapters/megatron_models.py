"""A whole ``GPTModel`` of Megatron-Core on one rank, with its own dispatcher and with fuscoc's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from fuscoc.torch import megatron_dispatchers
from fuscoc_runtime.errors import AdapterError
from tests.adapters.megatron_layers import EXPERTS, HIDDEN, TIMEOUT, TOPK, WIDTH, Layout, on_cpu
from tests.adapters.ranks import device_of

VOCABULARY, LENGTH, SEQUENCES, RATE = 32, 8, 2, 0.1


@contextmanager
def megatron_for(layout: Layout, device: torch.device) -> Iterator[None]:
    """Megatron's process groups for all ranks, and what it needs besides, also without a GPU."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import moe_utils

    instead = {
        "_get_cuda_rng_state": lambda **_: None,
        "_set_cuda_rng_state": lambda *_, **__: None,
    }

    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor,
        expert_tensor_parallel_size=layout.tensor,
        expert_model_parallel_size=layout.expert,
    )
    try:
        with (
            on_cpu() if device.type == "cpu" else nullcontext(),
            mock.patch.multiple(random, **instead),
            mock.patch.object(random.CudaRNGStatesTracker, "fork", nullcontext),
            # Without Transformer Engine the router reads a name that nobody has defined.
            mock.patch.object(moe_utils, "te_general_gemm", None, create=True),
        ):
            yield
    finally:
        parallel_state.destroy_model_parallel()


def build(layout: Layout, settings: Mapping[str, Any]) -> Any:
    """The same weights every time; of tensor-parallel parts and experts, each rank's own."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        **{
            "num_layers": 3, "moe_layer_freq": [0, 1, 1], "hidden_size": HIDDEN,
            "num_attention_heads": 4, "num_moe_experts": EXPERTS, "moe_router_topk": TOPK,
            "moe_ffn_hidden_size": WIDTH, "moe_shared_expert_intermediate_size": WIDTH,
            "tensor_model_parallel_size": layout.tensor, "sequence_parallel": layout.tensor > 1,
            "expert_tensor_parallel_size": layout.tensor,
            "expert_model_parallel_size": layout.expert, "moe_token_dispatcher_type": "alltoall",
            "moe_aux_loss_coeff": 0.01, "moe_z_loss_coeff": 0.001, "add_bias_linear": False,
            "attention_dropout": 0.0, "hidden_dropout": 0.0, "use_cpu_initialization": True,
            "bias_dropout_fusion": False, **settings,
        }
    )  # fmt: skip
    torch.manual_seed(0)
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    return GPTModel(config, spec, vocab_size=VOCABULARY, max_sequence_length=LENGTH)


def train(
    group: Any, layout: Layout, settings: Mapping[str, Any], options: Mapping[str, Any], steps: int
) -> list[str]:
    """What differs of losses, gradients and weights after ``steps`` steps on this rank's batches,
    between the dispatchers; nothing differs by more than rounding, 1e-5."""
    device = device_of(group)
    with megatron_for(layout, device):
        theirs, ours = (build(layout, settings).to(device) for _ in range(2))
        megatron_dispatchers(ours, timeout=TIMEOUT, **options)
        assert {each.waits for each in dispatchers(ours)} == {"max_sources" not in options}
        wrong = []
        for step in range(steps):
            want, got = (one_step(model, step, layout, device) for model in (theirs, ours))
            assert want.keys() == got.keys()
            wrong += [
                f"step {step}: {name} is off by {float((got[name] - want[name]).abs().max()):.1e}"
                for name in want
                if not torch.allclose(got[name], want[name], atol=1e-5)
            ]
    return wrong


def dispatchers(model: Any) -> list[Any]:
    """Those of all layers with experts."""
    return [each.token_dispatcher for each in moe_layers(model)]


def moe_layers(model: Any) -> list[Any]:
    from megatron.core.transformer.moe.moe_layer import MoELayer

    return [each for each in model.modules() if isinstance(each, MoELayer)]


def batch(step: int, layout: Layout, device: torch.device) -> tuple[Tensor, ...]:
    """Tokens, their places, what they must not see, and the tokens that follow."""
    torch.manual_seed(100 * step + dist.get_rank() // layout.tensor)
    tokens = torch.randint(0, VOCABULARY, (SEQUENCES, LENGTH + 1)).to(device)
    places = torch.arange(LENGTH, device=device).repeat(SEQUENCES, 1)
    later = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool, device=device).triu(1)
    return tokens[:, :-1].contiguous(), places, later, tokens[:, 1:].contiguous()


def one_step(model: Any, step: int, layout: Layout, device: torch.device) -> dict[str, Tensor]:
    """The loss of every token, gradients, and weights after a step of plain descent."""
    *given, labels = batch(step, layout, device)
    losses = model(*given, labels=labels)
    losses.mean().backward()
    found = {"losses": losses.detach()}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            found[f"gradient of {name}"] = weight.grad
            weight -= RATE * weight.grad
            found[name] = weight.clone()
            weight.grad = None
    return found


def refused(group: Any, setting: Mapping[str, Any]) -> str:
    """Why a model of these settings keeps its own dispatchers."""
    layout = Layout(1, dist.get_world_size(group))
    with megatron_for(layout, torch.device("cpu")):
        model = build(layout, {})
        before = dispatchers(model)
        for name, value in setting.items():  # unchecked by Megatron
            setattr(before[-1].config, name, value)
        try:
            megatron_dispatchers(model)
        except AdapterError as error:
            assert dispatchers(model) == before
            return str(error)
    return "nothing was refused"
