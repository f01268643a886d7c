"""The model around parallel experts: it is saved whole."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fuscoc_runtime.adapters.moe import MoeShuffle
from fuscoc_runtime.adapters.transformers_blocks import MODELING
from fuscoc_runtime.adapters.transformers_experts import ParallelExperts


class ParallelModel(nn.Module):
    """What a ``PreTrainedModel`` does otherwise once its experts are spread over ranks."""

    def save_pretrained(self, save_directory: Any, *arguments: Any, **options: Any) -> None:
        """The group's rank 0 writes the whole model, as the unmodified one would; collective.

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
        if find_moe(self).members.rank == 0:
            options |= {"state_dict": whole, "is_main_process": True}
            super().save_pretrained(save_directory, **options)  # type: ignore[misc]


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
