"""The lists of rows that ranks send for one another, against the same row by row."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc_runtime.plan import PlanContext
from fuscoc_runtime.plan.balance import POLICIES
from fuscoc_runtime.plan.carry import hand_over
from fuscoc_runtime.plan.flows import Demand, Shares
from fuscoc_runtime.topology import Topology
from tests.plan.specs import routed
from tests.schedule.strategies import demands


class Lists:
    """Rows of the lists of every rank, as tuples in the order of their columns: for every sender,
    all that goes to a forwarder, its own rows first."""

    def __init__(self, shares: Shares, m: int, num_direct: list[int]) -> None:
        rows, num_ranks = shares.rows.tolist(), len(shares.rows)
        self.carry, self.carried, self.own, self.back = (
            {rank: list[tuple[int, ...]]() for rank in range(num_ranks)} for _ in range(4)
        )
        for sender in range(num_ranks):
            node = range(sender // m * m, sender // m * m + m)
            place = window = 0
            for forwarder in range(sender % m, num_ranks, m):  # a rank serves those of its place
                for source in (sender, *(rank for rank in node if rank != sender)):
                    first = sum(rows[source][:forwarder])
                    for row in range(first, first + rows[source][forwarder]):
                        if source == sender:
                            self.own[sender].append((row, place))
                        else:
                            self.carry[source].append((row, sender % m, window))
                            self.carried[sender].append((window, place))
                            window += 1
                        self.back[sender].append((place, source % m, num_direct[source] + row))
                        place += 1
            assert place == shares.sent[sender].sum()


@settings(max_examples=40)
@given(
    demands(max_nodes=4, max_ranks_per_node=4).filter(lambda each: each.ranks_per_node > 1),
    st.integers(0, 2**32 - 1),
)
def test_what_is_handed_over(demand: Demand, seed: int) -> None:
    m, num_ranks = demand.ranks_per_node, demand.num_ranks
    assignment = POLICIES["rebalance"](demand)
    shares = Shares(demand, assignment, assignment.pairs)
    num_direct = np.random.default_rng(seed).integers(0, 9, num_ranks)
    expected = Lists(shares, m, num_direct.tolist())
    for me in range(num_ranks):
        ctx = PlanContext(routed(), Topology(demand.num_nodes, m), me, torch.device("cpu"))
        sources = {"src_offset": 100 + torch.arange(int(shares.rows[me].sum()))}
        found = hand_over(ctx, shares, num_direct, sources)
        for name, columns, wanted, first in (
            ("carry", ("src_offset", "dst_peer", "dst_row"), expected.carry[me], 100),
            ("carried", ("src_row", "dst_row"), expected.carried[me], 0),
            ("net_send", ("src_offset", "dst_row"), expected.own[me], 100),
            ("hand_back", ("src_row", "dst_peer", "dst_row"), expected.back[me], 0),
        ):
            assert found[name].keys() == {*columns}
            tuples = zip(*(found[name][column].tolist() for column in columns), strict=True)
            assert [*tuples] == [(first + each[0], *each[1:]) for each in wanted], name
