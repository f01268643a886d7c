"""Where rows of flows lie and travel: what ranks compute apart fits together."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc_runtime.engine.node.ways import Ways, find_ways, on_lanes
from fuscoc_runtime.manifest.program import Rules
from fuscoc_runtime.plan.flows import Demand
from tests.schedule.strategies import demands, model

RULES = st.builds(
    Rules,
    st.sampled_from(["static", "greedy", "lpt", "split", "rebalance", "auto"]),
    st.sampled_from(["pairwise", "fast", "auto"]),
    st.just(1 << 23),
)


def place(parts: np.ndarray, row: int) -> tuple[int, int]:
    """The rank of a node that has a row of a flow, and where."""
    for end, shift, rank in parts.tolist():
        if row < end:
            return rank, row + shift
    raise AssertionError(f"row {row} is in no part")


def carried(ways: list[Ways], back: bool, num_lanes: int) -> dict[tuple[int, int], tuple[int, int]]:
    """Of places in the memory of senders, by rank, where their rows land."""
    landed: dict[tuple[int, int], tuple[int, int]] = {}
    moves = [on_lanes(each.moves, num_lanes, back).tolist() for each in ways]
    for each, own in zip(ways, moves, strict=True):
        legs = [lane // num_lanes for lane, *_ in own]
        assert legs == sorted(legs)
        assert set(legs) == set(range(each.num_legs))
    # A lane has rows in the order of its legs.
    waiting = [[(at % num_lanes, *rest) for at, sent, *rest in own if not sent] for own in moves]
    for rank, own in enumerate(moves):
        for lane, is_sent, peer, *rows in own:
            if not is_sent:
                continue
            between = lane % num_lanes, rank
            index = next(i for i, each in enumerate(waiting[peer]) if each[:2] == between)
            _, _, *to = waiting[peer].pop(index)
            assert rows[0] < rows[1]
            for one, other in zip(range(*rows), range(*to), strict=True):
                assert (rank, one) not in landed, "nothing travels twice"
                landed[rank, one] = peer, other
    assert not any(waiting)
    assert len(set(landed.values())) == len(landed), "nothing is written over"
    return landed


@given(demands(max_nodes=4, max_ranks_per_node=3), RULES, st.integers(1, 4))
@settings(max_examples=150)
def test_every_row_arrives(demand: Demand, rules: Rules, num_lanes: int) -> None:
    check_that_rows_arrive(demand, rules, num_lanes)


@given(demands(max_nodes=2, max_ranks_per_node=20), RULES, st.integers(1, 2))
@settings(max_examples=10)
def test_every_row_arrives_in_nodes_of_many_ranks(
    demand: Demand, rules: Rules, num_lanes: int
) -> None:
    check_that_rows_arrive(demand, rules, num_lanes)


def check_that_rows_arrive(demand: Demand, rules: Rules, num_lanes: int) -> None:
    """Where the rank that takes it on looks for it, by the tables of both; and comes back so."""
    m, num_ranks = demand.ranks_per_node, demand.num_ranks
    ways = [find_ways(demand, rules, model(), rank) for rank in range(num_ranks)]
    forth, back = (carried(ways, is_back, num_lanes) for is_back in (False, True))
    assert len(forth) == demand.flows.sum()
    assert {there: here for here, there in forth.items()} == back
    assert {each.most_rows for each in ways} == {most(forth, num_ranks)}
    handed_over = [0] * num_ranks
    for source, node in np.argwhere(demand.flows).tolist():
        here, taker = source // m, node * m + source % m
        for row in range(demand.flows[source, node]):
            rank, at = place(ways[source].parts[0, node], row)
            other, there = place(ways[taker].parts[1, here], row)
            assert forth[here * m + rank, at] == (node * m + other, there)
            handed_over[source] += rank != source % m
    assert [each.handed_over for each in ways] == handed_over


def most(forth: dict[tuple[int, int], tuple[int, int]], num_ranks: int) -> int:
    """Rows of the busiest rank, which lie one behind the other."""
    sides = [[at for rank, at in side if rank == each] for each in range(num_ranks)
             for side in (forth.keys(), forth.values())]  # fmt: skip
    assert all(sorted(each) == list(range(len(each))) for each in sides)
    return max(map(len, sides))
