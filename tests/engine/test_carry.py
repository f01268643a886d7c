"""Rows that another rank of the node sends: the same rows, slots and sums as without."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc.planning.files import Routing
from fuscoc.testing.invariants import check_plan
from fuscoc_runtime.engine.dispatch import Dispatched
from fuscoc_runtime.errors import CapacityError
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.plan import Plan
from fuscoc_runtime.plan.links import cost_model
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.topology import Topology
from tests.engine import rank_work, specs
from tests.engine.lockstep import dispatch, lockstep, round_trip
from tests.engine.pool import Pool
from tests.engine.skew import HIDDEN, KEYS, skewed

FORCED = "balance rebalance slice 60 B"
TEXTS = {
    "f32": specs.routed("f32", HIDDEN, KEYS, 2, options=FORCED),
    "bf16": specs.routed("bf16", HIDDEN, KEYS, 2, options=f"{FORCED} schedule fast"),
    "f16": specs.routed("f16", HIDDEN, KEYS, 2, options=f"{FORCED} dedup(none)", reduce="sum"),
}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def planned(shuffle: LockstepShuffle, dispatched: Sequence[Dispatched]) -> Plan:
    ranks = tuple(each.handle.plan.to(None) for each in dispatched)
    return Plan(shuffle.spec, shuffle.topology, ranks, cost_model(shuffle.spec.program))


@st.composite
def skews(draw: st.DrawFn) -> tuple[Topology, list[int], list[float]]:
    """Ranks that send nearly all of their rows to other nodes beside ranks that keep theirs."""
    topology = Topology.parse(draw(st.sampled_from(["2x2", "3x2", "2x3"])))
    num_ranks = topology.num_ranks
    tokens = draw(st.lists(st.integers(0, 9), min_size=num_ranks, max_size=num_ranks))
    part = st.sampled_from([0.0, 0.1, 1.0])
    return topology, tokens, draw(st.lists(part, min_size=num_ranks, max_size=num_ranks))


@settings(max_examples=16)
@given(skews(), st.sampled_from(list(TEXTS)), st.integers(0, 99))
def test_rows_are_carried(
    case: tuple[Topology, list[int], list[float]], text: str, seed: int
) -> None:
    """Dispatch bit by bit, combine within its rounding, and every invariant of the plan."""
    topology, tokens, away = case
    shuffle = lockstep(TEXTS[text], str(topology))
    ranks = skewed(topology, DTYPES[text], tokens, away, seed)
    plan = planned(shuffle, round_trip(shuffle, ranks))
    check_plan(plan, Routing(shuffle.spec.name, topology, tuple(ranks)))
    n, m = topology.num_nodes, topology.ranks_per_node
    flows = plan.traffic.demand.flows.reshape(n, m, n)
    quota = -(-flows.sum(axis=1) // m)
    sent = plan.traffic.network.reshape(n, m, n, m).sum(axis=3)
    assert (sent.max(axis=1) == quota).all()
    # No more is handed over than has to be, and ranks that hand rows over take none.
    spare = np.maximum(flows - quota[:, None], 0).sum()
    assert spare <= plan.traffic.handed.sum() <= np.maximum(flows - quota[:, None] + 1, 0).sum()


def test_the_busy_hand_over_half() -> None:
    """Two nodes of two; one rank of each has 16 rows for the other node, its neighbour none."""
    topology = Topology(2, 2)
    shuffle = lockstep(TEXTS["f32"], "2x2")
    ranks = skewed(topology, torch.float32, [16, 3, 16, 0], [1.0, 0.0, 1.0, 0.0], 0)
    dispatched = round_trip(shuffle, ranks)
    traffic = planned(shuffle, dispatched).traffic
    assert traffic.network.sum(axis=1).tolist() == [8, 8, 8, 8]
    assert traffic.handed.tolist() == [[0, 8, 0, 0], [0] * 4, [0, 0, 0, 8], [0] * 4]
    stats = [each.handle.stats for each in dispatched]
    assert [each.carried.rows for each in stats] == [8, 0, 8, 0]
    assert [each.network.rows for each in stats] == [8, 8, 8, 8]
    assert [each.network.saved_rows for each in stats] == [16, 0, 16, 0]  # of each rank's own
    assert [each.handle.plan.rows.carried for each in dispatched] == [0, 8, 0, 8]
    # Further calls: the windows hold rows of this one.
    round_trip(shuffle, skewed(topology, torch.float32, [3, 9, 0, 12], [0.0, 1.0, 0.0, 1.0], 1))


def test_too_little_room() -> None:
    text = specs.routed("f32", HIDDEN, KEYS, 2, options=FORCED, capacity="capacity max 8")
    shuffle = lockstep(text, "2x2")
    ranks = skewed(Topology(2, 2), torch.float32, [16, 0, 0, 0], [1.0, 0.0, 0.0, 0.0], 0)
    with pytest.raises(CapacityError):
        dispatch(shuffle, ranks)


def test_casts_are_carried() -> None:
    """Carriers get rows as they cross the network: here after the cast."""
    shuffle = lockstep(CAST, "2x2")
    ranks = [
        RankData(
            {"x": torch.randn(count, 16, generator=torch.Generator().manual_seed(rank)).bfloat16()},
            {"idx": torch.arange(count) % 6 + 6 * (rank < 2)},
            {"tokens": count},
        )
        for rank, count in enumerate([11, 0, 0, 7])
    ]
    traffic = planned(shuffle, round_trip(shuffle, ranks)).traffic
    assert traffic.handed.sum() == 5 + 3


CAST = """
    shuffle quantised {
      index t : tokens   index e : 12
      segment wide  { x : bf16[16] }
      segment small { x : f8e4m3[16], scales : f32[2] }
      layout by_row[t] of wide
      layout by_key[e, s] of small packed(s)
      place e on rank by block
      route r(t) -> e = input idx : int64
      dispatch by_row[t] -> by_key[r(t), *] cast(x by scales) balance rebalance slice 48 B
      combine reverse
    }"""


def test_processes() -> None:
    """Real processes, shared memory and gloo: four ranks as two nodes."""
    pool = Pool(4)
    try:
        artifacts = [str(specs.artifact(text).path) for text in TEXTS.values()]
        handed = pool.run(rank_work.skewed_plans, 4, artifacts, "2x2", range(len(TEXTS)))
    finally:
        pool.close()
    assert min(handed[0], handed[2]) > 5
