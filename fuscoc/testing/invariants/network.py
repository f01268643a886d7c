"""The network hop: who forwards for whom, in which stages."""

from __future__ import annotations

import numpy as np

from fuscoc.testing.arrays import Ints, first
from fuscoc.testing.facts import PlanFacts, require_all
from fuscoc.testing.violations import PlanViolation
from fuscoc_runtime.plan.schedule import Schedule

GROUPED = ("static", "greedy")
"""Balance policies whose forwarders form communication groups."""


def check_hops(facts: PlanFacts) -> None:
    """A network row goes from its source to a forwarder of another node, which passes it on."""
    sent, rows, m = facts.sent, facts.rows, facts.topology.ranks_per_node
    away = rows.forwarder // m != sent.rank // m
    require_all(sent, away, "check_hops", "crosses the network to its own node")
    used = np.zeros(len(sent), np.bool_)
    used[facts.forward_row] = True
    require_all(sent, used, "check_hops", "lands at a forwarder that passes it on to nobody")


def check_groups(facts: PlanFacts) -> None:
    """Every communication group holds one rank of each node (policies that form groups).

    A rank and its forwarders are in one group, and so are their forwarders.
    """
    if facts.plan.rules.forwarder not in GROUPED:
        return
    net, m = facts.sent, facts.topology.ranks_per_node
    num_ranks = facts.topology.num_ranks
    linked = np.eye(num_ranks, dtype=np.bool_)
    linked[net.rank, facts.rows.forwarder] = True
    linked |= linked.T
    for _ in range(max(1, num_ranks.bit_length())):
        linked = (linked.astype(np.int64) @ linked) > 0
    rank = np.arange(num_ranks)
    clash = linked & (rank[:, None] // m == rank // m) & (rank[:, None] < rank)
    found = np.argwhere(clash)
    if len(found):
        one, other = found[0]
        at = first(np.isin(net.rank, (one, other)) | np.isin(facts.rows.forwarder, (one, other)))
        net.fail(
            "check_groups",
            f"ranks {one} and {other} of node {one // m} end up in one communication group",
            at or 0,
        )


def check_forwarders(facts: PlanFacts) -> None:
    """``Plan.forwarders`` counts the rows that the lists send, and a flow's rows are in order.

    Forwarders that share a flow take consecutive rows of it, ordered by source.
    """
    share = facts.plan.forwarders.pairs
    at = first((share != facts.send_counts).ravel())
    if at is not None:
        source, target = divmod(at, len(share))
        raise PlanViolation(
            "check_forwarders",
            f"forwarders leave {share[source, target]} rows of rank {source} to rank {target}, "
            f"which is sent {facts.send_counts[source, target]}",
            list="net_send",
            rank=source,
        )
    sent, rows = facts.sent, facts.rows
    sources = facts.segments["source"]
    number = np.zeros_like(facts.segment_sharing)
    number[sources] = np.arange(len(sources))
    order = np.lexsort([rows.landing, rows.forwarder, sent.source])
    # Which of the sources of one address a row is of, nothing tells.
    order = order[facts.segment_sharing[sent.segment[order]] == 1]
    node = (rows.forwarder // facts.topology.ranks_per_node)[order]
    owner, place = sent.source[order], number[sent.segment][order]
    same_flow = (owner[1:] == owner[:-1]) & (node[1:] == node[:-1])
    at = first(same_flow & (place[1:] < place[:-1]))
    if at is not None:
        sent.fail("check_forwarders", "comes after rows of later sources", int(order[at + 1]))


def check_senders(facts: PlanFacts) -> None:
    """Rows are handed over only where policies do so, and ``rebalance`` leaves no rank with more.

    What a node sends to another one, its ranks then send in equal parts, within one row.
    """
    rules, carry = facts.plan.rules, facts.tables["carry"]
    if not rules.balances_senders:
        none = np.zeros(len(carry), np.bool_)
        require_all(carry, none, "check_senders", f"balance {rules.forwarder} hands no rows over")
    if rules.forwarder != "rebalance":
        return
    n, m = facts.topology.num_nodes, facts.topology.ranks_per_node
    sent = facts.send_counts.reshape(n, m, n, m).sum(axis=3)
    uneven = np.argwhere(sent.max(axis=1) - sent.min(axis=1) > 1)
    if len(uneven):
        node, other = uneven[0]
        raise PlanViolation(
            "check_senders",
            f"of node {node}, ranks send {sent[node, :, other].tolist()} rows to node {other}",
            rank=int(node * m + sent[node, :, other].argmax()),
        )


def check_schedule(facts: PlanFacts) -> None:
    """Every stage is a partial permutation of the nodes, and the stages add up to the flows."""
    schedule = facts.plan.schedule
    if schedule is None:
        return
    _check_stages(schedule)
    _check_sums(schedule)
    pairs = schedule.assignment.pairs
    at = first((pairs != facts.send_counts).ravel())
    if at is not None:
        source, target = divmod(at, len(pairs))
        raise PlanViolation(
            "check_schedule",
            f"schedules {pairs[source, target]} rows from rank {source} to rank {target}, "
            f"of {facts.send_counts[source, target]}",
            list="net_send",
            rank=source,
        )
    _check_transfers(facts, schedule)


def _check_stages(schedule: Schedule) -> None:
    for stage, peer in enumerate(schedule.peer):
        nodes = np.flatnonzero(peer >= 0)
        values, counts = np.unique(peer[nodes], return_counts=True)
        if (counts > 1).any():
            target = int(values[counts > 1][0])
            senders = [int(node) for node in nodes if peer[node] == target]
            problem = f"in stage {stage} node {target} receives from nodes {senders} at once"
            raise PlanViolation("check_schedule", problem)
        if (peer[nodes] == nodes).any():
            node = int(nodes[peer[nodes] == nodes][0])
            raise PlanViolation("check_schedule", f"in stage {stage} node {node} sends to itself")


def _check_sums(schedule: Schedule) -> None:
    """The ranges of every tile follow each other without gaps, from 0 to the tile's size."""
    reached = np.zeros_like(schedule.tile)
    for stage in range(schedule.num_stages):
        source = np.flatnonzero(schedule.peer[stage] >= 0)
        target = schedule.peer[stage, source]
        begin, end = schedule.begin[stage, source], schedule.end[stage, source]
        gap = first((reached[source, target] != begin) | (end < begin))
        if gap is not None:
            raise PlanViolation(
                "check_schedule",
                f"stage {stage} sends rows {begin[gap]}:{end[gap]} from node {source[gap]} to "
                f"node {target[gap]}, which has got {reached[source[gap], target[gap]]}",
            )
        reached[source, target] = end
    at = first((reached != schedule.tile).ravel())
    if at is not None:
        one, other = divmod(at, len(reached))
        raise PlanViolation(
            "check_schedule",
            f"the stages send {reached[one, other]} of the {schedule.tile[one, other]} rows from "
            f"node {one} to node {other}",
        )


def _check_transfers(facts: PlanFacts, schedule: Schedule) -> None:
    """Both ends of every transfer name the same stage and rows, and all rows are transferred."""
    num_ranks = facts.topology.num_ranks
    sent = [_transfers(schedule, rank, sending=True) for rank in range(num_ranks)]
    received = [_transfers(schedule, rank, sending=False) for rank in range(num_ranks)]
    both = [np.concatenate(side) for side in (sent, received)]
    one, other = (side[np.lexsort(side.T)] for side in both)
    if one.shape != other.shape or (one != other).any():
        raise PlanViolation("check_schedule", "senders and receivers name different transfers")
    total = np.zeros((num_ranks, num_ranks), np.int64)
    np.add.at(total, (one[:, 1], one[:, 2]), one[:, 4] - one[:, 3])
    at = first((total != facts.send_counts).ravel())
    if at is not None:
        source, target = divmod(at, num_ranks)
        raise PlanViolation(
            "check_schedule",
            f"its transfers move {total[source, target]} of {facts.send_counts[source, target]} "
            f"rows from rank {source} to rank {target}",
            rank=source,
        )


def _transfers(schedule: Schedule, rank: int, *, sending: bool) -> Ints:
    """[num_transfers, 5]: stage, sender, receiver, begin, end."""
    moved = schedule.sends(rank) if sending else schedule.receives(rank)
    me = np.full(len(moved.peer), rank)
    pair = (me, moved.peer) if sending else (moved.peer, me)
    return np.stack([moved.stage, *pair, moved.begin, moved.end], axis=1)
