"""Small models of the architectures that the adapter knows, with random weights."""

from __future__ import annotations

from typing import Any

import torch

VOCABULARY, HIDDEN, EXPERTS, TOPK = 96, 32, 8, 2
PAD, FIRST = 0, 3  # tokens from FIRST on are ordinary ones

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "num_experts_per_tok": TOPK, "pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2,
    "initializer_range": 0.2,
}  # fmt: skip
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Mixtral": {"intermediate_size": 48, "num_local_experts": EXPERTS},
    "Qwen3Moe": {
        "intermediate_size": 48, "moe_intermediate_size": 24, "num_experts": EXPERTS,
        "head_dim": 8, "norm_topk_prob": True, "mlp_only_layers": [0], "num_hidden_layers": 3,
    },
    "DeepseekV3": {
        "intermediate_size": 48, "moe_intermediate_size": 24, "n_routed_experts": EXPERTS,
        "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
        "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8, "v_head_dim": 8, "num_hidden_layers": 3,
    },
    "GptOss": {
        "intermediate_size": 48, "num_local_experts": EXPERTS, "head_dim": 8, "sliding_window": 4,
    },
}  # fmt: skip
"""Three layers where the first is dense: two have experts in every model."""


def build(name: str, dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    """The same weights in every process; biases too, which would be 0, are random."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    config = getattr(transformers, f"{name}Config")(**COMMON | ARCHITECTURES[name] | settings)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    with torch.no_grad():
        for label, weight in [*model.named_parameters(), *model.named_buffers()]:
            if "bias" in label:
                weight += 0.1 * torch.randn(weight.shape)
    return model.to(dtype).eval()


def prompts(rank: int) -> dict[str, torch.Tensor]:
    """``input_ids`` and ``attention_mask`` [sequences, length] of a rank, padded on the left.

    Ranks have one to three sequences, of different lengths.
    """
    generator = torch.Generator().manual_seed(rank)
    shape = (1 + rank % 3, 4 + 2 * rank)
    tokens = torch.randint(FIRST, VOCABULARY, shape, generator=generator)
    padding = torch.arange(shape[0])[:, None] > torch.arange(shape[1])
    return {"input_ids": tokens.masked_fill(padding, PAD), "attention_mask": (~padding).long()}


def batch(rank: int, empty: int) -> dict[str, torch.Tensor]:
    """``prompts`` with ``labels``; the rank ``empty`` has a row of padding, without a label."""
    made = prompts(rank)
    if rank == empty:
        made = {"input_ids": torch.full((1, 1), PAD), "attention_mask": torch.ones(1, 1).long()}
    return made | {"labels": made["input_ids"].masked_fill(made["input_ids"] == PAD, -100)}
