"""What a ``MoELayer`` of Megatron-Core calls between its router, its experts and their sum."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuscoc_runtime.adapters.moe import MoeShuffle


class Dispatcher:
    """``MoETokenDispatcher`` on a shuffle. One batch is between dispatch and combine at a time.

    Attributes:
        waits: whether the experts split rows on the host, which then waits for their numbers; else
            rows have a fixed capacity.

    The shuffle's experts are the parts of the layer's: expert tensor parallelism of size n makes n
    parts, on neighbouring ranks, every token goes to all of them, and what they return adds up.
    """

    tp_size: int

    def __init__(
        self,
        moe: MoeShuffle,
        waits: bool,
        num_local_experts: int,
        local_expert_indices: list[int],
        config: Any,
        pg_collection: Any,
    ) -> None:
        super().__init__(config=config, pg_collection=pg_collection)  # type: ignore[call-arg]
        self.num_local_experts = num_local_experts
        self.local_expert_indices = local_expert_indices
        self.waits = waits
        self._moe = moe
        self._topk_idx: Tensor | None = None
        self._handle: Any = None
        self._num_slots = 0
        self._tokens_per_expert: Tensor | None = None
        self._shape = torch.Size()

    def dispatch_preprocess(
        self, tokens: Tensor, routing_map: Tensor, probs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Tokens [num_tokens, hidden], and the probabilities of their parts, f32.

        ``routing_map`` bool and ``probs`` are [num_tokens, num_experts].
        """
        num_experts = routing_map.shape[1]
        order = torch.arange(num_experts, 0, -1, device=routing_map.device)
        # Distinct scores: which expert is which of a token's top-k depends on nothing else.
        scores, chosen = torch.where(routing_map, order, 0).topk(self._moe.topk // self.tp_size)
        kept = scores > 0
        parts = torch.arange(self.tp_size, device=chosen.device) * self.num_local_experts
        first = chosen + chosen // self.num_local_experts * (self.tp_size - 1) * (
            self.num_local_experts
        )
        topk_idx = torch.where(kept[..., None], first[..., None] + parts, -1)
        weights = (probs.gather(1, chosen).float() * kept)[..., None].expand(topk_idx.shape)
        self._shape, self._topk_idx = tokens.shape, topk_idx.flatten(1)
        return tokens.reshape(-1, tokens.shape[-1]), weights.flatten(1)

    def token_dispatch(self, hidden_states: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of this rank's experts, by expert, and ones for probabilities."""
        assert self._topk_idx is not None, "dispatch_preprocess comes first"
        rows, self._handle = self._moe.dispatch(hidden_states, self._topk_idx, probs)
        # Padding belongs to the expert before it.
        self._tokens_per_expert = self._handle.key_offsets.diff()
        self._num_slots = rows.shape[0]
        if self.waits:
            self._tokens_per_expert = self._tokens_per_expert.cpu()
            rows = rows[: int(self._tokens_per_expert.sum())]  # of a fixed capacity, what came
        return rows, torch.ones(rows.shape[0], device=rows.device)

    def dispatch_postprocess(
        self, hidden_states: Tensor, probs: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """The rows as they are; int64 [num_local_experts], padding included, on the CPU if the
        host waits."""
        return hidden_states, self._tokens_per_expert, probs

    def combine_preprocess(self, hidden_states: Tensor) -> Tensor:
        """The rows as they are."""
        return hidden_states

    def token_combine(self, hidden_states: Tensor) -> Tensor:
        """[num_tokens, hidden] of this rank, weighted and summed. Runs on the current stream."""
        missing = self._num_slots - hidden_states.shape[0]
        rows = F.pad(hidden_states, (0, 0, 0, missing)) if missing else hidden_states
        handle, self._handle = self._handle, None
        return self._moe.combine(rows, handle)

    def combine_postprocess(self, hidden_states: Tensor) -> Tensor:
        """In the shape of the layer's input."""
        return hidden_states.view(self._shape)
