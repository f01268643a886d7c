"""What parallel experts of transformers refuse, by name and before anything is changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fuscoc.torch import expert_parallel
from fuscoc_runtime.errors import AdapterError
from tests.adapters.by_day import IN_SUITE, nightly_but
from tests.adapters.transformers_models import COMMON, build, prompts

pytestmark = pytest.mark.usefixtures("transformers")


@pytest.fixture(scope="module")
def spread() -> Any:
    """A model with parallel experts on one rank, which has all of them."""
    return expert_parallel(build("Mixtral"))


def changed(change: Callable[[Any], None]) -> Any:
    model = build("Mixtral")
    change(model)
    return model


def tie(model: Any) -> None:
    first, second = (layer.mlp.experts for layer in model.model.layers)
    second.down_proj = first.down_proj


def of_two_dtypes(model: Any) -> None:
    experts = model.model.layers[0].mlp.experts
    experts.down_proj = nn.Parameter(experts.down_proj.bfloat16())


def of_integers(model: Any) -> None:
    for layer in model.model.layers:
        for name, weight in layer.mlp.experts.named_parameters():
            setattr(layer.mlp.experts, name, nn.Parameter(weight.to(torch.int8), False))


def of_older_modules(model: Any) -> None:
    model.model.layers[1].mlp = nn.ModuleDict({"experts": nn.ModuleList()})


def quantised(model: Any) -> None:
    model.config.quantization_config = {"quant_method": "mxfp4"}


def low_rank(model: Any) -> None:
    model.model.layers[0].mlp.experts.register_parameter("lora", nn.Parameter(torch.zeros(1)))


def other_layout(model: Any) -> None:
    model.model.layers[0].mlp.experts.is_transposed = True


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (tie, r"layers\.1\.mlp\.experts\.down_proj` is tied to `model\.layers\.0"),
        (of_two_dtypes, "of torch.float32 .*plain parameters of one float"),
        (of_integers, r"gate_up_proj` is a Parameter of torch\.int8"),
        (of_older_modules, r"ModuleList \(`model\.layers\.1\.mlp\.experts`\) is none of Mixtral"),
        (quantised, "MixtralForCausalLM is quantised"),
        (low_rank, "has the parameters .*lora"),
        (other_layout, "has is_transposed = True"),
        (lambda model: model.to("meta"), "on meta"),
        (lambda model: setattr(model, "_use_kernels", True), "use_kernels"),
    ],
)
def test_models_that_cannot_be_spread(change: Callable[[Any], None], said: str) -> None:
    model = changed(change)
    before = {name: type(module) for name, module in model.named_modules()}
    with pytest.raises(AdapterError, match=said):
        expert_parallel(model)
    assert {name: type(module) for name, module in model.named_modules()} == before


def test_a_model_of_unknown_experts(transformers: Any) -> None:
    """Named, not left as it is."""
    config = transformers.Qwen2MoeConfig(
        **COMMON, num_experts=8, intermediate_size=48, moe_intermediate_size=24,
        shared_expert_intermediate_size=24,
    )  # fmt: skip
    model = transformers.Qwen2MoeForCausalLM(config)
    with pytest.raises(AdapterError, match=r"Qwen2Moe\w+ \(`model\.layers\.0\.mlp.*is none of"):
        expert_parallel(model)


def test_what_has_no_experts(transformers: Any) -> None:
    dense = transformers.MixtralConfig(**COMMON)
    with pytest.raises(AdapterError, match="Linear is no PreTrainedModel"):
        expert_parallel(nn.Linear(2, 2))
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**COMMON))
    assert dense.num_local_experts
    with pytest.raises(AdapterError, match="LlamaForCausalLM has no experts"):
        expert_parallel(llama)


def test_twice(spread: Any) -> None:
    with pytest.raises(AdapterError, match="spread already"):
        expert_parallel(spread)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"synced_gpus": False}, "synced_gpus=False"),
        ({"assistant_model": object()}, "assistant_model"),
        ({"custom_generate": lambda *_, **__: None}, "custom_generate"),
        ({"cache_implementation": "paged"}, "continuous batching"),
        ({"prompt_lookup_num_tokens": 2}, "assisted_generation"),
        ({"prefill_chunk_size": 2}, "prefill_chunk_size"),
        ({"guidance_scale": 1.5}, "guidance_scale"),
    ],
)
def test_generation_of_different_steps(spread: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(AdapterError, match=said):
        spread.generate(**prompts(0), **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"distributed_checkpoint": True}, "distributed_checkpoint"),
        ({"state_dict": {}}, "give no state_dict"),
    ],
)
def test_other_ways_to_save(
    spread: Any, options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(AdapterError, match=said):
        spread.save_pretrained(tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_a_model_that_is_converted_too_late(spread: Any) -> None:
    model = copy.deepcopy(spread).bfloat16()
    with pytest.raises(AdapterError, match=r"gate_up_proj of MixtralExperts has become torch\.bf"):
        model(**prompts(0))


@pytest.mark.parametrize("name", nightly_but(IN_SUITE))
def test_one_rank(name: str) -> None:
    """Without a job; also a copy of the model."""
    model = expert_parallel(build(name))
    wanted = build(name)(**prompts(2)).logits
    for each in (model, copy.deepcopy(model)):
        torch.testing.assert_close(each(**prompts(2)).logits, wanted, rtol=1e-5, atol=1e-5)
    assert type(model).__name__ == f"{name}ForCausalLM"
    assert "experts 0 to 7 of 8" in repr(model)
