"""Random batches over real processes and gloo, in many small slices, against the reference."""

from __future__ import annotations

import pytest

from fuscoc_runtime.topology import Topology
from tests.engine import rank_work, specs
from tests.engine.pool import Pool

TEXTS = (
    specs.routed("f32", keys=24, options="slice 96 B"),
    specs.routed("bf16", keys=24, options="balance split schedule fast slice 100 B"),
    specs.routed("f16", keys=24, options="balance greedy schedule auto slice 200 B", reduce="sum"),
    specs.routed("bf16", keys=24, options="dedup(none) balance lpt slice 160 B"),
    specs.routed("bf16", keys=24, options="balance rebalance schedule fast slice 120 B"),
    specs.patches(),
    specs.FIELDS,
    specs.MOVED,
)


def run_plans(topology: str, seeds: range) -> None:
    num_ranks = Topology.parse(topology).num_ranks
    pool = Pool(num_ranks)
    try:
        artifacts = [str(specs.artifact(text).path) for text in TEXTS]
        # In parts, so that a rank that hangs is found out soon, and one that is slow has the time.
        for begin in range(seeds.start, seeds.stop, 15):
            part = range(begin, min(begin + 15, seeds.stop))
            pool.run(rank_work.random_plans, num_ranks, artifacts, topology, part)
    finally:
        pool.close()


@pytest.mark.parametrize("topology", ["2x2", "3x1"])
def test_random_plans(topology: str) -> None:
    run_plans(topology, range(8))


@pytest.mark.nightly
@pytest.mark.parametrize("topology", ["2x2", "3x1", "4x2", "8x1", "2x3", "3x2"])
def test_many_random_plans(topology: str) -> None:
    run_plans(topology, range(1000, 1500))
