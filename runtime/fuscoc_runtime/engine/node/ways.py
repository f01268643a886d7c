"""The ways of rows that travel as flows: who sends whom what, when, and where it lies meanwhile.
All ranks compute the same from the same numbers.

A rank that sends rows has them in its memory in the order of the ranks that get them, and one that
gets rows in the order of those that send them; of a pair of ranks they lie in the order of
`Assignment.pairs`. On the way back they lie as they did.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuscoc_runtime.manifest.program import Rules
from fuscoc_runtime.plan import native
from fuscoc_runtime.plan.cost import CostModel
from fuscoc_runtime.plan.flows import Demand, Int64Array
from fuscoc_runtime.plan.network import plan_stages

PART = 3
"""Words of a part of a flow; see kernels/device/flows.py."""
LEG, IS_SENT, PEER, FIRST, END = range(5)
"""Words of a move: the stage, of those in which this rank has any; whether the rows are sent to the
other rank, or got from it; and which rows of this rank's memory, from one on up to another."""


@dataclass(frozen=True, eq=False)
class Ways:
    """Of one dispatch, for one rank.

    Attributes:
        parts: int64 [2, num_nodes, ranks_per_node, PART], of this rank's flows to every node the
            parts that one rank sends; then of the flows of the ranks of its place those that one
            rank of its node gets.
        moves: int64 [num_moves, 5], by legs, those that are got before those that are sent, and by
            the other ranks.
        num_legs: in how many they are.
        most_rows: the most that any rank of the job sends or gets, in ``num_stages``.
        handed_over: rows of this rank that others of its node send.
    """

    parts: Int64Array
    moves: Int64Array
    num_legs: int
    most_rows: int
    num_stages: int
    handed_over: int


def find_ways(demand: Demand, rules: Rules, model: CostModel, rank: int) -> Ways:
    """By the policy of a shuffle, for the flows of all ranks."""
    if not demand.flows.any():
        parts = np.zeros((2, demand.num_nodes, demand.ranks_per_node, PART), np.int64)
        return Ways(parts, np.zeros((0, 5), np.int64), 0, 0, 0, 0)
    stages = plan_stages(demand, rules, model)
    table = stages.peer, stages.begin, stages.end, stages.tile
    parts, moves, num_legs, most_rows, handed_over = native.ways(stages.assignment, table, rank)
    return Ways(parts, moves, num_legs, most_rows, stages.num_stages, handed_over)


def on_lanes(moves: Int64Array, num_lanes: int, is_back: bool) -> Int64Array:
    """Equal parts of moves for every lane, which both ranks cut alike, or of those back: int64
    [.., 5], of which the first word is leg * num_lanes + lane, in its order."""
    lane = np.arange(num_lanes)
    made = np.repeat(moves[:, None], num_lanes, axis=1)  # move, lane, word
    first, rows = moves[:, FIRST, None], (moves[:, END] - moves[:, FIRST])[:, None]
    made[:, :, LEG] = moves[:, LEG, None] * num_lanes + lane
    made[:, :, FIRST] = first + rows * lane // num_lanes
    made[:, :, END] = first + rows * (lane + 1) // num_lanes
    made[:, :, IS_SENT] ^= is_back
    found = made.reshape(-1, 5)
    found = found[found[:, END] > found[:, FIRST]]
    return found[np.argsort(found[:, LEG], kind="stable")]
