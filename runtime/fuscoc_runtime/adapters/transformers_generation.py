"""Generation with parallel experts: ranks end together, however many tokens each of them wants."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fuscoc_runtime.adapters.interface import Interface
from fuscoc_runtime.adapters.transformers_blocks import VERSION
from fuscoc_runtime.adapters.transformers_model import find_moe

GENERATION = Interface(
    "transformers",
    VERSION,
    "transformers.generation.utils",
    {
        "GenerationMixin.generate": (
            "inputs", "generation_config", "logits_processor", "stopping_criteria",
            "prefix_allowed_tokens_fn", "synced_gpus", "assistant_model", "streamer",
            "negative_prompt_ids", "negative_prompt_attention_mask", "custom_generate", "kwargs",
        ),
        "GenerationMixin.generate_batch": None,
        "GenerationMixin._has_unfinished_sequences": (
            "this_peer_finished", "synced_gpus", "device",
        ),
        "GenerationMixin._validate_generation_mode": (
            "generation_mode", "generation_config", "generation_mode_kwargs",
        ),
    },
)  # fmt: skip

STEPWISE = ("greedy_search", "sample", "beam_search", "beam_sample")
"""Kinds of generation whose every step is one forward pass, on every rank."""


class ParallelGeneration(nn.Module):
    """What a ``GenerationMixin`` does otherwise once its experts are spread over ranks."""

    def generate(self, *arguments: Any, **options: Any) -> Any:
        """As the model does; collective. A rank whose sequences have ended makes the passes of the
        others, until those of all ranks have. Passes with a static cache, which transformers
        compiles on GPUs, are only compiled with ``disable_compile=False``.

        Raises:
            AdapterError: the ranks might make different numbers of forward passes.
        """
        if options.setdefault("synced_gpus", True) is False:
            raise GENERATION.problem(
                "generate: synced_gpus=False would leave ranks that go on alone"
            )
        for name in ("assistant_model", "custom_generate"):
            if options.get(name) is not None:
                raise GENERATION.problem(f"generate: {name} may take other steps on other ranks")
        if options.get("cache_implementation") == "paged":
            self.generate_batch()
        options["synced_gpus"] = True
        options.setdefault("disable_compile", True)
        return super().generate(*arguments, **options)  # type: ignore[misc]

    def generate_batch(self, *_: Any, **__: Any) -> Any:
        """Refused: its scheduler decides on each rank what a forward pass holds, and when."""
        raise GENERATION.problem("continuous batching takes other steps on other ranks")

    def _validate_generation_mode(self, mode: Any, config: Any, options: Any) -> None:
        if mode.value not in STEPWISE:
            raise GENERATION.problem(f"generate: {mode.value} may take other steps on other ranks")
        if config.prefill_chunk_size is not None:
            raise GENERATION.problem(
                "generate: prefill_chunk_size takes as many passes as a rank's prompts are long"
            )
        if config.guidance_scale not in (None, 1):
            raise GENERATION.problem("generate: guidance_scale takes a second pass a step")
        super()._validate_generation_mode(mode, config, options)  # type: ignore[misc]

    def _has_unfinished_sequences(
        self, this_peer_finished: bool, synced_gpus: bool, device: torch.device
    ) -> bool:
        """Whether this rank has sequences that have not ended; if not, after those of all ranks.

        Until then it makes the passes of the others with a token of its own and no cache: caches
        may have no room for more, and may be returned.
        """
        while self._any_rank(not this_peer_finished) and this_peer_finished:
            self(input_ids=torch.zeros(1, 1, dtype=torch.long, device=device), use_cache=False)
        return not this_peer_finished

    def _any_rank(self, going_on: bool) -> bool:
        members = find_moe(self).engine.members
        anybody = torch.tensor(going_on, dtype=torch.int32, device=members.device)
        if members.group is not None:
            dist.all_reduce(anybody, dist.ReduceOp.MAX, group=members.group)
        return bool(anybody.item())
