"""The model around parallel experts: what is saved of it, and the norm of its gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from fuscoc_runtime.adapters.moe import MoeShuffle
from fuscoc_runtime.adapters.transformers_blocks import MODELING
from fuscoc_runtime.adapters.transformers_experts import ParallelExperts


class ParallelModel(nn.Module):
    """What a ``PreTrainedModel`` does otherwise once its experts are spread over ranks."""

    def save_pretrained(self, save_directory: Any, *arguments: Any, **options: Any) -> None:
        """The group's rank 0 writes the whole model, as the unmodified one would; collective. Of
        replicas the first one does.

        ``is_main_process`` has no effect.

        Raises:
            AdapterError: a distributed checkpoint was asked for, or one of something else.
        """
        if options.get("distributed_checkpoint"):
            raise MODELING.problem("save_pretrained: distributed_checkpoint needs DTensors")
        if arguments or options.get("state_dict") is not None:
            raise MODELING.problem(
                "save_pretrained: it is the whole model that is saved; give no state_dict, and "
                "options by name"
            )
        whole = whole_state_dict(self)
        if whole and next(experts_of(self)).replicas.rank == 0:
            options |= {"state_dict": whole, "is_main_process": True}
            super().save_pretrained(save_directory, **options)  # type: ignore[misc]


def find_moe(model: nn.Module) -> MoeShuffle:
    """The shuffle of the first layer with experts."""
    return next(each.moe for each in experts_of(model))


def experts_of(model: nn.Module) -> Iterator[ParallelExperts]:
    """Those of every layer."""
    return (each for each in model.modules() if isinstance(each, ParallelExperts))


def whole_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The ``state_dict`` that the model would have with all experts, on the rank 0 of its group;
    empty on the others. Collective, one parameter at a time; experts are on the CPU.
    """
    whole: dict[str, Tensor] = model.state_dict()
    for prefix, module in model.named_modules():
        if isinstance(module, ParallelExperts):
            for name, parameter in module.named_parameters():
                gathered = module.gather(parameter)
                if gathered is not None:
                    whole[f"{prefix}.{name}"] = gathered
    return whole if find_moe(model).engine.members.rank == 0 else {}


def clip_grad_norm_(model: nn.Module, max_norm: float) -> Tensor:
    """Scale the gradients of all ranks so that the 2-norm of the whole model's is at most
    ``max_norm``; returns what it was, a scalar. Collective.

    ``torch.nn.utils.clip_grad_norm_`` takes a rank's experts for all of them: ranks would scale by
    different factors, and what they have in common would drift apart.
    """
    members = find_moe(model).engine.members
    own = dict.fromkeys(each for module in experts_of(model) for each in module.parameters())
    others = [each for each in model.parameters() if each not in own]
    squares = _norm(own).square().to(members.device)
    if members.group is not None:
        dist.all_reduce(squares, group=members.group)
    common = _norm(others)
    total = (squares.to(common.device) + common.square()).sqrt()
    clip_grads_with_norm_([*own, *others], max_norm, total)
    return total


def _norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """In f32, whatever the gradients are of."""
    gradients = (each.grad for each in parameters if each.grad is not None)
    norms = [torch.linalg.vector_norm(each, dtype=torch.float32) for each in gradients]
    return get_total_norm(norms)
