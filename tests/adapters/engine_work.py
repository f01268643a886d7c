"""A layer of experts between the dispatchers of vLLM and of SGLang, whose ``Buffer`` is fuscoc's.

Functions run on one rank and return what is wrong; ``source`` is a folder that holds the engine's
own source, or None for stand-ins.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import fuscoc_runtime.deep_ep as deep_ep
from tests.adapters import engine_sources, engine_standins
from tests.deep_ep.cases import BLOCK, Case, Checks, Shape, from_fp8, make_case

SIZES = [3, 0, 2, 4]
MOST = 5


def expert(x: Tensor, numbers: Tensor, num_experts: int) -> Tensor:
    """What the experts of these numbers [...] make of x [..., hidden], f32."""
    return torch.tanh(x.float() * ((numbers + 1) / num_experts)[..., None])


def alone(case: Case) -> Tensor:
    """The layer in one process, for the tokens of this rank."""
    idx, weights, x = case.idx[case.rank], case.weights[case.rank], case.x[case.rank]
    each = expert(x[:, None], idx, case.shape.experts) * weights[..., None]
    return torch.where(idx[..., None] >= 0, each, 0).sum(1)


def tokens_of_experts(case: Case) -> Tensor:
    """int64 [local]: how many tokens of all ranks have chosen each of this rank's experts."""
    chosen = torch.cat(case.idx).flatten()
    counts = torch.bincount(chosen[chosen >= 0], minlength=case.shape.experts)
    return counts[case.rank * case.local :][: case.local]


def worked(
    case: Case, rows: Tensor, scales: Tensor | None, local: Tensor, weights: Tensor
) -> Tensor:
    """Rows of tokens by this rank's experts ``local``, -1 for those elsewhere; weighed."""
    x = rows if scales is None else from_fp8(rows, scales)
    numbers = case.rank * case.local + local
    each = expert(x[:, None], numbers, case.shape.experts) * weights[..., None]
    return torch.where(local[..., None] >= 0, each, 0).sum(1).bfloat16()


def worked_slots(
    case: Case, rows: Tensor, scales: Tensor | None, counts: Tensor, numbers: Tensor
) -> Tensor:
    """Slots of experts of these numbers; those that nothing has come to are NaN."""
    x = rows if scales is None else from_fp8(rows, scales)
    result = expert(x, numbers[:, None], case.shape.experts).bfloat16()
    unused = torch.arange(rows.shape[1], device=rows.device) >= counts[:, None]
    return result.masked_fill(unused[..., None], float("nan"))


def vllm(
    group: Any, source: str | None, hidden: int, is_fp8: bool, device: str = "cpu"
) -> list[str]:
    """Both DeepEP backends of vLLM, prepare and finalize; the second with experts elsewhere than
    their numbers say, by a table."""
    case, checks = make_case(group, device, Shape(hidden, 8, 3), SIZES, seed=7), Checks()
    engine = engine_sources.vllm(source) if source else engine_standins
    tolerance = 2**-3 if is_fp8 else 2**-7
    x, ids, weights = (each[case.rank] for each in (case.x, case.idx, case.weights))
    quantised = SimpleNamespace(
        is_block_quantized=is_fp8, quant_dtype=torch.float8_e4m3fn if is_fp8 else None,
        block_shape=[128, 128] if is_fp8 else None, per_act_token_quant=False, a1_scale=None,
        a1_gscale=None, a2_scale=None, is_scale_swizzled=False,
    )  # fmt: skip
    first, local = case.rank * case.local, case.local
    buffer = deep_ep.Buffer(
        group=group, num_nvl_bytes=1 << 30, num_rdma_bytes=0, low_latency_mode=False,
        num_qps_per_rank=1, explicitly_destroy=True,
    )  # fmt: skip
    high = engine.HighThroughput(buffer, case.num_ranks, case.num_ranks, first)
    rows, scales, metadata, chosen, gates = high.prepare(
        x, weights, ids, 8, None, False, quantised, False
    )
    checks.equal("rows are those that came", len(rows), len(case.received(case.x, case.rank)))
    checks.equal("rows in 8 bits", rows.dtype == torch.float8_e4m3fn, is_fp8)
    here = torch.where((chosen >= first) & (chosen < first + local), chosen - first, -1)
    checks.equal("expert_num_tokens", metadata.expert_num_tokens, tokens_of_experts(case).int())
    output = torch.empty_like(x)
    done = worked(case, rows, scales, here, gates)
    high.finalize(output, done, gates, chosen, False, engine.NO_OP)
    checks.near("high throughput", output, alone(case), tolerance)
    buffer.destroy()

    buffer = deep_ep.Buffer(
        group=group, num_nvl_bytes=1 << 30, num_rdma_bytes=0, low_latency_mode=True,
        num_qps_per_rank=local, allow_nvlink_for_low_latency_mode=True, allow_mnnvl=False,
        explicitly_destroy=True, enable_shrink=False,
    )  # fmt: skip
    places = [5, 2, 7, 0, 3, 6, 1, 4, -1]  # -1, nobody, stays so
    physical = torch.tensor(places, device=case.device)
    low = engine.LowLatency(
        buffer,
        max_tokens_per_rank=MOST,
        num_dispatchers=case.num_ranks,
        use_fp8_dispatch=is_fp8,
        global_to_physical=physical,
    )
    for _ in range(2):  # layers that follow each other
        rows, scales, metadata, *_ = low.prepare(x, weights, ids, 8, None, False, quantised, False)
        checks.equal("slots in 8 bits", rows.dtype == torch.float8_e4m3fn, is_fp8)
        numbers = physical[:-1].argsort()[first : first + local]
        done = worked_slots(case, rows, scales, metadata.expert_num_tokens, numbers)
        output = torch.empty_like(x)
        low.finalize(output, done, weights, ids, False, engine.DELEGATE)
        checks.near("low latency", output, alone(case), tolerance)
    buffer.destroy()
    return checks.wrong


def sglang(group: Any, source: str | None, is_fp8: bool, device: str = "cpu") -> list[str]:
    """Both modes of SGLang's dispatcher; two batches overlap, by the halves of its calls."""
    shape, checks = Shape(512, 8, 3), Checks()
    batches = [make_case(group, device, shape, SIZES, seed) for seed in (8, 9)]
    engine = engine_sources.sglang(source) if source else engine_standins
    for is_low_latency in (False, True):
        pair, buffer = engine.dispatchers(2, group, is_low_latency, is_fp8, batches[0], MOST)
        for each, case in zip(pair, batches, strict=True):
            weights, ids = case.weights[case.rank], case.idx[case.rank]
            routed = SimpleNamespace(topk_weights=weights, topk_ids=ids.int())
            each.dispatch_a(hidden_states=case.x[case.rank], topk_output=routed)
        for each, case in zip(pair, batches, strict=True):
            found = each.dispatch_b()
            rows, scales = found.hidden_states, found.hidden_states_scale
            checks.equal("rows in 8 bits", rows.dtype == torch.float8_e4m3fn, is_fp8)
            if is_low_latency:
                numbers = case.rank * case.local + torch.arange(case.local, device=case.device)
                done = worked_slots(case, rows, scales, found.masked_m, numbers)
            else:
                came = len(case.received(case.x, case.rank))
                checks.equal("rows are those that came, of all ranks'", len(rows), came)
                counts = (tokens_of_experts(case) + BLOCK - 1) // BLOCK * BLOCK
                told = found.num_recv_tokens_per_expert
                checks.equal("num_recv_tokens_per_expert", told, counts.tolist())
                done = worked(case, rows, scales, found.topk_ids, found.topk_weights)
            each.combine_a((done, found.topk_ids, found.topk_weights))
        for each, case in zip(pair, batches, strict=True):
            mode = "low latency" if is_low_latency else "normal"
            checks.near(mode, each.combine_b(), alone(case), 2**-3 if is_fp8 else 2**-7)
        buffer.explicitly_destroy = True  # engines leave it to the end of the process
        buffer.destroy()
    return checks.wrong
