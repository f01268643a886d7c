"""Which rank of the destination node receives each flow: the forwarders.

A node's NICs work in parallel, so what counts is the busiest one, sending or receiving. Each policy
returns an ``Assignment``; docs/scheduling.md compares them, with the worst case of each.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fuscoc_runtime.plan import native
from fuscoc_runtime.plan.flows import Assignment, Demand, Int64Array


def same_local_rank(demand: Demand) -> Assignment:
    """``none``: rank ``s`` sends to the rank with its own local index, on every node.

    One forwarder a flow, and every communication group is one local index. Worst case: ``m`` times
    the ideal, when one local index has all the traffic.
    """
    local = np.arange(demand.ranks_per_node)
    same = np.arange(demand.num_ranks)[:, None, None] % demand.ranks_per_node == local
    return Assignment(demand.flows[:, :, None] * same, carried=False)


def greedy_groups(demand: Demand) -> Assignment:
    """``greedy``: FUSCO's Algorithm 1 (arXiv 2512.22036, section 3.4).

    Each node's ranks by descending cross-node load, node ``i``'s order rotated by ``i``; group
    ``g`` is position ``g`` everywhere, and its ranks are each other's forwarders. So the heaviest
    ranks of the first ``m`` nodes are in different groups. Worst case: two nodes with equal loads
    pair neighbours in the order (8 with 7), and a flow is never shared out: up to ``m`` times the
    ideal.
    """
    return _whole(demand, _group_forwarder(demand, communication_groups(demand)))


def communication_groups(demand: Demand) -> Int64Array:
    """int64 [ranks_per_node, num_nodes]: the rank of each node in each of ``greedy``'s groups."""
    n, m = demand.num_nodes, demand.ranks_per_node
    load = demand.flows.sum(axis=1).reshape(n, m)
    order = np.argsort(-load, axis=1, kind="stable")
    node = np.arange(n)
    return np.asarray(node * m + order[node, (np.arange(m)[:, None] + node) % m])


def _group_forwarder(demand: Demand, groups: Int64Array) -> Int64Array:
    group_of = np.empty(demand.num_ranks, np.int64)
    group_of[groups] = np.arange(len(groups))[:, None]
    return groups[group_of] % demand.ranks_per_node


def longest_first(demand: Demand) -> Assignment:
    """``lpt``: into every node, the longest flow first, to the rank that receives least so far.

    Graham's bound: within 4/3 - 1/(3m) of the best that is possible without cutting flows. Worst
    case: one flow outweighs the rest (``m`` times the ideal), and a busy sender stays one.
    """
    return Assignment(native.longest_first(demand.flows), carried=False)


def split(demand: Demand) -> Assignment:
    """``split``: every rank of a node receives equally much, within one segment.

    The flows into a node, end to end in source order, are cut into ``m`` equal parts: at most
    ``m - 1`` cuts a node. Worst case: a busy sender stays one, up to ``m`` times the ideal.
    """
    m = demand.ranks_per_node
    end = demand.flows.cumsum(axis=0)
    bound = (end[-1] * np.arange(m + 1)[:, None] // m).T  # [num_nodes, m + 1]
    taken = np.minimum(end[:, :, None], bound[:, 1:])
    begin = np.maximum((end - demand.flows)[:, :, None], bound[:, :-1])
    return Assignment(np.ascontiguousarray(np.maximum(taken - begin, 0)), carried=False)


def rebalance(demand: Demand) -> Assignment:
    """``rebalance``: FAST's balancing (section 4.1), of senders and receivers.

    For every destination node, ranks above their node's mean hand rows to ranks below it, over
    NVLink; then rank ``k`` sends to rank ``k``. All NICs of a node are equally busy, within one
    segment a tile. Cost: the rows handed over, at most ``(m-1)/m`` of all, cross NVLink once more,
    and each of them may need forwarding that it did not need before.
    """
    share, _ = native.rebalance(demand.flows)
    return Assignment(share, carried=True)


POLICIES: dict[str, Callable[[Demand], Assignment]] = {
    "static": same_local_rank,
    "greedy": greedy_groups,
    "lpt": longest_first,
    "split": split,
    "rebalance": rebalance,
}
"""Every policy but ``auto``, simplest first."""


def _whole(demand: Demand, local_rank: Int64Array) -> Assignment:
    """Flows that are not cut. ``local_rank``: int64 [num_ranks, num_nodes]."""
    share = np.zeros((*demand.flows.shape, demand.ranks_per_node), np.int64)
    np.put_along_axis(share, local_rank[:, :, None], demand.flows[:, :, None], axis=2)
    return Assignment(share, carried=False)
