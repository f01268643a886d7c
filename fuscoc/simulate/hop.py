"""The network hop of all ranks at once, by the planner's own rules: which slices travel when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fuscoc.simulate.clusters import Cluster
from fuscoc.simulate.contenders import Contender
from fuscoc.simulate.counts import Counts
from fuscoc.simulate.rounds import slice_rows
from fuscoc_runtime.plan.choose import arrange_stages, choose_forwarders
from fuscoc_runtime.plan.cost import CostModel
from fuscoc_runtime.plan.flows import Assignment
from fuscoc_runtime.plan.links import network_row_bytes, segment_bytes
from fuscoc_runtime.plan.schedule import Schedule, cut

Int64Array = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Slices:
    """Columns, int64 [num_slices], by round: what ranks send one another. ``rows`` from row
    ``begin`` of all that the sender has for the receiver, which are ``Assignment.pairs``."""

    round: Int64Array
    sender: Int64Array
    receiver: Int64Array
    begin: Int64Array
    rows: Int64Array


@dataclass(frozen=True, eq=False)
class NetworkPlan:
    """``is_straight``: rows go to the ranks that want them, and no forwarder passes them on.
    ``stages``: None where nothing crosses the network, or all of it at once."""

    assignment: Assignment
    is_straight: bool
    stages: Schedule | None
    num_rounds: int
    slices: Slices


def cost_model(contender: Contender, cluster: Cluster) -> CostModel:
    """What the runtime would have measured of the cluster when the shuffle was opened."""
    return CostModel(
        nic_bandwidth=cluster.nic or cluster.nvlink,
        nvlink_bandwidth=cluster.nvlink,
        stage_latency=cluster.latency,
        segment_bytes=max(1, segment_bytes(contender.program)),
        slice_bytes=contender.program.exchange.slice_bytes,
        handover_latency=cluster.costs.handover,
        num_lanes=cluster.lanes,
    )


def plan_network(contender: Contender, counts: Counts, cluster: Cluster) -> NetworkPlan:
    """Forwarders and stages, as ``fuscoc_runtime/plan/network.py`` chooses them, and rounds."""
    demand, model = counts.demand, cost_model(contender, cluster)
    rules = contender.program.exchange
    if contender.goes_straight:
        shape = (*demand.flows.shape, demand.ranks_per_node)
        straight = np.where(counts.same_node, 0, demand.copies).reshape(shape)
        assignment = Assignment(np.ascontiguousarray(straight), carried=False)
    else:
        assignment = choose_forwarders(demand, rules.forwarder, rules.schedule, model)
    pairs = assignment.pairs
    busiest = int(max(pairs.sum(axis=0).max(), pairs.sum(axis=1).max()))
    if busiest == 0:
        none = np.zeros(0, np.int64)
        return NetworkPlan(
            assignment, contender.goes_straight, None, 0, Slices(none, none, none, none, none)
        )
    if contender.at_once:
        sender, receiver = np.nonzero(pairs)
        zero = np.zeros_like(sender)
        slices = Slices(zero, sender, receiver, zero, pairs[sender, receiver])
        return NetworkPlan(assignment, contender.goes_straight, None, 1, slices)
    stages = arrange_stages(demand, assignment, rules.schedule, model)
    rows = slice_rows(busiest, network_row_bytes(contender.program), model.slice_bytes, model)
    rounds = cut(stages, rows)
    return NetworkPlan(
        assignment, contender.goes_straight, stages, rounds.num_stages, slices_of(rounds)
    )


def slices_of(rounds: Schedule) -> Slices:
    """What ``Schedule.sends`` says of one rank, of all of them."""
    m, n = rounds.assignment.ranks_per_node, len(rounds.tile)
    by_node = rounds.assignment.pairs.reshape(n, m, n, m).transpose(0, 2, 1, 3)
    number, source = np.nonzero(rounds.peer >= 0)
    target = rounds.peer[number, source]
    rows = by_node[source, target]  # [num_transfers, m, m]
    whole = rounds.tile[source, target][:, None, None]
    begin = rows * rounds.begin[number, source][:, None, None] // whole
    end = rows * rounds.end[number, source][:, None, None] // whole
    which, here, there = np.nonzero(end > begin)
    at = which, here, there
    return Slices(
        number[which],
        source[which] * m + here,
        target[which] * m + there,
        begin[at],
        (end - begin)[at],
    )
