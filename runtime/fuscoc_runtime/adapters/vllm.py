"""vLLM: prepare and finalize of its modular mixture-of-experts kernel by fuscoc."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.adapters.interface import Interface
from fuscoc_runtime.adapters.moe import MoeShuffle
from fuscoc_runtime.face.shuffle import Shuffle

VERSION = "0.33.0"
PACKAGE = "vllm.model_executor.layers.fused_moe"

KERNEL = Interface(
    "vllm",
    VERSION,
    f"{PACKAGE}.modular_kernel",
    {
        "FusedMoEPrepareAndFinalizeModular.prepare": (
            "a1", "topk_weights", "topk_ids", "num_experts", "expert_map",
            "apply_router_weight_on_input", "quant_config", "defer_input_quant",
        ),
        "FusedMoEPrepareAndFinalizeModular.finalize": (
            "output", "fused_expert_output", "topk_weights", "topk_ids",
            "apply_router_weight_on_input", "weight_and_reduce_impl",
        ),
        "FusedMoEPrepareAndFinalizeModular.activation_format": None,
        "FusedMoEPrepareAndFinalizeModular.topk_indices_dtype": (),
        "FusedMoEPrepareAndFinalizeModular.max_num_tokens_per_rank": (),
        "FusedMoEPrepareAndFinalizeModular.num_dispatchers": (),
        "FusedMoEPrepareAndFinalizeModular.output_is_reduced": (),
        "ExpertTokensMetadata": (
            "expert_num_tokens", "expert_num_tokens_cpu", "psum_recv_per_rank",
            "rank_expert_offset",
        ),
        "FusedMoEActivationFormat.Standard": None,
    },
)  # fmt: skip

UTILS = Interface(
    "vllm",
    VERSION,
    f"{PACKAGE}.utils",
    {
        "moe_kernel_quantize_input": (
            "A", "A_scale", "quant_dtype", "per_act_token_quant", "block_shape",
            "is_scale_swizzled", "is_scale_transposed", "quantization_emulation", "mx_alignment",
        ),
    },
)  # fmt: skip

CONTEXT = Interface(
    "vllm",
    VERSION,
    "vllm.forward_context",
    {
        "get_forward_context": (),
        "is_forward_context_available": (),
        "DPMetadata": ("num_tokens_across_dp_cpu", "local_sizes"),
    },
)


def prepare_and_finalize(shuffle: Shuffle) -> Any:
    """A ``FusedMoEPrepareAndFinalizeModular`` on ``shuffle``, for a ``FusedMoEKernel``.

    The experts see rows of the standard format, by expert, each with one expert and a weight of 1:
    combine applies the router's weights. One batch is between prepare and finalize at a time. With
    ``max_sources``, that is at least what vLLM calls ``max_num_batched_tokens``, experts see no
    more rows than the tokens of the step can need. A spec like ``examples/moe_fp8.fsc`` quantises
    tokens as they leave, for experts that want blocks of its size.

    Raises:
        AdapterError: vLLM is missing or its interface has changed, the spec is no mixture of
            experts, or there is one rank.
    """
    kernel = KERNEL.load()
    made = KERNEL.implement(FuscocPrepareAndFinalize, kernel.FusedMoEPrepareAndFinalizeModular)
    moe = MoeShuffle(shuffle, "vllm", may_quantise=True)
    return made(moe, kernel, UTILS.load(), CONTEXT.load())


class FuscocPrepareAndFinalize:
    """``FusedMoEPrepareAndFinalizeModular`` on a shuffle; see ``prepare_and_finalize``."""

    def __init__(self, moe: MoeShuffle, kernel: Any, utils: Any, context: Any) -> None:
        super().__init__()
        self._moe, self._kernel, self._utils, self._context = moe, kernel, utils, context
        self._nobody = moe.expert_of_others()
        self._handle: Any = None
        self._num_slots = 0
        self._map_is_known = False

    @property
    def activation_format(self) -> Any:
        return self._kernel.FusedMoEActivationFormat.Standard

    def topk_indices_dtype(self) -> torch.dtype | None:
        return self._moe.index_dtype

    def max_num_tokens_per_rank(self) -> int | None:
        return None

    def num_dispatchers(self) -> int:
        return self._moe.num_ranks

    def output_is_reduced(self) -> bool:
        return True

    def prepare(
        self,
        a1: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        num_experts: int,
        expert_map: Tensor | None,
        apply_router_weight_on_input: bool,
        quant_config: Any,
        defer_input_quant: bool,
    ) -> tuple[Tensor, Tensor | None, Any, Tensor, Tensor]:
        """Dispatch, then quantise as the experts ask for, unless the spec does.

        Returns rows [num_slots, hidden], their scales, the rows of every local expert, and for
        every row its expert among all, int64 [num_slots, 1], and its weight, 1. Kernels look every
        expert up in ``expert_map``, so rows that hold nothing have one of another rank, not -1.
        """
        self._moe.expect(num_experts=num_experts, topk=topk_ids.shape[1], hidden=a1.shape[1])
        self._check_map(expert_map)
        self._check_quantised(quant_config, defer_input_quant)
        if apply_router_weight_on_input:
            if topk_ids.shape[1] != 1:
                raise self._moe.problem("router weights go on the input only with topk = 1")
            a1 = a1 * topk_weights.to(a1.dtype)
            topk_weights = torch.ones_like(topk_weights)
        arrived, self._handle = self._moe.dispatch(a1, topk_ids, topk_weights)
        rows, scales = self._moe.parts(arrived)
        self._num_slots = self._count_slots(rows.shape[0])
        rows = rows[: self._num_slots]
        scales = None if scales is None else scales[: self._num_slots]
        local = self._moe.slot_to_expert(self._handle, rows.shape[0])
        experts = torch.where(local < 0, self._nobody, local + self._moe.first_expert)
        metadata = self._kernel.ExpertTokensMetadata(
            expert_num_tokens=self._handle.key_counts.to(torch.int32), expert_num_tokens_cpu=None
        )
        wanted = quant_config.quant_dtype is not None and not defer_input_quant
        if wanted and self._moe.block is None and rows.numel():
            rows, scales = self._quantise(rows, local < 0, quant_config)
        ones = topk_weights.new_ones(rows.shape[0], 1)
        return rows, scales, metadata, experts.unsqueeze(1), ones

    def _quantise(self, rows: Tensor, unused: Tensor, config: Any) -> tuple[Tensor, Tensor]:
        """What the experts asked for, by vLLM's own function."""
        scale = config.a1_gscale if config.quant_dtype == "nvfp4" else config.a1_scale
        if scale is None and not config.per_act_token_quant and config.block_shape is None:
            rows.masked_fill_(unused.unsqueeze(1), 0)  # else they would be in the one scale of all
        quantised: tuple[Tensor, Tensor] = self._utils.moe_kernel_quantize_input(
            rows,
            scale,
            quant_dtype=config.quant_dtype,
            per_act_token_quant=config.per_act_token_quant,
            block_shape=config.block_shape,
            is_scale_swizzled=config.is_scale_swizzled,
        )
        return quantised

    def _count_slots(self, num_slots: int) -> int:
        """Slots that this step's tokens can need, by the numbers that vLLM has on its hosts."""
        if not self._context.is_forward_context_available():
            return num_slots
        told = self._context.get_forward_context().dp_metadata
        if told is None:
            return num_slots
        return self._moe.num_slots_for(int(told.num_tokens_across_dp_cpu.max()), num_slots)

    def _check_quantised(self, config: Any, defer: bool) -> None:
        """Raises AdapterError: the spec quantises, and not as these experts want it."""
        block = self._moe.block
        if block is None:
            return
        wanted = None if config.block_shape is None else config.block_shape[1]
        if defer or config.quant_dtype != torch.float8_e4m3fn or wanted != block:
            asked = "rows as they are" if defer else f"{config.quant_dtype} in blocks of {wanted}"
            raise self._moe.problem(
                f"the spec makes float8_e4m3fn in blocks of {block}, and the experts want {asked}"
            )

    def _check_map(self, expert_map: Tensor | None) -> None:
        """Whether vLLM has the experts where the spec has them; reads the map once, on the host.

        Raises:
            AdapterError: it has not.
        """
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        if expert_map is None or self._map_is_known or capturing:
            return
        if not torch.equal(expert_map.cpu().long(), self._moe.local_experts()):
            raise self._moe.problem(
                f"vLLM places {int((expert_map >= 0).sum())} experts on this rank, not in the "
                f"blocks of {self._moe.experts_per_rank} of the spec: it needs linear placement, "
                "and a number of experts that the ranks divide"
            )
        self._map_is_known = True

    def finalize(
        self,
        output: Tensor,
        fused_expert_output: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        apply_router_weight_on_input: bool,
        weight_and_reduce_impl: Any,
    ) -> None:
        """Combine into ``output`` [num_tokens, hidden].

        ``weight_and_reduce_impl`` has nothing to do: every row has one expert, whose weight is 1.
        """
        rows = fused_expert_output.reshape(self._num_slots, self._moe.hidden)
        handle, self._handle = self._handle, None
        output.copy_(self._moe.combine(rows, handle))
