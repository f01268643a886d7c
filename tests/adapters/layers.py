"""What the ranks of the adapter tests do: a layer driven as its framework drives it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fuscoc_runtime.adapters import sglang, vllm
from fuscoc_runtime.face.shuffle import Shuffle
from tests.adapters import stubs

TIMEOUT = 60.0


def batch(shuffle: Shuffle, num_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, and their experts and weights; the last rank has no tokens."""
    torch.manual_seed(shuffle.rank)
    if shuffle.rank == shuffle.topology.num_ranks - 1:
        num_tokens = 0
    [field], topk = shuffle.spec.declared.source.fields, shuffle.spec.declared.constants["topk"]
    scores = torch.randn(num_tokens, shuffle.spec.declared.constants["keys"])
    weights, topk_ids = scores.softmax(-1).topk(topk)
    return torch.randn(num_tokens, *field.shape), topk_ids, weights


def expected(x: Tensor, topk_ids: Tensor, weights: Tensor) -> Tensor:
    """Expert e computes ``tanh((e + 1) x)``."""
    each = torch.tanh((topk_ids + 1).unsqueeze(-1) * x.unsqueeze(1))
    return (each * weights.unsqueeze(-1)).sum(1)


def experts(rows: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """The same for rows of one expert each, -1 being nobody's row."""
    assert ids.shape == weights.shape == (rows.shape[0], 1)
    result = torch.tanh((ids + 1) * rows) * weights
    return torch.where(ids < 0, float("nan"), result)


def largest(errors: Tensor) -> float:
    return float(errors.abs().max()) if errors.numel() else 0.0


def vllm_quantised(group: Any, artifact: str, defer: bool) -> bool:
    """Whether the experts get what vLLM's function makes of the rows, or, deferred, the rows."""
    shuffle = Shuffle(artifact, group=group, timeout=TIMEOUT)
    x, ids, weights = batch(shuffle, 5)
    num_experts = shuffle.spec.declared.constants["keys"]
    config = SimpleNamespace(
        quant_dtype="nvfp4", a1_scale=None, a1_gscale="global scale", per_act_token_quant=False,
        block_shape=None, is_scale_swizzled=True,
    )  # fmt: skip
    seen: list[Any] = []

    def quantise(  # with all of vLLM's parameters: they are checked
        A, A_scale, quant_dtype, per_act_token_quant, block_shape, is_scale_swizzled,
        is_scale_transposed=False, quantization_emulation=False, mx_alignment=0,
    ):  # fmt: skip
        seen.append((A_scale, quant_dtype, per_act_token_quant, block_shape, is_scale_swizzled))
        return A.half(), A.new_ones(A.shape[0], 1)

    with stubs.installed(stubs.recording("vllm")) as modules:
        modules[vllm.UTILS.module].moe_kernel_quantize_input = quantise
        stubs.without_context(modules)
        adapter = vllm.prepare_and_finalize(shuffle)
        rows, scales, *_ = adapter.prepare(x, weights, ids, num_experts, None, False, config, defer)
    if defer:
        return scales is None and rows.dtype == x.dtype and not seen
    told = [("global scale", "nvfp4", False, None, True)]
    return rows.dtype == torch.float16 and scales.shape == (rows.shape[0], 1) and seen == told


@torch.inference_mode()
def sglang_layer(
    group: Any, artifact: str, num_tokens: int, max_sources: int | None = None, told: bool = True
) -> float:
    """The largest error of dispatch, experts, combine on this rank; whether SGLang has told how
    many tokens the ranks have."""
    shuffle = Shuffle(artifact, group=group, timeout=TIMEOUT, max_sources=max_sources)
    x, ids, weights = batch(shuffle, num_tokens)
    constants, [field] = shuffle.spec.declared.constants, shuffle.spec.declared.source.fields
    config = SimpleNamespace(
        num_experts=constants["keys"],
        num_local_experts=constants["keys"] // dist.get_world_size(group),
        top_k=constants["topk"],
        hidden_size=field.shape[0],
        runner_backend=SimpleNamespace(value="triton"),
    )
    with stubs.installed(stubs.recording("sglang")) as modules:
        base, standard, topk = (
            modules[each.module] for each in (sglang.BASE, sglang.STANDARD, sglang.TOPK)
        )
        base.CombineInputChecker.format_is_standard = staticmethod(lambda combine_input: True)
        topk.TopKOutputChecker.format_is_standard = staticmethod(lambda topk_output: True)
        topk.TopKOutputChecker.format_is_bypassed = staticmethod(lambda topk_output: False)
        sizes = [num_tokens] * (dist.get_world_size(group) - 1) + [0]
        modules[sglang.TOKENS.module].get_dp_global_num_tokens = lambda: sizes if told else None
        adapter = sglang.dispatcher(shuffle, config)
        output = adapter.dispatch(
            hidden_states=x, topk_output=topk.StandardTopKOutput(weights, ids.int(), None)
        )
        local = output.topk_output.topk_ids
        if max_sources is not None and told:
            assert len(local) <= shuffle.capacity_for(num_tokens)
        elif max_sources is not None:
            assert len(local) == shuffle.capacity_for(max_sources)
        assert local.dtype == torch.int32
        first = shuffle.rank * constants["keys"] // dist.get_world_size(group)
        ids_of_rows = torch.where(local < 0, -1, local + first)
        rows = experts(output.hidden_states, ids_of_rows, output.topk_output.topk_weights)
        y = adapter.combine(combine_input=standard.StandardCombineInput(rows))
    return largest(y - expected(x, ids, weights))


def opened(group: Any, artifact: str) -> None:
    """An adapter on whatever shuffle it is."""
    with stubs.installed(stubs.recording("vllm")):
        vllm.prepare_and_finalize(Shuffle(artifact, group=group, timeout=TIMEOUT))


def sglang_opened(group: Any, artifact: str, changes: dict[str, Any]) -> None:
    """An adapter for a layer of 8 experts that is so configured."""
    shuffle = Shuffle(artifact, group=group, timeout=TIMEOUT)
    config = {
        "num_experts": 8, "num_local_experts": 8 // dist.get_world_size(group), "top_k": 2,
        "hidden_size": 24, "runner_backend": None,
    }  # fmt: skip
    with stubs.installed(stubs.recording("sglang")):
        sglang.dispatcher(shuffle, SimpleNamespace(**(config | changes)))
