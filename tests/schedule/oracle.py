"""Slow, obvious versions of what the planner does in C and numpy: loops over ranks and rows."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import permutations

import numpy as np

from fuscoc_runtime.plan.flows import Assignment, Demand
from fuscoc_runtime.plan.schedule import Schedule


def rows(demand: Demand) -> Iterator[tuple[int, int, int]]:
    """Every row that crosses the network: (source rank, destination node, row of the flow)."""
    for source, node in np.argwhere(demand.flows > 0):
        for row in range(demand.flows[source, node]):
            yield int(source), int(node), row


def route(demand: Demand, assignment: Assignment) -> dict[tuple[int, int, int], tuple[int, int]]:
    """Row -> (rank that sends it, rank that receives it)."""
    m = demand.ranks_per_node
    result = {}
    for source, node, row in rows(demand):
        local, first = 0, 0
        while row >= first + assignment.share[source, node, local]:
            first += int(assignment.share[source, node, local])
            local += 1
        sender = source // m * m + local if assignment.carried else source
        result[source, node, row] = (sender, node * m + local)
    return result


def delivered(demand: Demand, schedule: Schedule) -> list[tuple[int, int, int]]:
    """Rows in the order in which the stages deliver them, as the senders see it."""
    queues: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for row, pair in sorted(route(demand, schedule.assignment).items()):
        queues.setdefault(pair, []).append(row)
    moves = []
    for rank in range(demand.num_ranks):
        sends = schedule.sends(rank)
        for stage, peer, begin, end in zip(
            sends.stage, sends.peer, sends.begin, sends.end, strict=True
        ):
            moves.append((int(stage), rank, int(peer), int(begin), int(end)))
    return [
        row
        for _, sender, receiver, begin, end in sorted(moves)
        for row in queues[sender, receiver][begin:end]
    ]


def nic_loads(demand: Demand, assignment: Assignment) -> tuple[np.ndarray, np.ndarray]:
    """Rows sent and received over the network by every rank."""
    sent = np.zeros(demand.num_ranks, np.int64)
    received = np.zeros(demand.num_ranks, np.int64)
    for sender, receiver in route(demand, assignment).values():
        sent[sender] += 1
        received[receiver] += 1
    return sent, received


def nvlink_loads(demand: Demand, assignment: Assignment, source_node: int, node: int) -> dict:
    """Of one tile, exactly: the busiest rank's rows to or from carriers, and to final ranks."""
    m = demand.ranks_per_node
    give, take = [0] * m, [0] * m
    forward, accept = [Fraction(0)] * m, [Fraction(0)] * m
    for (source, to, _), (sender, forwarder) in route(demand, assignment).items():
        if source // m != source_node or to != node:
            continue
        if sender != source:
            give[source % m] += 1
            take[sender % m] += 1
        for local in range(m):
            if node * m + local != forwarder:
                copies = Fraction(
                    int(demand.copies[source, node * m + local]), int(demand.flows[source, node])
                )
                forward[forwarder % m] += copies
                accept[local] += copies
    return {"balance": max(give + take), "redistribution": max(forward + accept)}


def padded(matrix: np.ndarray) -> np.ndarray:
    """Every row and column sum raised to the largest."""
    matrix = matrix.copy()
    largest = max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max())
    for i, j in np.ndindex(*matrix.shape):
        matrix[i, j] += min(largest - matrix[i].sum(), largest - matrix[:, j].sum())
    return matrix


def birkhoff(matrix: np.ndarray) -> list[tuple[int, tuple[int, ...]]]:
    """The textbook: repeat any perfect matching and subtract its smallest entry."""
    matrix = padded(matrix)
    stages = []
    while matrix.any():
        peer = next(
            p
            for p in permutations(range(len(matrix)))
            if all(matrix[i, j] for i, j in enumerate(p))
        )
        weight = min(int(matrix[i, j]) for i, j in enumerate(peer))
        for i, j in enumerate(peer):
            matrix[i, j] -= weight
        stages.append((weight, peer))
    return stages


def fewest_on_busiest(flows: list[int], num_bins: int) -> int:
    """The least that the fullest of ``num_bins`` holds, over all ways to place whole flows."""
    best = sum(flows)
    bins = [0] * num_bins

    def place(k: int) -> None:
        nonlocal best
        if max(bins) >= best:
            return
        if k == len(flows):
            best = max(bins)
            return
        for b in range(num_bins):
            bins[b] += flows[k]
            place(k + 1)
            bins[b] -= flows[k]

    if flows:
        best += 1
        place(0)
    return best


def pipeline(
    network: np.ndarray,
    balance: np.ndarray,
    redistribution: np.ndarray,
    local: np.ndarray,
    wire: tuple[float, float, float],
    slice_segments: int,
) -> float:
    """Completion by definition: every finishing time as a maximum over what it waits for."""
    nic, nvlink, latency = wire
    nodes = range(len(local))
    slices = []  # (seconds on the NIC, balance and redistribution seconds by node)
    for k, amount in enumerate(network):
        count = -(-int(amount) // slice_segments)
        sizes = (
            amount * nic / count,
            balance[k] * nvlink / count,
            redistribution[k] * nvlink / count,
        )
        slices += [(sizes[0] + latency, *sizes[1:])] + [sizes] * (count - 1)
    # Slice c arrives after some slice b <= c was balanced everywhere and b..c were sent.
    arrived = [
        max(
            max(sum(s[1][i] for s in slices[: b + 1]) for i in nodes)
            + sum(s[0] for s in slices[b : c + 1])
            for b in range(c + 1)
        )
        for c in range(len(slices))
    ]
    finished = [arrived[-1]] if arrived else [0.0]
    for i in nodes:
        balanced = sum(s[1][i] for s in slices) + local[i] * nvlink
        finished.append(balanced + sum(s[2][i] for s in slices))
        finished += [
            arrived[c] + sum(s[2][i] for s in slices[c:])
            for c in range(len(slices))
            if slices[c][2][i] > 0
        ]
    return max(finished)
