"""The model around parallel experts: it generates and is saved together with the other ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fuscoc_runtime.adapters.moe import MoeShuffle
from fuscoc_runtime.adapters.transformers_blocks import MODELING
from fuscoc_runtime.adapters.transformers_experts import ParallelExperts

STEPWISE = ("greedy_search", "sample", "beam_search", "beam_sample")
"""Kinds of generation whose every step is one forward pass, on every rank."""


class ParallelModel(nn.Module):
    """What a ``PreTrainedModel`` does otherwise once its experts are spread over ranks."""

    def generate(self, *arguments: Any, **options: Any) -> Any:
        """As the model does; collective. A rank whose sequences have ended goes on, without adding
        tokens, until those of all ranks have.

        Raises:
            AdapterError: the ranks might make different numbers of forward passes.
        """
        if options.setdefault("synced_gpus", True) is False:
            raise MODELING.problem("generate: synced_gpus=False would leave ranks that go on alone")
        for name in ("assistant_model", "custom_generate"):
            if options.get(name) is not None:
                raise MODELING.problem(f"generate: {name} may take other steps on other ranks")
        if options.get("cache_implementation") == "paged":
            self.generate_batch()
        options["synced_gpus"] = True
        return super().generate(*arguments, **options)  # type: ignore[misc]

    def generate_batch(self, *_: Any, **__: Any) -> Any:
        """Refused: its scheduler decides on each rank what a forward pass holds, and when."""
        raise MODELING.problem("continuous batching takes other steps on other ranks")

    def save_pretrained(self, save_directory: Any, *arguments: Any, **options: Any) -> Any:
        """Rank 0 writes the whole model, as it was before it was spread; collective.

        Raises:
            AdapterError: a distributed checkpoint was asked for.
        """
        if options.get("distributed_checkpoint"):
            raise MODELING.problem("save_pretrained: distributed_checkpoint needs DTensors")
        if arguments or options.get("state_dict") is not None:
            raise MODELING.problem(
                "save_pretrained: which rank writes, and what, is decided: give the other options "
                "by name"
            )
        whole = whole_state_dict(self)
        if find_moe(self).members.rank == 0:
            options |= {"state_dict": whole, "is_main_process": True}
            super().save_pretrained(save_directory, **options)  # type: ignore[misc]

    def _validate_generation_mode(self, mode: Any, config: Any, options: Any) -> None:
        if mode.value not in STEPWISE:
            raise MODELING.problem(f"generate: {mode.value} may take other steps on other ranks")
        if config.prefill_chunk_size is not None:
            raise MODELING.problem(
                "generate: prefill_chunk_size takes as many passes as a rank's prompts are long"
            )
        super()._validate_generation_mode(mode, config, options)  # type: ignore[misc]

    def _has_unfinished_sequences(
        self, this_peer_finished: bool, synced_gpus: bool, device: torch.device
    ) -> bool:
        """Whether any rank of the experts' group has sequences that have not ended."""
        members = find_moe(self).members
        going_on = torch.tensor(not this_peer_finished, dtype=torch.int32, device=members.device)
        if members.group is not None:
            dist.all_reduce(going_on, dist.ReduceOp.MAX, group=members.group)
        return bool(going_on.item())


def find_moe(model: nn.Module) -> MoeShuffle:
    """The shuffle of the first layer with experts."""
    return next(each.moe for each in model.modules() if isinstance(each, ParallelExperts))


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
    return whole if find_moe(model).members.rank == 0 else {}
