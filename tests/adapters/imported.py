"""What takes ranks of these tests seconds to import, beside tests/engine/imported.py."""

import gc
from contextlib import suppress

with suppress(ImportError):
    import megatron.core.models.gpt.gpt_layer_specs
    import megatron.core.models.gpt.gpt_model  # noqa: F401
with suppress(ImportError):
    from transformers import (  # noqa: F401
        DeepseekV3ForCausalLM,
        GptOssForCausalLM,
        MixtralForCausalLM,
        Qwen3MoeForCausalLM,
    )

gc.collect()
gc.freeze()
