"""Hugging Face transformers: a model whose experts are spread over ranks.

Routers, shared experts and losses stay the model's. What lies between a router and the sum of the
experts' outputs is replaced: tokens go to the ranks of their experts, each expert works on the rows
that came for it, and combine weights and adds what comes back.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist
from torch import nn

from fuscoc_runtime.adapters.interface import specialise
from fuscoc_runtime.adapters.moe import MoeShuffle, Sizes
from fuscoc_runtime.adapters.transformers_blocks import EXPERTS, find_experts
from fuscoc_runtime.adapters.transformers_experts import ParallelExperts
from fuscoc_runtime.adapters.transformers_generation import GENERATION, ParallelGeneration
from fuscoc_runtime.adapters.transformers_model import (
    ParallelModel,
    clip_grad_norm_,
    whole_state_dict,
)
from fuscoc_runtime.adapters.transformers_replicas import Replicas
from fuscoc_runtime.comm.group import Group, process_group
from fuscoc_runtime.face.shuffle import Shuffle

__all__ = ["clip_grad_norm_", "expert_parallel", "whole_state_dict"]

Model = TypeVar("Model", bound=nn.Module)


def expert_parallel(
    model: Model,
    group: Group | None,
    replicas: Group | None,
    open_shuffle: Callable[[Sizes], Shuffle],
) -> Model:
    """``model`` itself, a ``PreTrainedModel`` that now keeps this rank's experts only.

    ``open_shuffle`` opens a shuffle of ``group`` like ``examples/moe.fsc``'s for layers of these
    sizes, which share it; it is collective. ``fuscoc.torch.expert_parallel`` says what the model
    then does.

    Raises:
        AdapterError: see ``find_experts``; or the ranks do not divide the experts. Nothing has been
            changed then.
    """
    if any(isinstance(module, ParallelExperts) for module in model.modules()):
        raise EXPERTS.problem(f"the experts of {type(model).__name__} are spread already")
    found, generation, num_ranks = find_experts(model), GENERATION.load(), _num_ranks(group)
    for name, (_, sizes) in found.items():
        if sizes.experts % num_ranks:
            raise EXPERTS.problem(
                f"the {sizes.experts} experts of `{name}` cannot be spread evenly over "
                f"{num_ranks} ranks"
            )
    distinct = dict.fromkeys(sizes for _, sizes in found.values())
    shuffles = {sizes: MoeShuffle(open_shuffle(sizes), "transformers") for sizes in distinct}
    same = Replicas(replicas, num_ranks)
    # DistributedDataParallel would make the experts of all ranks those of rank 0.
    ignored = [*getattr(model, "_ddp_params_and_buffers_to_ignore", ())]
    for name, (experts, sizes) in found.items():
        specialise(experts, ParallelExperts)
        experts.keep_own(shuffles[sizes], same)
        ignored += [f"{name}.{weight}" for weight, _ in experts.named_parameters()]
    specialise(model, ParallelModel)
    if isinstance(model, generation.GenerationMixin):
        specialise(model, ParallelGeneration)
    model._ddp_params_and_buffers_to_ignore = ignored  # type: ignore[assignment]
    return model


def _num_ranks(group: Group | None) -> int:
    """Ranks of ``group``, or of the job that opening a shuffle will join."""
    if dist.is_initialized():
        return dist.get_world_size(process_group(group))
    return int(os.environ["WORLD_SIZE"]) if "RANK" in os.environ else 1
