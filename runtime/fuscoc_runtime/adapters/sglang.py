"""SGLang: a token dispatcher that shuffles with fuscoc."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.adapters.interface import Interface
from fuscoc_runtime.adapters.moe import MoeShuffle
from fuscoc_runtime.face.shuffle import Shuffle

VERSION = "0.5.23"
PACKAGE = "sglang.srt.layers.moe"

BASE = Interface(
    "sglang",
    VERSION,
    f"{PACKAGE}.token_dispatcher.base",
    {
        "BaseDispatcher": (),
        "BaseDispatcher.dispatch": ("hidden_states", "topk_output"),
        "BaseDispatcher.combine": ("combine_input",),
        "CombineInputChecker.format_is_standard": ("combine_input",),
    },
)

STANDARD = Interface(
    "sglang",
    VERSION,
    f"{PACKAGE}.token_dispatcher.standard",
    {
        "StandardDispatchOutput": (
            "hidden_states", "hidden_states_scale", "topk_output", "hidden_states_pre_quant",
        ),
        "StandardCombineInput": ("hidden_states",),
    },
)  # fmt: skip

TOPK = Interface(
    "sglang",
    VERSION,
    f"{PACKAGE}.topk",
    {
        "StandardTopKOutput": ("topk_weights", "topk_ids", "router_logits"),
        "TopKOutputChecker.format_is_standard": ("topk_output",),
        "TopKOutputChecker.format_is_bypassed": ("topk_output",),
        "BypassedTopKOutput.to_standard": ("layer_id",),
    },
)

TOKENS = Interface(
    "sglang", VERSION, "sglang.srt.layers.dp_attention", {"get_dp_global_num_tokens": ()}
)

UNSUPPORTED = ("apply_router_weight_on_input", "no_combine", "num_fused_shared_experts")
RUNNERS = ("auto", "deep_gemm", "triton")
"""Runners that take experts by their number on this rank and pass over rows whose number is -1."""


def dispatcher(shuffle: Shuffle, moe_runner_config: Any) -> Any:
    """A ``BaseDispatcher`` on ``shuffle``, for runners of the standard format with local experts.

    Its rows come by expert, each with one local expert and a weight of 1: combine applies the
    router's weights. With ``max_sources`` there are no more rows than the tokens of the step can
    need. One batch is between dispatch and combine at a time. Every rank dispatches
    tokens of its own, and what combine returns is whole: set the layer's ``reduce_results`` to
    false.

    Raises:
        AdapterError: SGLang is missing or its interface has changed; the spec does not fit the
            layer; there is one rank; or the runner is to do what combine does, or knows experts by
            other numbers.
    """
    base = BASE.load()
    for name in UNSUPPORTED:
        if getattr(moe_runner_config, name, None):
            raise BASE.problem(f"{name} cannot be combined with fuscoc")
    runner = getattr(moe_runner_config.runner_backend, "value", "auto")
    if runner not in RUNNERS:
        raise BASE.problem(f"the runner {runner} is none of {', '.join(RUNNERS)}")
    moe = MoeShuffle(shuffle, "sglang")
    moe.expect(
        num_experts=moe_runner_config.num_experts,
        topk=moe_runner_config.top_k,
        hidden=moe_runner_config.hidden_size,
        experts_per_rank=moe_runner_config.num_local_experts,
    )
    moe.expert_of_others()  # runners pass over rows only where experts lie on several ranks
    made = BASE.implement(FuscocDispatcher, base.BaseDispatcher)
    return made(moe, base, STANDARD.load(), TOPK.load(), TOKENS.load())


class FuscocDispatcher:
    """``BaseDispatcher`` on a shuffle; see ``dispatcher``."""

    def __init__(self, moe: MoeShuffle, base: Any, standard: Any, topk: Any, tokens: Any) -> None:
        super().__init__()
        self._moe, self._base, self._standard, self._topk = moe, base, standard, topk
        self._tokens = tokens
        self._handle: Any = None

    def dispatch(self, hidden_states: Tensor, topk_output: Any) -> Any:
        """Rows [num_slots, hidden] of this rank's experts as a ``StandardDispatchOutput``."""
        if self._topk.TopKOutputChecker.format_is_bypassed(topk_output):
            topk_output = topk_output.to_standard()
        if not self._topk.TopKOutputChecker.format_is_standard(topk_output):
            raise self._moe.problem(f"{type(topk_output).__name__} says nothing of single tokens")
        rows, self._handle = self._moe.dispatch(
            hidden_states, topk_output.topk_ids, topk_output.topk_weights
        )
        told = self._tokens.get_dp_global_num_tokens()  # on the host; none without data parallelism
        if told:
            rows = rows[: self._moe.num_slots_for(max(told), rows.shape[0])]
        experts = self._moe.slot_to_expert(self._handle, rows.shape[0]).unsqueeze(1)
        return self._standard.StandardDispatchOutput(
            hidden_states=rows,
            hidden_states_scale=None,
            topk_output=self._topk.StandardTopKOutput(
                topk_weights=torch.ones(experts.shape, device=rows.device),
                topk_ids=experts.to(topk_output.topk_ids.dtype),
                router_logits=rows.new_empty(rows.shape[0], 0),
            ),
        )

    def combine(self, combine_input: Any) -> Tensor:
        """[num_tokens, hidden] of a ``StandardCombineInput``."""
        if not self._base.CombineInputChecker.format_is_standard(combine_input):
            raise self._moe.problem(f"{type(combine_input).__name__} is not of the standard format")
        handle, self._handle = self._handle, None
        return self._moe.combine(combine_input.hidden_states, handle)
