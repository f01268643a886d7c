"""Dispatch: every point exactly once, in its slot, with no more copies than the policy allows."""

from __future__ import annotations

import numpy as np

from fuscoc.testing.arrays import Ints, first, group_ids
from fuscoc.testing.facts import UNWRITTEN, PlanFacts, require_all
from fuscoc.testing.invariants.lists import first_of
from fuscoc.testing.violations import PlanViolation


def check_delivery(facts: PlanFacts) -> None:
    """Every (source, destination) pair arrives once in its exact slot, and a dropped one never."""
    for name in ("carry", "net_send", "direct"):
        known = facts.segments[name] >= 0
        require_all(facts.tables[name], known, "check_delivery", "reads no segment of the source")
    expected, writes = facts.expected, facts.writes
    belongs = _segment_of_row(facts)
    at = first(belongs[writes.rank, writes.slot] != writes.segment)
    if at is not None:
        table, index = facts.writer(at)
        rank, slot = int(writes.rank[at]), int(writes.slot[at])
        right = _point(facts, rank, slot)
        table.fail(
            "check_delivery",
            f"writes {_segment(facts, int(writes.segment[at]))} to {facts.place} {slot} of rank "
            f"{rank}, which is for {right}",
            index,
        )
    arrived = np.zeros(belongs.shape, np.bool_)
    arrived[writes.rank, writes.slot] = True
    at = first(~arrived[expected.rank, expected.row])
    if at is not None:
        rank, slot = int(expected.rank[at]), int(expected.row[at])
        raise PlanViolation(
            "check_delivery",
            f"{_point(facts, rank, slot)} never arrives in {facts.place} {slot} of rank {rank}",
            rank=int(expected.source_rank[at]),
        )


def check_writes(facts: PlanFacts) -> None:
    """No slot is written twice, padding not at all, and copies read what is already there."""
    writes = facts.writes
    at = first(~first_of(writes.rank, writes.slot))
    if at is not None:
        table, index = facts.writer(at)
        table.fail(
            "check_writes",
            f"{facts.place} {writes.slot[at]} of rank {writes.rank[at]} is written twice",
            index,
        )
    at = first(_segment_of_row(facts)[writes.rank, writes.slot] < 0)
    if at is not None:
        table, index = facts.writer(at)
        where = f"{facts.place} {writes.slot[at]} of rank {writes.rank[at]}"
        table.fail("check_writes", f"{where} is padding, yet it is written", index)
    local = facts.tables["local"]
    copied = writes.segment[len(writes.segment) - len(local) :]
    problem = "reads a slot that no other rank has written"
    require_all(local, copied != UNWRITTEN, "check_writes", problem)


def check_node_dedup(facts: PlanFacts) -> None:
    """With dedup ``node``, a segment crosses the network at most once to every node."""
    if facts.shuffle.program.copies_once("node"):
        node = facts.rows.forwarder // facts.topology.ranks_per_node
        at = _too_often(facts, facts.sent.segment, node)
        if at is not None:
            problem = f"this segment has been sent to node {node[at]} before"
            facts.sent.fail("check_node_dedup", problem, at)


def check_rank_dedup(facts: PlanFacts) -> None:
    """With dedup ``rank``, a segment crosses NVLink at most once to every rank."""
    if facts.shuffle.program.copies_once("rank"):
        num_copies = len(facts.writes.rank) - len(facts.tables["local"])
        segment, rank = facts.writes.segment[:num_copies], facts.writes.rank[:num_copies]
        at = _too_often(facts, segment, rank)
        if at is not None:
            table, index = facts.writer(at)
            problem = f"this segment has been sent to rank {rank[at]} before"
            table.fail("check_rank_dedup", problem, index)


def _too_often(facts: PlanFacts, segment: Ints, place: Ints) -> int | None:
    """A copy of a segment to a place beyond one for every source with the segment's address."""
    ids = group_ids(segment, place)
    count = np.bincount(ids, minlength=1)
    excess = (segment >= 0) & (count[ids] > facts.segment_sharing[segment])
    at = first(excess)
    return None if at is None else int(np.flatnonzero(ids == ids[at])[-1])


def _segment_of_row(facts: PlanFacts) -> Ints:
    """int64 [num_ranks, most rows]: the segment that belongs there; -1 for padding."""
    expected = facts.expected
    most = max(int(facts.row_counts("target").max()), int(expected.num_rows.max()))
    belongs = np.full((facts.topology.num_ranks, most), -1, np.int64)
    belongs[expected.rank, expected.row] = facts.point_segment
    return belongs


def _point(facts: PlanFacts, rank: int, slot: int) -> str:
    expected = facts.expected
    at = first((expected.rank == rank) & (expected.row == slot))
    if at is None:
        return "nobody (padding)"
    point, source, owner = expected.point[at], expected.source[at], expected.source_rank[at]
    return f"point {point} (segment {source}) of rank {owner}"


def _segment(facts: PlanFacts, segment: int) -> str:
    at = int(np.flatnonzero(facts.segments["source"] == segment)[0])
    rank = int(np.searchsorted(facts.source_begin, at, side="right")) - 1
    return f"segment {at - facts.source_begin[rank]} of rank {rank}"
