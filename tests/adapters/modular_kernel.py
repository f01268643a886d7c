"""A stand-in for vLLM's modular kernel, which drives prepare, experts and finalize in its order and
asks of what it is given all that some kernel of vLLM's relies on."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuscoc_runtime.adapters import vllm
from fuscoc_runtime.face.shuffle import Shuffle
from tests.adapters import stubs
from tests.adapters.layers import TIMEOUT, largest

NOT_WRITTEN = float("nan")
NUM_EXPERTS = 8


@dataclass(frozen=True)
class QuantConfig:
    """As experts without quantisation, or with one scale for all rows, have it."""

    quant_dtype: Any = None
    a1_scale: Tensor | None = None
    a1_gscale: Tensor | None = None
    per_act_token_quant: bool = False
    block_shape: list[int] | None = None
    is_scale_swizzled: bool = False


def swiglu(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    """One expert: x [..., hidden], w1 [2 * width, hidden], w2 [hidden, width]."""
    gate, up = (x @ w1.t()).chunk(2, dim=-1)
    return (F.silu(gate) * up) @ w2.t()


class Experts:
    """Permutes, computes, and permutes back; rows that are nobody's are never written."""

    quant_config = QuantConfig()
    expects_unquantized_inputs = False

    def apply(
        self,
        hidden_states: Tensor,
        scales: Tensor | None,
        w1: Tensor,
        w2: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        expert_map: Tensor,
        metadata: Any,
        weigh: bool,
    ) -> Tensor:
        """Outputs [num_rows, topk, hidden]."""
        num_rows, topk = topk_ids.shape
        assert hidden_states.shape[0] == num_rows
        assert topk_ids.is_contiguous()
        assert topk_weights.shape == topk_ids.shape
        # Some kernels look every expert up without a look at its sign.
        assert bool(((topk_ids >= 0) & (topk_ids < expert_map.numel())).all())
        local = expert_map[topk_ids].long()
        # Rows of an expert have a place for so many as were counted, not for more.
        counts = torch.bincount(local[local >= 0], minlength=w1.shape[0])
        assert metadata.expert_num_tokens.dtype == torch.int32
        assert torch.equal(metadata.expert_num_tokens.long(), counts)
        result = torch.full((num_rows, topk, hidden_states.shape[1]), NOT_WRITTEN)
        for expert in range(w1.shape[0]):
            row, k = (local == expert).nonzero(as_tuple=True)
            x = hidden_states[row]
            if scales is not None:
                each = scales if len(scales) == 1 else scales[row]
                x = x.float() * each.repeat_interleave(x.shape[1] // each.shape[1], 1)
            y = swiglu(x, w1[expert], w2[expert])
            result[row, k] = y * topk_weights[row, k].unsqueeze(1) if weigh else y
        return result


class BlockScaled(Experts):
    """Experts whose rows come in e4m3, with a scale for every 128 elements."""

    quant_config = QuantConfig(quant_dtype=torch.float8_e4m3fn, block_shape=[128, 128])


class TensorScaled(Experts):
    """Experts whose rows come in e4m3 with one scale for all of them, made where they are."""

    quant_config = QuantConfig(quant_dtype=torch.float8_e4m3fn)


def quantise(  # with all of vLLM's parameters: they are checked
    A, A_scale, quant_dtype, per_act_token_quant, block_shape, is_scale_swizzled,
    is_scale_transposed=False, quantization_emulation=False, mx_alignment=0,
):  # fmt: skip
    assert A_scale is None
    assert A.numel(), "kernels are not launched for no rows"
    scale = A.abs().max() / torch.finfo(quant_dtype).max
    return (A / scale).to(quant_dtype), scale.view(1, 1)


class ModularKernel:
    """``FusedMoEKernelModularImpl``, without chunks, shared experts and micro-batches."""

    def __init__(self, prepare_finalize: Any, experts: Experts) -> None:
        self.prepare_finalize, self.experts = prepare_finalize, experts
        self.num_rows = 0

    def apply(
        self,
        hidden_states: Tensor,
        w1: Tensor,
        w2: Tensor,
        topk_ids: Tensor,
        topk_weights: Tensor,
        global_num_experts: int,
        expert_map: Tensor,
        on_input: bool,
    ) -> Tensor:
        output = torch.empty_like(hidden_states)
        a1q, scales, metadata, ids, weights = self.prepare_finalize.prepare(
            hidden_states,
            topk_weights,
            topk_ids,
            global_num_experts,
            expert_map,
            on_input,
            self.experts.quant_config,
            defer_input_quant=self.experts.expects_unquantized_inputs,
        )
        self.num_rows = a1q.shape[0]
        if a1q.shape[0]:
            rows = self.experts.apply(
                a1q, scales, w1, w2, weights, ids, expert_map, metadata, not on_input
            ).to(hidden_states.dtype)
        else:  # none of the tokens have reached this rank
            rows = a1q.new_empty(a1q.shape, dtype=hidden_states.dtype)
        self.prepare_finalize.finalize(output, rows, weights, ids, on_input, None)
        return output


@dataclass(frozen=True)
class Case:
    """Tokens of every rank. ``keep`` of the choices are made, the rest is padding (-1);
    ``crowd``: all go to the first expert. ``told``: what vLLM says of a step, which may be nothing:
    there is "no context", or "no metadata" in it."""

    tokens: tuple[int, ...]
    topk: int = 2
    keep: float = 1.0
    crowd: bool = False
    on_input: bool = False
    scaled: bool = False
    in_blocks: bool = False
    told: str = "tokens"
    options: tuple[tuple[str, Any], ...] = ()


@torch.inference_mode()
def layer_error(group: Any, artifact: str, case: Case) -> float:
    """The largest error of two batches on this rank, against the same experts without a shuffle, as
    a part of the largest result. The first batch is large: what is left of it would be seen."""
    shuffle = Shuffle(artifact, group=group, timeout=TIMEOUT, **dict(case.options))
    num_experts = NUM_EXPERTS
    [hidden] = shuffle.spec.declared.source.fields[0].shape
    first, local = shuffle.rank * num_experts // len(case.tokens), num_experts // len(case.tokens)
    everyone = torch.Generator().manual_seed(3)
    w1 = torch.randn(num_experts, 2 * 16, hidden, generator=everyone) / hidden**0.5
    w2 = torch.randn(num_experts, hidden, 16, generator=everyone) / 4
    expert_map = torch.full((num_experts,), -1, dtype=torch.int32)
    expert_map[first : first + local] = torch.arange(local, dtype=torch.int32)
    worst = 0.0
    with stubs.installed(stubs.recording("vllm")) as modules:
        modules[vllm.UTILS.module].moe_kernel_quantize_input = quantise
        context = modules[vllm.CONTEXT.module]
        context.is_forward_context_available = lambda: case.told != "no context"
        adapter = vllm.prepare_and_finalize(shuffle)
        experts = BlockScaled() if case.in_blocks else TensorScaled() if case.scaled else Experts()
        kernel = ModularKernel(adapter, experts)
        mine = torch.Generator().manual_seed(shuffle.rank)
        few = [case.tokens[0] // 2] * len(case.tokens)
        for sizes, size in ((list(case.tokens), 1e7), (few, 1.0)):
            across = SimpleNamespace(num_tokens_across_dp_cpu=torch.tensor(sizes))
            step = SimpleNamespace(dp_metadata=across if case.told == "tokens" else None)
            context.get_forward_context = lambda step=step: step
            num_tokens = sizes[shuffle.rank]
            x = size * torch.randn(num_tokens, hidden, generator=mine)
            x = x.bfloat16() if case.in_blocks else x
            scores = torch.rand(num_tokens, num_experts, generator=mine)
            weights, ids = scores.topk(case.topk)
            ids = torch.zeros_like(ids) if case.crowd else ids
            ids[torch.rand(ids.shape, generator=mine) >= case.keep] = -1
            found = kernel.apply(
                x, w1[first : first + local], w2[first : first + local],
                ids.to(adapter.topk_indices_dtype()), weights, num_experts, expert_map,
                case.on_input,
            )  # fmt: skip
            if case.options and case.told == "tokens":  # the step cannot need the whole capacity
                assert kernel.num_rows <= shuffle.capacity_for(max(sizes))
            elif case.options:
                assert kernel.num_rows == shuffle.capacity_for(dict(case.options)["max_sources"])
            wanted = plain(x.float(), w1, w2, ids, weights, case.on_input)
            worst = max(worst, largest(found - wanted) / max(1e-3, largest(wanted)))
    return worst


def plain(
    x: Tensor, w1: Tensor, w2: Tensor, ids: Tensor, weights: Tensor, on_input: bool
) -> Tensor:
    """The layer in plain torch, a token and an expert at a time."""
    result = torch.zeros_like(x)
    for token, (experts, factors) in enumerate(zip(ids.tolist(), weights.tolist(), strict=True)):
        for expert, factor in zip(experts, factors, strict=True):
            if expert >= 0 and on_input:
                result[token] += swiglu(x[token] * factor, w1[expert], w2[expert])
            elif expert >= 0:
                result[token] += factor * swiglu(x[token], w1[expert], w2[expert])
    return result


def misplaced(group: Any, artifact: str) -> None:
    """vLLM has the experts of a rank elsewhere than the spec."""
    shuffle = Shuffle(artifact, group=group, timeout=TIMEOUT)
    num_experts, num_ranks = shuffle.spec.declared.constants["keys"], shuffle.topology.num_ranks
    expert_map = torch.full((num_experts,), -1, dtype=torch.int32)
    dealt = slice(shuffle.rank, None, num_ranks)
    expert_map[dealt] = torch.arange(num_experts // num_ranks, dtype=torch.int32)
    x, ids = (
        torch.randn(3, shuffle.spec.declared.source.fields[0].shape[0]),
        torch.zeros(3, 2).long(),
    )
    with stubs.installed(stubs.recording("vllm")) as modules:
        stubs.without_context(modules)
        adapter = vllm.prepare_and_finalize(shuffle)
        adapter.prepare(
            x, torch.ones(3, 2), ids, num_experts, expert_map, False, QuantConfig(), False
        )


def quantised_elsewise(group: Any, artifact: str, defer: bool) -> None:
    """The spec quantises tokens; the experts want them as they are, or with one scale for all."""
    shuffle = Shuffle(artifact, group=group, timeout=TIMEOUT)
    [hidden] = shuffle.spec.declared.source.fields[0].shape
    x, ids, weights = torch.zeros(1, hidden).bfloat16(), torch.zeros(1, 2).long(), torch.ones(1, 2)
    config = BlockScaled.quant_config if defer else TensorScaled.quant_config
    with stubs.installed(stubs.recording("vllm")) as modules:
        stubs.without_context(modules)
        vllm.prepare_and_finalize(shuffle).prepare(x, weights, ids, 8, None, False, config, defer)
