"""A worked example: every list of every kind, in its documented order."""

from __future__ import annotations

import pytest
import torch

from fuscoc_runtime.comm.lockstep import run_lockstep
from fuscoc_runtime.plan import BufferRows, RankPlan, plan_rank
from fuscoc_runtime.topology import Topology
from tests.plan.specs import contexts, relation, routed, routed_data

# Four ranks as two nodes; two keys a rank: rank r owns keys 2r and 2r + 1.
ROUTING = [
    [[0, 2, 6], [7, 6, -1], [4, 7, 0]],  # rank 0
    [[0, -1, -1]],  # rank 1
    [],  # rank 2
    [[6, 6, 6], [1, 5, -1]],  # rank 3
]


@pytest.fixture(scope="module")
def plans() -> list[RankPlan]:
    topology, spec = Topology(2, 2), routed(topk=3, num_keys=8, align=2)
    ranks = [
        routed_data(torch.tensor(rows, dtype=torch.int64).view(len(rows), 3), rank)
        for rank, rows in enumerate(ROUTING)
    ]
    return run_lockstep(
        [
            plan_rank(ctx, relation(spec, topology, ctx.rank, data))
            for ctx, data in zip(contexts(spec, topology), ranks, strict=True)
        ]
    )


def table(plan: RankPlan, name: str) -> dict[str, list[int]]:
    return {column: values.tolist() for column, values in plan.lists[name].items()}


def test_slots(plans: list[RankPlan]) -> None:
    """Key 6 (rank 3): rank 0's two points, then rank 3's three; key 7 begins at a multiple of 2."""
    assert [plan.keys.tolist() for plan in plans] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert plans[0].key_counts.tolist() == [3, 1]
    assert plans[0].key_offsets.tolist() == [0, 4, 6]
    assert plans[3].key_counts.tolist() == [5, 2]
    assert plans[3].key_offsets.tolist() == [0, 6, 8]


def test_net_send_is_ordered_by_forwarder_then_source(plans: list[RankPlan]) -> None:
    """Rank 0's forwarder on node 1 is rank 2, rank 3's on node 0 is rank 1."""
    assert table(plans[0], "net_send") == {"src_offset": [0, 1, 2], "dst_row": [0, 1, 2]}
    assert plans[0].net_send_counts == (0, 0, 3, 0)
    assert plans[2].net_recv_counts == (3, 0, 0, 0)
    assert table(plans[3], "net_send") == {"src_offset": [1], "dst_row": [0]}
    assert plans[3].net_send_counts == (0, 1, 0, 0)


def test_direct_is_ordered_by_source_then_rank(plans: list[RankPlan]) -> None:
    assert table(plans[0], "direct") == {
        "src_offset": [0, 0, 2],
        "dst_peer": [0, 1, 0],
        "dst_slot": [0, 0, 1],
    }
    assert table(plans[3], "direct") == {
        "src_offset": [0, 1],
        "dst_peer": [1, 0],
        "dst_slot": [2, 2],
    }


def test_forward_is_ordered_by_landing_row_then_rank(plans: list[RankPlan]) -> None:
    """Segment 1 of rank 0 leads with key 7 on rank 3: its first domain point there."""
    assert table(plans[2], "forward") == {
        "src_row": [0, 1, 2, 2],
        "dst_peer": [1, 1, 0, 1],
        "dst_slot": [0, 6, 0, 7],
    }
    assert table(plans[2], "reduce_node") == {
        "term_begin": [0, 1, 2],
        "term_end": [1, 2, 4],
        "dst_row": [0, 1, 2],
    }
    assert table(plans[0], "forward") == {"src_row": [], "dst_peer": [], "dst_slot": []}


def test_local_copies_every_further_point_from_its_lead(plans: list[RankPlan]) -> None:
    assert table(plans[3], "local") == {"src_slot": [6, 2, 2], "dst_slot": [1, 3, 4]}
    assert table(plans[0], "local") == {"src_slot": [], "dst_slot": []}


def test_reductions_mirror_the_rows_that_came(plans: list[RankPlan]) -> None:
    terms = {"term_slot": [0, 6, 1, 7, 2, 3, 4], "term_point": [0, 1, 2, 3, 4, 5, 6]}
    assert table(plans[3], "reduce_forward") == {
        "dst_peer": [0, 0, 0],
        "dst_row": [0, 1, 3],
        "term_begin": [0, 1, 3],
        "term_end": [1, 3, 4],
        **terms,
    }
    assert table(plans[3], "reduce_direct") == {
        "dst_peer": [1],
        "dst_row": [0],
        "term_begin": [4],
        "term_end": [7],
        **terms,
    }


def test_reduce_source_lists_direct_rows_then_network_rows(plans: list[RankPlan]) -> None:
    """Staging of rank 0: three direct rows, then three network rows."""
    assert table(plans[0], "reduce_source") == {
        "dst_offset": [0, 1, 2],
        "term_begin": [0, 3, 4],
        "term_end": [3, 4, 6],
        "term_row": [0, 1, 3, 4, 2, 5],
    }


def test_weights_travel_by_rank_then_source_then_domain(plans: list[RankPlan]) -> None:
    assert plans[0].point_order.tolist() == [0, 8, 1, 6, 2, 3, 4, 7]
    assert plans[0].point_send_counts == (2, 1, 1, 4)
    assert plans[3].point_recv_counts == (4, 0, 0, 3)


def test_buffer_rows(plans: list[RankPlan]) -> None:
    assert plans[0].rows == BufferRows(
        target=6, staging=6, forward_staging=0, slices=3, landing=0, carried=0
    )
    assert {plan.max_rows for plan in plans} == {
        BufferRows(target=8, staging=6, forward_staging=4, slices=3, landing=3, carried=0)
    }
