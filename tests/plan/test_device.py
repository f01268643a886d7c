"""The planner on a GPU: the same lists as on the CPU, to the last element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fuscoc_runtime.comm.lockstep import run_lockstep
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan import Points, RankPlan, plan_rank
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.topology import Topology
from tests.plan.specs import contexts, relation, routed, routed_data, tiles
from tests.plan.test_errors import tiles_data

pytestmark = pytest.mark.gpu


def on_device(points: Points, device: torch.device) -> Points:
    return replace(
        points,
        columns={name: column.to(device) for name, column in points.columns.items()},
        key_to_rank=None if points.key_to_rank is None else points.key_to_rank.to(device),
    )


def plans(
    spec: ShuffleSpec, topology: Topology, ranks: list[RankData], device: torch.device
) -> list[RankPlan]:
    return run_lockstep(
        [
            plan_rank(
                replace(ctx, device=device), on_device(relation(spec, topology, rank, data), device)
            )
            for rank, (ctx, data) in enumerate(zip(contexts(spec, topology), ranks, strict=True))
        ]
    )


def routed_case() -> tuple[ShuffleSpec, list[RankData]]:
    generator = torch.Generator().manual_seed(1)
    tables = [torch.randint(-1, 24, (100 * rank, 4), generator=generator) for rank in range(6)]
    spec = routed(topk=4, num_keys=24, align=8)
    return spec, [routed_data(idx, rank) for rank, idx in enumerate(tables)]


def tiles_case() -> tuple[ShuffleSpec, list[RankData]]:
    generator = torch.Generator().manual_seed(1)
    ranks = []
    for rank in range(6):
        where = torch.zeros(rank, 2, 2, 2, dtype=torch.int64)
        data = tiles_data(where, length=6 * 4 * 6)
        where[..., 0] = torch.randint(-1, 6, where.shape[:-1], generator=generator)
        where[..., 1] += 24 * rank
        ranks.append(data)
    return tiles(), ranks


@pytest.mark.parametrize("make", [routed_case, tiles_case])
@pytest.mark.parametrize("topology", ["1x6", "3x2", "6x1"])
def test_same_lists(make: Callable[[], tuple[ShuffleSpec, list[RankData]]], topology: str) -> None:
    spec, ranks = make()
    where = Topology.parse(topology)
    devices = [torch.device("cpu"), torch.device("cuda")]
    for cpu, gpu in zip(*(plans(spec, where, ranks, device) for device in devices), strict=True):
        assert gpu.lists.keys() == cpu.lists.keys()
        for name, columns in cpu.lists.items():
            for column, values in columns.items():
                assert gpu.lists[name][column].is_cuda
                assert torch.equal(gpu.lists[name][column].cpu(), values), (name, column)
        for name in ("point_order", "keys", "key_counts", "key_offsets"):
            assert torch.equal(getattr(gpu, name).cpu(), getattr(cpu, name)), name
        assert (gpu.rows, gpu.max_rows) == (cpu.rows, cpu.max_rows)
