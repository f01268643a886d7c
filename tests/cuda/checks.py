"""What the scripts that run on GPUs share: inputs, a verified call, one verdict of all ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist

from benchmarks.moe_cases import (
    Model,
    check_combine,
    check_dispatch,
    expected_rows,
    expert_outputs,
    gather_ragged,
    owners,
    routing,
)
from fuscoc_runtime.engine.node.nvlink import CudaNode
from fuscoc_runtime.engine.node.state import Trouble, parse_state


def make_source(model: Model, num_tokens: int, generator: torch.Generator) -> list[torch.Tensor]:
    device = generator.device
    tensors = []
    for _, dtype, elems in model.fields:
        if dtype in ("bf16", "f16", "f32"):
            kind = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[dtype]
            tensors.append(
                torch.randn(num_tokens, elems, device=device, generator=generator).to(kind)
            )
        else:
            nbytes = {"f8e4m3": 1, "i64": 8, "i32": 4, "u8": 1}[dtype] * elems
            tensors.append(
                torch.randint(
                    256, (num_tokens, nbytes), device=device, generator=generator, dtype=torch.uint8
                )
            )
    return tensors


def run_case(
    engine: CudaNode,
    model: Model,
    kind: str,
    num_tokens: int,
    generator: torch.Generator,
    combines: int = 1,
) -> list[str]:
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    device = generator.device
    owner = owners(model, num_ranks, device)
    topk_idx = routing(kind, num_tokens, model, num_ranks, generator)
    source = make_source(model, num_tokens, generator)
    weights = torch.rand(num_tokens, model.topk, device=device, generator=generator)
    for rows in engine.rows:
        rows.view(torch.uint8).fill_(0xFF)
    inputs = [topk_idx] + ([owner] if model.placement == "expert_to_rank" else [])
    torch.cuda.synchronize()
    dist.barrier()
    handle = engine.dispatch(
        source, inputs, [num_tokens], num_tokens, weights if model.sums else None
    )
    torch.cuda.synchronize()
    if problems := troubles(engine):
        return problems
    expected = expected_rows(gather_ragged(topk_idx, None), owner, model.align, rank)
    wrong = check_dispatch(engine, handle, source, expected, None)
    if model.sums and not wrong:
        outputs = expert_outputs(engine.rows[0], expected, model.experts, handle.row_index)
        for _ in range(combines):
            result = torch.full_like(source[0], float("nan"))
            engine.combine([outputs], handle, [result])
            torch.cuda.synchronize()
            wrong += troubles(engine) + check_combine(
                result, source[0], topk_idx, weights, model.experts
            )
    return wrong


def troubles(engine: CudaNode) -> list[str]:
    """What went wrong on this rank since the engine was opened; waits for it."""
    now = parse_state(engine.state.tolist())
    return [] if now == Trouble() else [str(now)]


def settle(wrong: list[str], what: str) -> bool:
    """Whether any rank has something wrong; rank 0 prints it all."""
    everyone: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, wrong)
    if dist.get_rank() == 0:
        for r, lines in enumerate(everyone):
            for line in lines[:4]:
                print(f"WRONG {what}: rank {r}: {line}", flush=True)
    return any(everyone)
