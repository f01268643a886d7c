"""When which node sends to which: the network hop in incast-free stages.

A stage is a partial permutation of the nodes, so no NIC receives from two nodes at once. ``fast``
follows FAST (Lei et al., NSDI '26) on deduplicated segments; docs/scheduling.md tells the story.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from fuscoc_runtime.plan import native
from fuscoc_runtime.plan.cost import CostModel, Prediction, predict_stages
from fuscoc_runtime.plan.flows import Assignment, Demand, Int64Array

KINDS = ("pairwise", "spread-out", "fast")
"""Every schedule but ``auto``, simplest first."""


@dataclass(frozen=True, eq=False)
class Stage:
    """One step of the network hop; arrays are int64 [num_nodes], indexed by the sending node.

    Node ``i`` sends the range ``begin[i]:end[i]`` of its tile to node ``peer[i]`` (-1: nothing).
    """

    peer: Int64Array
    begin: Int64Array
    end: Int64Array

    @property
    def length(self) -> int:
        """Segments that the busiest rank sends or receives."""
        return int((self.end - self.begin).max())


@dataclass(frozen=True, eq=False)
class Transfers:
    """What one rank does, in order: int64 [num_transfers] each.

    In ``stage`` it exchanges rows ``begin:end`` of the rows that it sends to (or gets from) rank
    ``peer`` altogether, ordered as in ``Assignment.pairs``.
    """

    stage: Int64Array
    peer: Int64Array
    begin: Int64Array
    end: Int64Array


@dataclass(frozen=True, eq=False)
class Schedule:
    """Stages of the network hop, and who carries what.

    ``tile``: int64 [num_nodes, num_nodes], the most that one rank sends or receives of what node
    ``i`` sends to node ``q``; the unit of ``begin`` and ``end``. ``peer``, ``begin``, ``end``:
    int64 [num_stages, num_nodes], the rows being the stages. Of every pair of ranks, a range of
    the tile moves the same part of its rows, rounded down at both ends: exactly once in all.
    """

    kind: str
    assignment: Assignment
    tile: Int64Array
    peer: Int64Array
    begin: Int64Array
    end: Int64Array

    @property
    def num_stages(self) -> int:
        return len(self.peer)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        return tuple(map(Stage, self.peer, self.begin, self.end))

    def sends(self, rank: int) -> Transfers:
        """What ``rank`` sends over the network."""
        node = rank // self.assignment.ranks_per_node
        target = self.peer[:, node]
        stage = np.flatnonzero(target >= 0)
        source = np.full(len(stage), node)
        return self._transfers(self.assignment.pairs[rank], stage, source, target[stage])

    def receives(self, rank: int) -> Transfers:
        """What ``rank`` receives, in the order of its senders' stages."""
        stage, source = np.nonzero(self.peer == rank // self.assignment.ranks_per_node)
        return self._transfers(self.assignment.pairs[:, rank], stage, source, source)

    def _transfers(
        self, counts: Int64Array, stage: Int64Array, source: Int64Array, other: Int64Array
    ) -> Transfers:
        """``counts`` [num_ranks]: rows exchanged with every rank. ``source``, ``other``: of every
        stage in which something moves, the node that sends, and that of the other ranks."""
        m = self.assignment.ranks_per_node
        peer = other[:, None] * m + np.arange(m)
        rows = counts[peer]
        at = stage, source
        whole = self.tile[source, self.peer[at]][:, None]
        begin = rows * self.begin[at][:, None] // whole
        end = rows * self.end[at][:, None] // whole
        kept = end > begin
        return Transfers(stage[kept.nonzero()[0]], peer[kept], begin[kept], end[kept])


def predict(demand: Demand, schedule: Schedule, model: CostModel) -> Prediction:
    """Completion of a schedule on the cost model."""
    length = schedule.end - schedule.begin
    return predict_stages(demand, schedule.assignment, schedule.peer, length, model)


def fast(demand: Demand, model: CostModel) -> Schedule:
    """FAST: balance every tile inside its nodes, then stages by Birkhoff-von-Neumann.

    Exact with ``model.stage_latency`` 0: the stages take the largest sum that a node sends or
    receives. With a latency, entries are rounded up to ``model.grain``: fewer stages.
    """
    share, tile = native.rebalance(demand.flows)
    peer, begin, end = native.decompose(tile, model.grain)
    return Schedule("fast", Assignment(share, carried=True), tile, peer, begin, end)


def arrange(kind: str, demand: Demand, assignment: Assignment, model: CostModel) -> Schedule:
    """Stages of ``kind`` (one of ``KINDS``) for a given assignment."""
    if kind == "fast":
        tile = assignment.tile()
        return Schedule(kind, assignment, tile, *native.decompose(tile, model.grain))
    order = {"pairwise": pairwise_peers, "spread-out": spread_out_peers}[kind](demand.num_nodes)
    if native.is_there():
        return Schedule(kind, assignment, *native.stages(assignment.pairs, order))
    return Schedule(kind, assignment, *stages_in_order(assignment, order))


def stages_in_order(
    assignment: Assignment, order: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """What ``native.stages`` does, where there is no compiler."""
    tile = assignment.tile()
    end = tile[np.arange(len(tile)), order]
    peer = np.where(end > 0, order, -1)
    used = end.any(axis=1)
    return tile, peer[used], np.zeros_like(end[used]), end[used]


def cut(schedule: Schedule, rows: int) -> Schedule:
    """The same in more stages, in which no rank sends or receives (much) more than ``rows`` rows.

    A rank that exchanges rows with several ranks of a node does so with all of them in every one.
    """
    length = (schedule.end - schedule.begin).max(axis=1)
    pieces = -(-length // rows)
    stage = np.repeat(np.arange(len(pieces)), pieces)
    piece = np.arange(len(stage)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    even = -(-length // np.maximum(pieces, 1))[stage]
    whole = schedule.end[stage]
    begin = np.minimum(schedule.begin[stage] + (piece * even)[:, None], whole)
    end = np.minimum(begin + even[:, None], whole)
    peer = np.where(end > begin, schedule.peer[stage], -1)
    return replace(schedule, peer=peer, begin=begin, end=end)


@cache
def spread_out_peers(num_nodes: int) -> Int64Array:
    """int64 [num_nodes - 1, num_nodes]: in stage ``k`` node ``i`` sends to node ``i + k + 1``."""
    node = np.arange(num_nodes)
    return (node + node[1:, None]) % num_nodes


@cache
def pairwise_peers(num_nodes: int) -> Int64Array:
    """int64 [num_stages, num_nodes]: nodes exchange in pairs, a round-robin tournament.

    An even number of nodes takes ``n - 1`` stages. An odd one takes ``n``; each node sits out once
    (it is its own peer).
    """
    odd = num_nodes - 1 + num_nodes % 2  # the circle; with an even number, one node stands outside
    node = np.arange(odd)
    peers = (node[:, None] - node) % odd
    if num_nodes % 2:
        return peers
    alone = np.argmax(peers == node, axis=1)
    outside = np.column_stack([peers, alone])
    outside[node, alone] = odd
    return outside
