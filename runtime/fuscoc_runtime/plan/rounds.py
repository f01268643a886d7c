"""When which rows cross the network: rounds of slices.

A *slice* is a range of rows from one rank to another. A *round* is the slices that travel at once:
a part of a stage (``schedule.py``) that is small enough for gathering, sending and forwarding to
overlap. All ranks number the rounds alike, so what one sends in a round, the other receives in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import numpy as np

from fuscoc_runtime.comm.requests import LEAST_LANES
from fuscoc_runtime.plan.cost import CostModel
from fuscoc_runtime.plan.flows import Int64Array
from fuscoc_runtime.plan.schedule import Schedule, Transfers


def slice_rows(total: int, row_bytes: int, most_bytes: int, model: CostModel) -> int:
    """Rows of a slice when the busiest rank sends or receives ``total`` rows.

    Every slice costs a latency; nothing covers the gathering of the first slice and the forwarding
    of the last, which both run at NVLink's pace. With ``B`` bytes and slices of ``s`` that is
    ``B / s * latency + 2 * s / bandwidth``, least at ``sqrt(B * latency * bandwidth / 2)``. A slice
    holds ``most_bytes`` at most, and one row at least. All lanes of the network get equally many,
    but more than two lanes only slices that travel for longer than that latency.
    """
    num_bytes, latency = total * row_bytes, model.stage_latency
    best = max(row_bytes, math.sqrt(num_bytes * latency * model.nvlink_bandwidth / 2))
    most_rows = max(1, most_bytes // max(1, row_bytes))
    worthwhile = int(model.nic_seconds(total) / latency) if latency else model.num_lanes
    lanes = min(model.num_lanes, max(LEAST_LANES, worthwhile))
    per_lane = max(-(-total // (lanes * most_rows)), round(num_bytes / (lanes * best)), 1)
    return -(-total // (lanes * per_lane))


def cut(schedule: Schedule, rows: int) -> Schedule:
    """Every stage in rounds in which no rank sends or receives (much) more than ``rows`` rows.

    A rank that exchanges rows with several ranks of a node does so with all of them in every round.
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


@dataclass(frozen=True, eq=False)
class Rounds:
    """Stages, to be cut into rounds of about ``rows`` rows. All ranks number them alike."""

    stages: Schedule
    rows: int


def slices(schedule: Schedule, rows: int, rank: int) -> tuple[int, Transfers, Transfers]:
    """How many rounds of about ``rows`` rows there are, and what a rank sends and receives in
    them."""
    rounds = cut(schedule, rows)
    return rounds.num_stages, rounds.sends(rank), rounds.receives(rank)


Slices = tuple[Int64Array, Int64Array, Int64Array]
"""Consecutive rows with one peer and one round: first row, peer, round; int64 [num_slices] each."""


@dataclass(frozen=True, eq=False)
class Side:
    """What one rank sends (or receives) over the network, in wire order: by round, then peer.

    ``slices``: their ``stage`` is the round, and rows count from the first that goes to (or comes
    from) the peer. ``counts``: rows to (from) every rank. A *row* without further words is one in
    the order of the peers, which is that of the ``net_send`` list and of landing rows.
    """

    slices: Transfers
    counts: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        return sum(self.counts)

    @cached_property
    def listed(self) -> list[tuple[int, int, int, int]]:
        """Round, peer, first row and number of rows of every slice."""
        slices, before = self.slices, list(accumulate(self.counts, initial=0))
        columns = slices.stage, slices.peer, slices.begin, slices.end
        return [
            (number, peer, before[peer] + begin, end - begin)
            for number, peer, begin, end in zip(*(c.tolist() for c in columns), strict=True)
        ]

    @cached_property
    def begin(self) -> Int64Array:
        """int64 [num_slices]: the first row of every slice."""
        counts = np.array(self.counts, np.int64)
        return (np.cumsum(counts) - counts)[self.slices.peer] + self.slices.begin

    @property
    def lengths(self) -> Int64Array:
        """int64 [num_slices]: rows of every slice."""
        return np.asarray(self.slices.end - self.slices.begin)

    def order(self) -> Int64Array:
        """int64 [num_rows]: the row at every place of the wire order."""
        return ranges(self.begin, self.lengths)

    def rounds(self) -> Int64Array:
        """int64 [num_rows]: the round of every row."""
        found = np.empty(self.num_rows, np.int64)
        found[self.order()] = np.repeat(self.slices.stage, self.lengths)
        return found

    def in_row_order(self) -> Slices:
        """The slices, ordered by their first rows."""
        begin = self.begin
        order = np.argsort(begin)
        return begin[order], self.slices.peer[order], self.slices.stage[order]

    @property
    def is_ordered(self) -> bool:
        """Whether rows travel in their own order."""
        begin = [each[2] for each in self.listed]
        return begin == sorted(begin)


def slices_of(counts: Int64Array, rounds: Int64Array) -> Slices:
    """The slices of rows of which ``counts`` [R] go to every peer, given the round of each."""
    peer = np.repeat(np.arange(len(counts)), counts)
    starts = np.ones(len(rounds), bool)
    starts[1:] = (np.diff(peer) != 0) | (np.diff(rounds) != 0)
    begin = np.flatnonzero(starts)
    return begin, peer[begin], rounds[begin]


def ranges(begin: Int64Array, lengths: Int64Array) -> Int64Array:
    """begin[0], begin[0] + 1, ... ``lengths[0]`` of them, then those of the next range."""
    before = np.cumsum(lengths) - lengths
    return np.asarray(np.arange(int(lengths.sum())) + np.repeat(begin - before, lengths))


NO_TRANSFERS = Transfers(*(np.zeros(0, np.int64) for _ in range(4)))
