"""How many entries every descriptor list has, by rank, round and rank of the other side.

Rows of a flow are taken to be alike: those of a slice have the mean number of destinations, and of
points, of their source's flow. So entries are no whole numbers. Totals of pairs of ranks are exact,
and those of forwarders where no flow is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fuscoc.simulate.counts import Counts
from fuscoc.simulate.hop import NetworkPlan, Slices

Float64Array = NDArray[np.float64]
Int64Array = NDArray[np.int64]

ALL = -1
"""The round of what has nothing to do with the network hop."""


@dataclass(frozen=True, eq=False)
class Amounts:
    """Columns of equal length. ``rank``: who works; ``round``: when, or ``ALL``; ``peer``: whose
    memory is written, its own included. ``entries``: rows written; ``terms``: rows read."""

    rank: Int64Array
    round: Int64Array
    peer: Int64Array
    entries: Float64Array
    terms: Float64Array


class ListAmounts:
    """The amounts of one call, by the name of a list. ``compact``: a row is on a rank once, however
    many slots refer to it, so that nothing is copied there."""

    def __init__(self, counts: Counts, plan: NetworkPlan, compact: bool) -> None:
        self._counts, self._plan, self._compact = counts, plan, compact
        self._m = counts.topology.ranks_per_node
        self._lists: Mapping[str, Callable[[], Amounts]] = {
            "net_send": self._net_send,
            "carry": self._carry,
            "carried": self._carried,
            "direct": self._direct,
            "forward": self._forward,
            "local": self._local,
            "reduce_forward": self._reduce_forward,
            "reduce_direct": self._reduce_direct,
            "reduce_node": self._reduce_node,
            "hand_back": self._hand_back,
            "reduce_source": self._reduce_source,
        }

    def of(self, name: str) -> Amounts:
        """The amounts of a list; KeyError if the simulator knows none of that name."""
        return self._lists[name]()

    @cached_property
    def _own(self) -> Float64Array:
        """Rows of every slice that are the sender's own: they come first."""
        slices, assignment = self._plan.slices, self._plan.assignment
        if not assignment.hands_over:
            return slices.rows.astype(np.float64)
        node, local = np.divmod(slices.receiver, self._m)
        own = assignment.share[slices.sender, node, local]
        return np.asarray(np.clip(own - slices.begin, 0, slices.rows), np.float64)

    def _net_send(self) -> Amounts:
        slices = self._plan.slices
        return _sum(slices.sender, slices.round, slices.sender, self._own, self._own)

    def _carried(self) -> Amounts:
        slices = self._plan.slices
        taken = slices.rows - self._own
        return _sum(slices.sender, slices.round, slices.sender, taken, taken)

    def _handed(self) -> tuple[Slices, Int64Array, Int64Array, Float64Array]:
        """Of rows that a rank sends for others: their slices, sources, rounds and amounts."""
        slices, share, m = self._plan.slices, self._plan.assignment.share, self._m
        node, local = np.divmod(slices.receiver, m)
        sources = (slices.sender // m * m)[:, None] + np.arange(m)
        rows = share[sources, node[:, None], local[:, None]].astype(np.float64)
        rows[sources == slices.sender[:, None]] = 0
        all_rows = np.maximum(rows.sum(axis=1), 1)
        part = rows * ((slices.rows - self._own) / all_rows)[:, None]
        which, column = np.nonzero(part)
        return slices, which, sources[which, column], part[which, column]

    def _carry(self) -> Amounts:
        slices, which, source, rows = self._handed()
        return _sum(source, slices.round[which], slices.sender[which], rows, rows)

    def _hand_back(self) -> Amounts:
        slices, which, source, rows = self._handed()
        everything = np.concatenate([rows, self._own])
        return _sum(
            np.concatenate([slices.sender[which], slices.sender]),
            np.concatenate([slices.round[which], slices.round]),
            np.concatenate([source, slices.sender]),
            everything,
            everything,
        )

    def _direct(self) -> Amounts:
        source, target = np.nonzero(self._counts.pairs * self._counts.same_node)
        entries = self._counts.pairs[source, target].astype(np.float64)
        return Amounts(source, np.full_like(source, ALL), target, entries, entries)

    @cached_property
    def _forwarded(self) -> tuple[Int64Array, Int64Array, Int64Array, Float64Array, Float64Array]:
        """Forwarder, round, destination, pairs and points of what every slice brings."""
        counts, assignment, slices = self._counts, self._plan.assignment, self._plan.slices
        m, num_nodes = self._m, counts.topology.num_nodes
        node, local = np.divmod(slices.receiver, m)
        # Of a row of the flow from a source to a node: the pairs at every rank there, and points.
        shape = len(counts.flows), num_nodes, m
        per_row = np.maximum(counts.flows, 1)[:, :, None]
        pairs, points = (each.reshape(shape) / per_row for each in (counts.pairs, counts.points))
        if self._plan.is_straight and num_nodes > 1:
            ratio = counts.points / np.maximum(counts.pairs, 1)
            served = np.zeros((len(slices.rows), m))
            served[np.arange(len(served)), local] = slices.rows
            wanted = served * ratio[slices.sender, slices.receiver][:, None]
        elif not assignment.hands_over:
            rows = slices.rows[:, None]
            served = rows * pairs[slices.sender, node]
            wanted = rows * points[slices.sender, node]
        else:
            source = (slices.sender // m * m)[:, None] + np.arange(m)
            share = assignment.share[source, node[:, None], local[:, None]].astype(np.float64)
            share *= (slices.rows / np.maximum(share.sum(axis=1), 1))[:, None]
            served = np.einsum("ks,ksd->kd", share, pairs[source, node[:, None]])
            wanted = np.einsum("ks,ksd->kd", share, points[source, node[:, None]])
        which, target = np.nonzero(served)
        return (
            slices.receiver[which],
            slices.round[which],
            node[which] * m + target,
            served[which, target],
            wanted[which, target],
        )

    def _forward(self) -> Amounts:
        forwarder, number, target, pairs, _ = self._forwarded
        return _sum(forwarder, number, target, pairs, pairs)

    def _local(self) -> Amounts:
        """Copies of rows that a rank has: what direct rows leave to do, then every round's."""
        counts = self._counts
        if self._compact:
            none, nothing = np.zeros(0, np.int64), np.zeros(0)
            return Amounts(none, none, none, nothing, nothing)
        near = (counts.points - counts.pairs) * counts.same_node
        read = counts.shared * counts.same_node
        rank = np.arange(len(near))
        _, number, target, pairs, points = self._forwarded
        return _sum(
            np.concatenate([rank, target]),
            np.concatenate([np.full_like(rank, ALL), number]),
            np.concatenate([rank, target]),
            np.concatenate([near.sum(axis=0).astype(np.float64), points - pairs]),
            np.concatenate(
                [read.sum(axis=0).astype(np.float64), np.minimum(pairs, points - pairs)]
            ),
        )

    def _reduce_forward(self) -> Amounts:
        forwarder, number, target, pairs, points = self._forwarded
        return _sum(target, number, forwarder, pairs, points)

    def _reduce_direct(self) -> Amounts:
        counts = self._counts
        source, target = np.nonzero(counts.pairs * counts.same_node)
        entries = counts.pairs[source, target].astype(np.float64)
        terms = counts.points[source, target].astype(np.float64)
        return Amounts(target, np.full_like(source, ALL), source, entries, terms)

    def _reduce_node(self) -> Amounts:
        slices = self._plan.slices
        forwarder, number, _, pairs, _ = self._forwarded
        return _sum(
            np.concatenate([slices.receiver, forwarder]),
            np.concatenate([slices.round, number]),
            np.concatenate([slices.receiver, forwarder]),
            np.concatenate([slices.rows.astype(np.float64), np.zeros(len(pairs))]),
            np.concatenate([np.zeros(len(slices.rows)), pairs]),
        )

    def _reduce_source(self) -> Amounts:
        counts = self._counts
        rank = np.arange(len(counts.sources))
        near = (counts.pairs * counts.same_node).sum(axis=1)
        terms = (near + counts.flows.sum(axis=1)).astype(np.float64)
        return Amounts(
            rank, np.full_like(rank, ALL), rank, counts.sources.astype(np.float64), terms
        )


def _sum(
    rank: Int64Array,
    number: Int64Array,
    peer: Int64Array,
    entries: Float64Array,
    terms: Float64Array,
) -> Amounts:
    """Amounts of the same rank, round and peer together; none that are nothing."""
    kept = (entries > 0) | (terms > 0)
    rank, number, peer = rank[kept], number[kept], peer[kept]
    width = int(peer.max(initial=0)) + 1
    depth = int(number.max(initial=ALL)) + 2
    key, place = np.unique((rank * depth + number + 1) * width + peer, return_inverse=True)
    before, peer = np.divmod(key, width)
    rank, number = np.divmod(before, depth)
    size = len(key)
    return Amounts(
        rank,
        number - 1,
        peer,
        np.asarray(np.bincount(place, entries[kept], size), np.float64),
        np.asarray(np.bincount(place, terms[kept], size), np.float64),
    )
