"""The lists of rows that ranks send for one another, against the same in numpy."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc_runtime.plan import PlanContext
from fuscoc_runtime.plan.balance import POLICIES
from fuscoc_runtime.plan.carry import Handed, hand_over
from fuscoc_runtime.plan.flows import Demand, Int64Array, Shares
from fuscoc_runtime.plan.rounds import Rounds, Side, ranges, slices
from fuscoc_runtime.plan.schedule import KINDS, arrange
from fuscoc_runtime.topology import Topology
from tests.plan.specs import routed
from tests.schedule.strategies import demands, model


@dataclass(frozen=True, eq=False)
class Runs:
    """Consecutive rows that a rank sends, run by run in wire order; see ``run_t`` of carry.c."""

    source: Int64Array
    row: Int64Array
    slice: Int64Array
    window: Int64Array
    round: Int64Array
    length: Int64Array

    def __getitem__(self, chosen: Any) -> Runs:
        return Runs(*(getattr(self, each.name)[chosen] for each in fields(self)))

    def each(self, first: Int64Array) -> Int64Array:
        return ranges(first, self.length)

    def alike(self, values: Int64Array) -> Int64Array:
        return np.repeat(values, self.length)

    def per_round(self, num_rounds: int) -> tuple[int, ...]:
        return tuple(np.bincount(self.round, self.length, num_rounds).astype(int).tolist())


def runs_of(rows: Int64Array, first: Int64Array, m: int, sender: int, side: Side) -> Runs:
    """What ``sender`` sends, its own rows first in all that goes to a forwarder."""
    node = range(sender // m * m, sender // m * m + m)
    sources = np.array([sender, *(rank for rank in node if rank != sender)])
    slices = side.slices
    peer = slices.peer[:, None]
    # A slice cut by sources: [num_slices, m].
    counts = rows[sources, peer]
    end = counts.cumsum(axis=1)
    begin = np.maximum(end - counts, slices.begin[:, None])
    length = np.maximum(np.minimum(end, slices.end[:, None]) - begin, 0)
    of_others = np.where(sources == sender, 0, length).ravel()
    return Runs(
        np.tile(sources, len(slices.peer)),
        (first[sources, peer] + begin - (end - counts)).ravel(),
        ((side.begin - slices.begin)[:, None] + begin).ravel(),
        of_others.cumsum() - of_others,
        np.repeat(slices.stage, m),
        length.ravel(),
    )


def check_lists(
    handed: Handed, sent: dict[int, Runs], me: int, m: int, num_direct: Int64Array
) -> None:
    out = sent[me]
    own, taken = out[out.source == me], out[out.source != me]
    others = [(rank, runs[runs.source == me]) for rank, runs in sent.items() if rank != me]
    columns = [
        np.concatenate([getattr(runs, each.name) for _, runs in others]) for each in fields(Runs)
    ]
    given_away, peer = (
        Runs(*columns),
        np.repeat([rank % m for rank, _ in others], [len(runs.length) for _, runs in others]),
    )
    by_round = np.argsort(given_away.round, kind="stable")
    given_away, peer = given_away[by_round], peer[by_round]

    def same(name: str, **expected: Int64Array) -> None:
        assert handed.lists[name].keys() == expected.keys()
        for column, values in expected.items():
            assert handed.lists[name][column].tolist() == values.tolist(), (name, column)

    # The column of addresses is 100 + row here.
    same(
        "carry",
        src_offset=100 + given_away.each(given_away.row),
        dst_peer=given_away.alike(peer),
        dst_row=given_away.each(given_away.window),
    )
    same("carried", src_row=taken.each(taken.window), dst_row=taken.each(taken.slice))
    same("net_send", src_offset=100 + own.each(own.row), dst_row=own.each(own.slice))
    back = (
        out.each(out.slice),
        out.alike(out.source % m),
        out.each(num_direct[out.source] + out.row),
    )
    assert handed.back.tolist() == np.stack(back).tolist()
    for runs in (given_away, own):
        rounds = handed.row_rounds[runs.each(runs.row)]
        assert rounds.tolist() == runs.alike(runs.round).tolist()
    counts = handed.entries.handed, handed.entries.own, handed.entries.taken
    num_rounds = len(handed.entries.own)
    assert counts == tuple(runs.per_round(num_rounds) for runs in (given_away, own, taken))


@settings(max_examples=40)
@given(
    demands(max_nodes=4, max_ranks_per_node=4).filter(lambda each: each.ranks_per_node > 1),
    st.sampled_from(KINDS),
    st.integers(1, 20),
    st.integers(0, 2**32 - 1),
)
def test_what_is_handed_over(demand: Demand, kind: str, round_rows: int, seed: int) -> None:
    m, num_ranks = demand.ranks_per_node, demand.num_ranks
    assignment = POLICIES["rebalance"](demand)
    rounds = Rounds(arrange(kind, demand, assignment, model()), round_rows)
    shares = Shares(demand, assignment, assignment.pairs)
    rows = shares.rows
    first = rows.cumsum(axis=1) - rows
    num_direct = np.random.default_rng(seed).integers(0, 9, num_ranks)
    for me in range(num_ranks):
        ctx = PlanContext(routed(), Topology(demand.num_nodes, m), me)
        num_rounds = slices(rounds.stages, round_rows, me)[0]
        sources = {"src_offset": 100 + torch.arange(int(rows[me].sum()))}
        handed = hand_over(ctx, rounds, num_rounds, shares, num_direct, sources)
        node = range(me // m * m, me // m * m + m)
        sides = {
            rank: Side(slices(rounds.stages, round_rows, rank)[1], tuple(assignment.pairs[rank]))
            for rank in node
        }
        sent = {rank: runs_of(rows, first, m, rank, side) for rank, side in sides.items()}
        check_lists(handed, sent, me, m, num_direct)
