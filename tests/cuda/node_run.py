"""Correctness of the node-local engine on real GPUs; run by torchrun, one process a GPU.

``python -m torch.distributed.run --nproc-per-node N -m tests.cuda.node_run``
exits non-zero, after naming every mismatch, when a case is wrong. Ranks that are more than GPUs
share them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist

from benchmarks.moe_cases import Model, program
from fuscoc_runtime.engine.node.nvlink import CudaNode
from fuscoc_runtime.engine.node.program import MAX_STAGED_PLANS, PLAN_POINTS, NodeProgram
from fuscoc_runtime.engine.node.schedule import Schedule
from fuscoc_runtime.engine.node.state import Limits
from tests.cuda.checks import run_case, settle
from tests.cuda.edges import EDGES
from tests.cuda.models import MODELS, sampled
from tests.gpu_ranks import join

MOST = 520  # tokens of a rank


def cases(models: Sequence[Model], device: torch.device) -> bool:
    """Every model, in calls that are staged and calls that are not."""
    for model in models:
        staged = MAX_STAGED_PLANS * PLAN_POINTS // model.topk  # the most that still is
        printed = program(model)
        for most in (min(MOST, staged), max(MOST, staged + 1)):
            wrong = model_cases(model, printed, most, min(MOST, most), device)
            if wrong:
                return True
    return False


def model_cases(
    model: Model, printed: NodeProgram, most: int, tokens: int, device: torch.device
) -> bool:
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator(device).manual_seed(100 + rank)
    limits = Limits(most, num_ranks * tokens * model.topk + model.experts * model.align)
    engine = CudaNode(printed, limits, dist.group.WORLD, device)
    for kind in ("uniform", "single", "messy"):
        if kind == "single" and model.topk > model.experts // num_ranks:
            continue
        for sizes in ((tokens, 0, tokens // 4, 64), (3, 77, tokens, 1), (0, 0, 0, 0)):
            num_tokens = min(sizes[rank % 4], tokens)
            group = 1 + (sizes[0] % 4)
            engine.configure(
                Schedule(0 if sizes[0] else 16, dispatch_group=group, combine_group=5 - group)
            )
            wrong = run_case(engine, model, kind, num_tokens, generator, combines=2)
            if settle(wrong, f"{model} {kind} {sizes} of {most}"):
                return True
    return False


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sampled", type=int, default=6, help="models beside the chosen ones")
    parser.add_argument("--seed", type=int, default=0)
    names = [edge.__name__ for edge in EDGES]
    parser.add_argument("--edges", nargs="+", choices=names, help="these edges, and no models")
    options = parser.parse_args()
    device = join()
    models = [] if options.edges else [*MODELS, *sampled(options.seed, options.sampled)]
    edges = [edge for edge in EDGES if edge.__name__ in (options.edges or edge.__name__)]
    failed = cases(models, device) or any(edge(device) for edge in edges)
    if dist.get_rank() == 0:
        print(
            f"{dist.get_world_size()} ranks: {'FAILED' if failed else 'all cases hold'}", flush=True
        )
    dist.destroy_process_group()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
