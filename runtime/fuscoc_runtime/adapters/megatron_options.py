"""Which options of a Megatron-Core layer the adapter serves, and which it refuses by name.

Most are served because they change nothing of what a dispatcher is given or has to give back. A
test compares the names with those that the installed release reads.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any

REFUSED = {
    "moe_apply_probs_on_input": "the experts are not linear in their input",
    "moe_pad_expert_input_to_capacity": "an expert's rows are as many as came",
    "moe_router_padding_for_quantization": "its padding is routed; use `align` of the spec",
    "moe_router_padding_for_fp8": "its padding is routed; use `align` of the spec",
    "moe_shared_expert_overlap": "the layer would leave its shared experts to the dispatcher",
    "overlap_moe_expert_parallel_comm": "a second batch is dispatched before the first is combined",
    "moe_extended_tp": "Megatron-Core has given it up",
    "moe_expert_rank_capacity_factor": "no row is dropped: `max_sources` gives all of them room",
    "moe_pad_experts_for_cuda_graph_inference": "an expert's rows are as many as came",
    "moe_paged_stash": "it keeps rows of Transformer Engine's fused experts",
    "use_transformer_engine_op_fuser": "fused experts have not been tried",
    "overlap_dispatch_backward_with_experts_wgrad": "it has not been tried",
}
"""Options that may not be set, and why."""

SIZES = {
    "num_moe_experts", "moe_router_topk", "hidden_size", "moe_latent_size",
    "expert_model_parallel_size", "expert_tensor_parallel_size",
}  # fmt: skip
"""What the spec has to say, too."""

GRAPHS = {"cuda_graph_impl", "cuda_graph_scope", "cuda_graph_modules"}
"""Served where what is captured leaves the dispatcher out, or is the whole iteration and nothing in
it waits for the host. The modules are newer releases' name for the scope."""

IMPLEMENTATION = {"transformer_impl"}
"""Served but for what is optimised for inference, where layers choose among dispatchers."""

ROUTER = {
    "moe_router_dtype", "moe_expert_capacity_factor", "moe_token_drop_policy",
    "moe_token_dropping", "moe_router_load_balancing_type", "moe_router_topk_limited_devices",
    "moe_router_num_groups", "moe_router_group_topk", "moe_router_pre_softmax",
    "moe_router_topk_scaling_factor", "moe_router_score_function",
    "moe_router_enable_expert_bias", "moe_router_bias_update_rate",
    "moe_router_force_load_balancing", "moe_router_fusion", "moe_enable_routing_replay",
    "moe_aux_loss_coeff", "moe_z_loss_coeff", "moe_input_jitter_eps", "moe_per_layer_logging",
    "moe_router_force_biased", "moe_router_quantile_balancing_ema", "moe_grad_scale_func",
}  # fmt: skip
"""What the router has chosen, or dropped, is what the dispatcher is given."""

EXPERTS = {
    "moe_grouped_gemm", "moe_use_legacy_grouped_gemm", "moe_ffn_hidden_size", "add_bias_linear",
    "fp8", "fp8_recipe", "fp4", "fp4_recipe", "moe_mlp_glu_interleave_size",
    "moe_single_grouped_weight", "moe_single_grouped_bias",
}  # fmt: skip
"""Experts are given rows in order, which they pad and quantise for themselves."""

LAYER = {
    "moe_layer_freq", "moe_shared_expert_intermediate_size", "moe_shared_expert_gate",
    "sequence_parallel", "moe_layer_recompute", "recompute_granularity", "recompute_modules",
    "init_method", "output_layer_init_method", "moe_shared_expert_glu_interleave_size",
}  # fmt: skip
"""What the layer does around the dispatcher, or by calling it again."""

OTHERS = {
    "moe_token_dispatcher_type", "moe_permute_fusion", "moe_enable_deepep",
    "moe_flex_dispatcher_backend", "moe_flex_dispatcher_num_sms", "moe_deepep_num_sms",
    "moe_hybridep_num_sms", "moe_hybridep_num_sms_preprocessing", "moe_hybridep_num_blocks_permute",
    "moe_hybridep_num_blocks_unpermute", "moe_hybridep_pad_uneven_dispatch_inputs",
    "moe_permute_fusion_into_hybridep", "moe_ncclep_static_shape", "moe_ncclep_zero_copy",
    "moe_paged_stash_page_size", "moe_paged_stash_buffer_size_factor_cuda",
    "moe_paged_stash_buffer_size_factor_cpu", "inference_grouped_gemm_backend",
    "inference_moe_token_dispatcher_type", "inference_moe_disable_fused_quant_kernels",
}  # fmt: skip
"""Of the dispatchers that this one stands in for, and of what is refused."""

SERVED = SIZES | GRAPHS | IMPLEMENTATION | ROUTER | EXPERTS | LAYER | OTHERS

GRAPHED = {"attn", "mlp", "mamba"}
"""Parts of a model without a dispatcher, by Megatron's names for what a CUDA graph captures."""


def find_refused(config: Any, waits: bool) -> str | None:
    """What ``config``, a ``TransformerConfig``, asks for that cannot be done; None if all can.

    ``waits``: whether the host waits for the counts of a dispatch. An option that is on neither
    list, as of a newer release, may have its default only.
    """
    for name, reason in REFUSED.items():
        if getattr(config, name, None) not in (None, False):
            return f"{name} cannot be combined with fuscoc: {reason}"
    if getattr(config, "transformer_impl", None) == "inference_optimized":
        return "transformer_impl cannot be inference_optimized: layers choose other dispatchers"
    narrow = getattr(config, "fp8", None) or getattr(config, "fp4", None)
    if narrow and config.moe_token_dispatcher_type == "flex" and _pads(config):
        return "moe_flex_dispatcher_backend: in fp8 and fp4 experts count on its padding"
    if config.cuda_graph_impl != "none":
        parts = _captured(config)
        if "full_iteration" in (config.cuda_graph_impl, *parts):
            if waits:
                return (
                    "a graph of a full iteration cannot wait for counts: it needs max_sources, and "
                    "experts that take counts on the device"
                )
        elif not _leaves_dispatcher_out(config.cuda_graph_impl, parts):
            allowed = ", ".join(sorted(GRAPHED))
            return f"a graph of a part of a model cannot hold a dispatcher: it may be of {allowed}"
    for option in fields(config):
        unknown = "moe" in option.name and option.name not in SERVED | REFUSED.keys()
        if unknown and getattr(config, option.name) != _default(option):
            return f"{option.name} is an option that the adapter does not know"
    return None


def _pads(config: Any) -> bool:
    return config.moe_flex_dispatcher_backend in ("hybridep", "ncclep")


def _captured(config: Any) -> set[str]:
    """Names of the parts that a graph is to hold; none for the whole layer."""
    scope = getattr(config, "cuda_graph_modules", None)
    scope = config.cuda_graph_scope if scope is None else scope
    return {getattr(part, "name", part) for part in ([scope] if isinstance(scope, str) else scope)}


def _leaves_dispatcher_out(impl: str, parts: set[str]) -> bool:
    """Transformer Engine's graph of a router ends behind it, Megatron's own holds the dispatcher's
    first half."""
    alone = {"moe_router"} if impl == "transformer_engine" else set()
    return bool(parts) and parts <= GRAPHED | alone


def _default(option: Field[Any]) -> Any:
    made = option.default_factory
    return option.default if made is MISSING else made()
