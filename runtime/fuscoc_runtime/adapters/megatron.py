"""Megatron-Core: a token dispatcher that shuffles with fuscoc.

``MoEFlexTokenDispatcher`` leaves all data movement to a manager. Here it is fuscoc's, so that the
two hooks which permute rows between dispatch and experts have nothing left to do.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuscoc_runtime.adapters.interface import Interface
from fuscoc_runtime.adapters.megatron_options import find_refused
from fuscoc_runtime.adapters.moe import MoeShuffle
from fuscoc_runtime.face.shuffle import Shuffle

DISPATCHER = Interface(
    "megatron-core",
    "0.16.1",
    "megatron.core.transformer.moe.token_dispatcher",
    {
        "_DispatchManager.setup_metadata": ("routing_map", "probs"),
        "_DispatchManager.dispatch": ("hidden_states",),
        "_DispatchManager.combine": ("hidden_states",),
        "_DispatchManager.get_permuted_hidden_states_by_experts": ("hidden_states",),
        "_DispatchManager.get_restored_hidden_states_by_experts": ("hidden_states",),
        "MoETokenDispatcher": ("config", "pg_collection"),
        "MoEFlexTokenDispatcher": (
            "num_local_experts", "local_expert_indices", "config", "pg_collection",
        ),
        "MoEFlexTokenDispatcher.dispatch_preprocess": ("hidden_states", "routing_map", "probs"),
        "MoEFlexTokenDispatcher.token_dispatch": (
            "hidden_states", "probs", "async_finish", "allocate_on_comm_stream",
        ),
        "MoEFlexTokenDispatcher.dispatch_postprocess": ("hidden_states", "probs"),
        "MoEFlexTokenDispatcher.combine_preprocess": ("hidden_states",),
        "MoEFlexTokenDispatcher.token_combine": (
            "hidden_states", "async_finish", "allocate_on_comm_stream",
        ),
        "MoEFlexTokenDispatcher.combine_postprocess": ("hidden_states",),
    },
)  # fmt: skip


def token_dispatcher(
    shuffle: Shuffle,
    num_local_experts: int,
    local_expert_indices: list[int],
    config: Any,
    pg_collection: Any,
) -> Any:
    """A ``MoEFlexTokenDispatcher`` on ``shuffle``, to be a ``MoELayer``'s ``token_dispatcher``.

    The shuffle's group is the layer's TP x EP group, and its spec is ``examples/moe.fsc`` with
    ``hidden``, ``experts`` and ``topk`` of the layer, the latter two times the expert tensor
    parallel size. Routing probabilities are applied by combine, in f32: experts get ones.

    Raises:
        AdapterError: Megatron-Core is missing or its interface has changed; the spec does not fit
            the layer; or ``config`` asks for what cannot be done.
    """
    module = DISPATCHER.load()
    refused = find_refused(config)
    if refused is not None:
        raise DISPATCHER.problem(refused)
    dispatcher = object.__new__(module.MoEFlexTokenDispatcher)
    # Not MoEFlexTokenDispatcher's own constructor, which demands the library of its manager.
    module.MoETokenDispatcher.__init__(dispatcher, config=config, pg_collection=pg_collection)
    dispatcher.num_local_experts = num_local_experts
    dispatcher.local_expert_indices = local_expert_indices
    moe = MoeShuffle(shuffle, "megatron-core")
    size = dispatcher.tp_size
    moe.expect(
        num_experts=size * config.num_moe_experts,
        topk=size * config.moe_router_topk,
        hidden=config.moe_latent_size or config.hidden_size,
        num_ranks=size * dispatcher.ep_size,
    )
    manager = DISPATCHER.implement(FuscocManager, module._DispatchManager)
    dispatcher._comm_manager = manager(moe)
    return dispatcher


class FuscocManager:
    """``_DispatchManager`` on a shuffle. One batch is between dispatch and combine at a time.

    Attributes:
        token_probs: f32 [num_tokens, topk], what combine multiplies with.
        dispatched_probs: f32 [num_rows], ones.
    """

    def __init__(self, moe: MoeShuffle) -> None:
        self._moe = moe
        self._topk_idx: Tensor | None = None
        self._handle: Any = None
        self._num_slots = 0
        self.token_probs: Tensor | None = None
        self.dispatched_probs: Tensor | None = None
        self.tokens_per_expert: Tensor | None = None

    def setup_metadata(self, routing_map: Tensor, probs: Tensor) -> None:
        """``routing_map`` bool and ``probs`` [num_tokens, num_ranks, num_local_experts]."""
        chosen = routing_map.reshape(routing_map.shape[0], self._moe.num_experts)
        experts = torch.arange(self._moe.num_experts, 0, -1, device=chosen.device)
        # Distinct scores: which expert is which of a token's top-k depends on nothing else.
        scores, topk_idx = torch.where(chosen, experts, 0).topk(self._moe.topk, dim=-1)
        live = scores > 0
        self._topk_idx = torch.where(live, topk_idx, -1)
        self.token_probs = probs.reshape(chosen.shape).gather(1, topk_idx).float() * live

    def dispatch(
        self,
        hidden_states: Tensor,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Tensor:
        """Rows of this rank's experts, by expert. Runs on the current stream."""
        assert self._topk_idx is not None, "setup_metadata comes first"
        assert self.token_probs is not None
        rows, self._handle = self._moe.dispatch(hidden_states, self._topk_idx, self.token_probs)
        # Padding belongs to the expert before it; rows of a fixed capacity end where it ends.
        self.tokens_per_expert = self._handle.key_offsets.diff()
        self._num_slots = rows.shape[0]
        rows = rows[: int(self.tokens_per_expert.sum())]
        self.dispatched_probs = torch.ones(rows.shape[0], device=rows.device)
        return rows

    def combine(
        self,
        hidden_states: Tensor,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Tensor:
        """[num_tokens, hidden] of this rank, weighted and summed. Runs on the current stream."""
        missing = self._num_slots - hidden_states.shape[0]
        rows = F.pad(hidden_states, (0, 0, 0, missing)) if missing else hidden_states
        handle, self._handle = self._handle, None
        return self._moe.combine(rows, handle)

    def get_permuted_hidden_states_by_experts(
        self, hidden_states: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """The rows as they are, and their probabilities."""
        return hidden_states, self.dispatched_probs

    def get_restored_hidden_states_by_experts(self, hidden_states: Tensor) -> Tensor:
        """The rows as they are."""
        return hidden_states

    def get_number_of_tokens_per_expert(self) -> Tensor | None:
        """int64 [num_local_experts], padding included."""
        return self.tokens_per_expert
