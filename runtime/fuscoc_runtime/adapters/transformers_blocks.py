"""Which experts of Hugging Face transformers the adapter knows, and what it refuses by name.

A class of experts is known when a test has compared it with the unmodified model. All others are
refused: a block left as it is would make every rank compute all of its experts.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fuscoc_runtime.adapters.interface import Interface
from fuscoc_runtime.adapters.moe import Sizes

VERSION = "5.23.0"

EXPERTS = Interface(
    "transformers", VERSION, "transformers.integrations.moe", {"use_experts_implementation": None}
)
DECORATED = frozenset(
    (
        "experts_class", "experts_interface", "is_concatenated", "is_transposed", "has_bias",
        "has_gate", "has_post_expert_norm",
    ),
)  # fmt: skip
"""What a class of experts can be decorated with, in any release since 5.17; a release may know more
kinds of experts than these, and then they would be taken for others."""

MODELING = Interface(
    "transformers",
    VERSION,
    "transformers.modeling_utils",
    {
        "PreTrainedModel.save_pretrained": (
            "save_directory", "is_main_process", "state_dict", "push_to_hub", "max_shard_size",
            "variant", "token", "save_peft_format", "save_original_format",
            "distributed_checkpoint", "kwargs",
        ),
    },
)  # fmt: skip


@dataclass(frozen=True)
class Known:
    """A class of experts, its module, and how its parameters lie.

    Attributes:
        is_transposed: weights are [experts, in, out], else [experts, out, in].
        has_bias: every weight has a bias, [experts, out].
    """

    module: str
    name: str
    is_transposed: bool = False
    has_bias: bool = False

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of all parameters."""
        names = ("gate_up_proj", "down_proj")
        return (*names, *(f"{name}_bias" for name in names)) if self.has_bias else names


KNOWN = (
    Known("transformers.models.mixtral.modeling_mixtral", "MixtralExperts"),
    Known("transformers.models.qwen3_moe.modeling_qwen3_moe", "Qwen3MoeExperts"),
    Known("transformers.models.deepseek_v3.modeling_deepseek_v3", "DeepseekV3Experts"),
    Known("transformers.models.gpt_oss.modeling_gpt_oss", "GptOssExperts", True, True),
)

FLOATS = (torch.bfloat16, torch.float16, torch.float32)

BLOCK = re.compile(r"(Experts?|Mo[eE](Block|Layer)?)$")
"""How transformers calls modules that are, or hold, experts."""


def find_experts(model: Any) -> dict[str, tuple[Any, Sizes]]:
    """The experts of a ``PreTrainedModel`` by name, in its order, with their sizes.

    Raises:
        AdapterError: transformers is missing or has changed; or the model, or some part of it,
            cannot be spread over ranks.
    """
    decorator = EXPERTS.load().use_experts_implementation
    if unknown := inspect.signature(decorator).parameters.keys() - DECORATED:
        raise EXPERTS.problem(f"use_experts_implementation takes {', '.join(sorted(unknown))}, too")
    base = MODELING.load().PreTrainedModel
    if not isinstance(model, base):
        raise EXPERTS.problem(f"{type(model).__name__} is no PreTrainedModel of transformers")
    for problem in _parallel_or_quantised(model):
        raise EXPERTS.problem(f"{type(model).__name__} {problem}")
    found = {name: module for name, module in model.named_modules() if _known(module)}
    for name, module in model.named_modules():
        holds = any(each == name or each.startswith(f"{name}.") for each in found)
        inside = any(name.startswith(f"{each}.") for each in found)
        if _looks_like_experts(name, module) and not holds and not inside:
            known = ", ".join(each.name for each in KNOWN)
            raise EXPERTS.problem(f"{type(module).__name__} (`{name}`) is none of {known}")
    if not found:
        raise EXPERTS.problem(f"{type(model).__name__} has no experts")
    _refuse_shared(model, found)
    return {name: (module, _sizes(name, module)) for name, module in found.items()}


def _known(module: nn.Module) -> Known | None:
    kind = type(module)
    fits = (each for each in KNOWN if (each.module, each.name) == (kind.__module__, kind.__name__))
    return next(fits, None)


def _looks_like_experts(name: str, module: nn.Module) -> bool:
    last = name.rpartition(".")[2]
    decorated = hasattr(module, "_is_expert_parallel")
    return decorated or last == "experts" or bool(BLOCK.search(type(module).__name__))


def _parallel_or_quantised(model: Any) -> Iterator[str]:
    config = model.config
    if getattr(model, "hf_quantizer", None) is not None or getattr(
        config, "quantization_config", None
    ):
        yield "is quantised: experts have to be of floats"
    if getattr(model, "_tp_size", None) or getattr(config, "distributed_config", None):
        yield "is spread over ranks by transformers itself"
    if len(set(getattr(model, "hf_device_map", {}).values())) > 1:
        yield "is spread over devices by its `device_map`"
    if getattr(model, "_use_kernels", False):
        yield "has kernels of the hub (`use_kernels`), which do not call the experts"


def _refuse_shared(model: nn.Module, found: dict[str, nn.Module]) -> None:
    """Weights that two modules share cannot be sharded for one of them."""
    seen: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        place = parameter.data_ptr()
        if place in seen and any(each.rpartition(".")[0] in found for each in (name, seen[place])):
            raise EXPERTS.problem(f"`{name}` is tied to `{seen[place]}`")
        if place:
            seen[place] = name


def _sizes(name: str, module: Any) -> Sizes:
    known = _known(module)
    assert known is not None
    flags = {
        "is_transposed": known.is_transposed, "has_bias": known.has_bias, "has_gate": True,
        "has_post_expert_norm": False, "_is_expert_parallel": False,
    }  # fmt: skip
    for flag, expected in flags.items():
        found = getattr(module, flag, False)  # the last two are not there in older releases
        if found != expected:
            raise EXPERTS.problem(f"`{name}` has {flag} = {found}")
    parameters = dict(module.named_parameters())
    if set(parameters) != set(known.weights):
        raise EXPERTS.problem(
            f"`{name}` has the parameters {', '.join(sorted(parameters))} and not "
            f"{', '.join(sorted(known.weights))}"
        )
    dtypes = {each.dtype for each in parameters.values()}
    for weight, parameter in parameters.items():
        plain = type(parameter) is nn.Parameter and not parameter.is_meta
        if not plain or len(dtypes) > 1 or parameter.dtype not in FLOATS:
            kind = f"{type(parameter).__name__} of {parameter.dtype} on {parameter.device}"
            raise EXPERTS.problem(
                f"`{name}.{weight}` is a {kind}; experts have to be plain parameters of one float "
                "of 16 or 32 bits, with their values"
            )
    down = parameters["down_proj"]
    hidden = down.shape[2] if known.is_transposed else down.shape[1]
    topk = module.config.num_experts_per_tok
    return Sizes(hidden, module.num_experts, topk, down.dtype)
