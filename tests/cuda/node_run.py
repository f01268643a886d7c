"""Correctness of the node-local engine on real GPUs; run by torchrun, one process a GPU.

``python -m torch.distributed.run --nproc-per-node N tests/cuda/node_run.py [--stress ITERATIONS]``
exits non-zero, after naming every mismatch, when a case is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

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
    program,
    routing,
)
from fuscoc_runtime.engine.nvlink import Limits, NodeShuffle, Schedule

MODELS = (
    Model(),
    Model(hidden=512, experts=8, topk=1),
    Model(hidden=2880, experts=32, topk=4),
    Model(hidden=16384, experts=64, topk=2),
    Model(hidden=1000, experts=60, topk=6, placement="expert_to_rank", align=16),
    Model(hidden=1001, experts=13, topk=3, placement="cyclic", align=1),
    Model(hidden=4096, experts=512, topk=16, placement="expert_to_rank"),
    Model(hidden=640, experts=128, topk=8, dtype="f32", align=8),
    Model(dtype="f8e4m3", extra=(("scales", "f32", 56), ("token", "i64", 1))),
)


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
    engine: NodeShuffle,
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
    if problems := engine.errors():
        return problems
    expected = expected_rows(gather_ragged(topk_idx, None), owner, model.align, rank)
    wrong = check_dispatch(engine, handle, source, expected, None)
    if model.sums and not wrong:
        outputs = expert_outputs(engine.rows[0], expected, model.experts)
        for _ in range(combines):
            result = torch.full_like(source[0], float("nan"))
            engine.combine(outputs, handle, result)
            torch.cuda.synchronize()
            wrong += engine.errors() + check_combine(
                result, source[0], topk_idx, weights, model.experts
            )
    return wrong


def settle(wrong: list[str], what: str) -> bool:
    """Whether any rank has something wrong; rank 0 prints it all."""
    everyone: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, wrong)
    if dist.get_rank() == 0:
        for r, lines in enumerate(everyone):
            for line in lines[:4]:
                print(f"WRONG {what}: rank {r}: {line}", flush=True)
    return any(everyone)


def cases(device: torch.device) -> bool:
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator(device).manual_seed(100 + rank)
    failed = False
    for model in MODELS:
        most = 520
        limits = Limits(most, num_ranks * most * model.topk + model.experts * model.align)
        engine = NodeShuffle(program(model), limits, dist.group.WORLD, device, timeout_s=5)
        for kind in ("uniform", "single", "messy"):
            if kind == "single" and model.topk > model.experts // num_ranks:
                continue
            for tokens in ((most, 0, 131, 64), (3, 77, most, 1), (0, 0, 0, 0)):
                group = 1 + (tokens[0] % 4)
                engine.configure(
                    Schedule(0 if tokens[0] else 16, dispatch_group=group, combine_group=5 - group)
                )
                what = f"{model} {kind} {tokens}"
                wrong = run_case(engine, model, kind, tokens[rank % 4], generator, combines=2)
                if settle(wrong, what):
                    failed = True
                    break
            if failed:
                return True
    return failed


def guards(device: torch.device) -> bool:
    """Bad keys and an overflow are counted and nothing is written past the capacity."""
    model, num_tokens = Model(hidden=512, experts=8, topk=2), 64
    engine = NodeShuffle(
        program(model), Limits(num_tokens, 256), dist.group.WORLD, device, timeout_s=5
    )
    generator = torch.Generator(device).manual_seed(5)
    source = make_source(model, num_tokens, generator)
    weights = torch.rand(num_tokens, 2, device=device)
    topk_idx = torch.zeros(num_tokens, 2, dtype=torch.int64, device=device)
    topk_idx[0, 0], topk_idx[1, 0] = 8, -2
    engine.dispatch(source, [topk_idx], [num_tokens], num_tokens, weights)
    torch.cuda.synchronize()
    found = engine.errors()
    wrong = [] if any("2 points have a key" in line for line in found) else [f"bad keys: {found}"]
    # Every rank sends all its rows to rank 0: the third rank's no longer fit.
    if dist.get_rank() >= 2 and not any("capacity" in line for line in found):
        wrong.append(f"overflow: {found}")
    return settle(wrong, "guards")


def stress(device: torch.device, iterations: int, seconds: float) -> bool:
    """Back-to-back calls with changing routings, sizes and delays; every one is verified through
    per-row checksums that stay on the device."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    model = Model(hidden=1024, experts=64, topk=8)
    most = 2048
    engine = NodeShuffle(
        program(model),
        Limits(most, num_ranks * most * 8 + 64 * 128),
        dist.group.WORLD,
        device,
        timeout_s=10,
    )
    shared = torch.Generator().manual_seed(3)  # the same choices on every rank
    own = torch.Generator(device).manual_seed(50 + rank)
    owner = owners(model, num_ranks, device)
    pool = []
    for kind in ("uniform", "single", "skewed", "messy") * 2:
        sizes = [int(torch.randint(1, most + 1, (), generator=shared)) for _ in range(num_ranks)]
        n = sizes[rank]
        topk_idx = routing(kind, n, model, num_ranks, own)
        all_idx = gather_ragged(topk_idx, None)
        expected = expected_rows(all_idx, owner, model.align, rank)
        x = torch.randn(n, model.hidden, device=device, generator=own).bfloat16()
        weights = torch.rand(n, 8, device=device, generator=own)
        everyone = gather_ragged(x, None)
        want_rows = torch.cat([everyone[r] for r in range(num_ranks)])
        base = torch.tensor([0, *[e.shape[0] for e in everyone]], device=device).cumsum(0)
        origin = base[expected.ranks] + expected.tokens
        sums = (weights * (topk_idx >= 0)).sum(1, keepdim=True)
        pool.append((n, topk_idx, x, weights, expected.slots, want_rows[origin], x.float() * sums))
    mismatches = torch.zeros(2, dtype=torch.int64, device=device)
    configurations = (
        Schedule(),
        Schedule(num_sms=16, dispatch_group=3, combine_group=2),
        Schedule(num_sms=40, dispatch_group=4, combine_group=3),
        Schedule(dispatch_group=1, combine_group=1),
    )
    start, done = time.time(), 0
    for i in range(iterations):
        choice = int(torch.randint(len(pool), (), generator=shared))
        engine.configure(configurations[int(torch.randint(4, (), generator=shared))])
        combines = int(torch.randint(0, 3, (), generator=shared))
        n, topk_idx, x, weights, slots, want, total = pool[choice]
        torch.cuda._sleep(
            int(torch.randint(0, 200_000, (), device=device, generator=own).item())
            if i % 3 == 0
            else 1
        )
        handle = engine.dispatch([x], [topk_idx], [n], n, weights)
        mismatches[0] += (engine.rows[0][slots] != want).any(dim=1).sum()
        rows = engine.rows[0].clone() if i % 2 else engine.rows[0]
        for _ in range(combines):
            result = torch.full_like(x, float("nan"))
            engine.combine(rows, handle, result)
            off = (result.float() - total).abs() > 0.05 * total.abs() + 0.05
            mismatches[1] += (off | ~torch.isfinite(result)).sum()
        done += 1
        if i % 50 == 49:
            stop = torch.tensor(
                [time.time() - start > seconds or int(mismatches.sum()) > 0], device=device
            ).int()
            dist.all_reduce(stop)
            if int(stop):
                break
    torch.cuda.synchronize()
    wrong = engine.errors()
    if mismatches.any():
        wrong.append(f"{mismatches.tolist()} rows/elements differ")
    if rank == 0:
        print(f"stress: {done} iterations in {time.time() - start:.1f} s", flush=True)
    return settle(wrong, "stress")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stress", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--skip-cases", action="store_true")
    options = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    failed = False
    if not options.skip_cases:
        failed = cases(device) or guards(device)
    if not failed and options.stress:
        failed = stress(device, options.stress, options.seconds)
    if dist.get_rank() == 0:
        print(
            f"{dist.get_world_size()} ranks: {'FAILED' if failed else 'all cases hold'}", flush=True
        )
    dist.destroy_process_group()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
