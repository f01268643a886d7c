"""Routings at the edges: nothing, one rank, everything dropped, everyone to one."""

from __future__ import annotations

import pytest
import torch

from fuscoc_runtime.topology import Topology
from tests.plan.specs import ALL_DEDUP, routed, routed_data
from tests.plan.test_plan import DEDUPS, TOPOLOGIES, check

NUM_KEYS = 48  # a multiple of every number of ranks here


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("dedup", DEDUPS, ids="+".join)
@pytest.mark.parametrize("routing", ["empty", "dropped", "to_one", "same_key", "broadcast"])
def test_edges(topology: str, dedup: tuple[str, ...], routing: str) -> None:
    where = Topology.parse(topology)
    topk = where.num_ranks if routing == "broadcast" else 3
    spec = routed(topk=topk, num_keys=NUM_KEYS, align=4, dedup=dedup)
    idx = {
        "empty": torch.zeros(0, topk, dtype=torch.int64),
        "dropped": torch.full((4, topk), -1),
        "to_one": torch.tensor([[NUM_KEYS - 1, NUM_KEYS - 2, -1]] * 3),
        "same_key": torch.tensor([[5, 5, 5], [-1, 5, 5]]),
        "broadcast": (torch.arange(topk) * (NUM_KEYS // topk)).expand(2, topk),
    }[routing]
    executor = check(spec, where, [routed_data(idx, rank) for rank in range(where.num_ranks)])
    traffic = executor.traffic
    if routing in ("empty", "dropped"):
        assert not traffic.network
        assert not traffic.nvlink
    if routing == "broadcast" and dedup == ALL_DEDUP:
        segments = 2 * where.num_ranks
        assert traffic.network.total() == segments * (where.num_nodes - 1)
        assert traffic.nvlink.total() == segments * where.num_ranks
        assert traffic.local == 0
    if routing == "same_key" and "rank" in dedup:
        assert traffic.nvlink.total() == 2 * where.num_ranks
        assert traffic.local == 3 * where.num_ranks


def test_only_some_ranks_have_anything() -> None:
    spec = routed(topk=2, num_keys=8)
    rows = [[], [[7, 0], [3, 3]], [], [[0, 1]]]
    check(
        spec,
        Topology(2, 2),
        [
            routed_data(torch.tensor(idx, dtype=torch.int64).view(len(idx), 2), rank)
            for rank, idx in enumerate(rows)
        ],
    )
