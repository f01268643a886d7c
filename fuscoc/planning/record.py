"""A plan as the record of a run: what it is predicted to take, beside the other choices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fuscoc.planning.compare import compare_policies, compare_schedules
from fuscoc.simulate.record import (
    Bound,
    ClusterRecord,
    Float64Array,
    Int64Array,
    Leg,
    Links,
    Record,
    Run,
    Spans,
    Stage,
    Traffic,
)
from fuscoc_runtime.plan import Plan
from fuscoc_runtime.plan.flows import Assignment, Demand
from fuscoc_runtime.plan.links import segment_bytes
from fuscoc_runtime.plan.schedule import Schedule
from fuscoc_runtime.plan.summary import human_bytes

ORACLE = "NICs of the busiest node, shared evenly"
"""The bound that no forwarders and no stages can beat."""


def plan_record(plan: Plan, routing: str) -> Record:
    """The record of ``plan``, its balance policies and its schedules; all times are predicted.

    ``routing`` says what was planned for. A plan of one node is alone in its record.
    """
    summary = plan.summary()
    title = (
        f"{summary.shuffle} on {summary.topology}: {summary.num_segments:,} segments of "
        f"{human_bytes(summary.segment_bytes)} to {summary.num_points:,} slots"
    )
    return Record(
        title, "simulation", summary.shuffle, routing, 0, _cluster(plan), tuple(_runs(plan))
    )


def _cluster(plan: Plan) -> ClusterRecord:
    topology, model = plan.topology, plan.model
    speeds = {"nvlink_out": model.nvlink_bandwidth, "nvlink_in": model.nvlink_bandwidth}
    if topology.num_nodes > 1:
        speeds |= {"nic_out": model.nic_bandwidth, "nic_in": model.nic_bandwidth}
    num_ranks = topology.num_ranks
    links = Links(
        tuple(np.repeat(list(speeds), num_ranks).tolist()),
        np.tile(np.arange(num_ranks), len(speeds)),
        np.repeat(list(speeds.values()), num_ranks),
        ("",) * (len(speeds) * num_ranks),
    )
    title = (
        f"{model.nic_bandwidth / 1e9:g} GB/s of NIC and {model.nvlink_bandwidth / 1e9:g} GB/s of "
        "NVLink a rank and direction"
    )
    return ClusterRecord(
        str(topology), title, topology.num_nodes, topology.ranks_per_node, 0, links
    )


def _runs(plan: Plan) -> Iterator[Run]:
    traffic, schedule, demand = plan.traffic, plan.schedule, plan.traffic.demand
    exact = (traffic.nvlink + traffic.handed).astype(np.float64)
    stages = f"schedule {schedule.kind}" if schedule is not None else "all nodes at once"
    words = f"balance {plan.rules.forwarder}, {stages}"
    seconds = plan.predicted.completion
    yield _run(plan, "this plan", words, seconds, traffic.network, exact, schedule)
    if plan.topology.num_nodes == 1:
        return
    for policy in compare_policies(plan):
        if schedule is not None or not policy.chosen:
            name, words = f"balance {policy.policy}", "all nodes at once, without incast"
            network, nvlink = policy.assignment.pairs, nvlink_rows(demand, policy.assignment)
            yield _run(plan, name, words, policy.seconds, network, nvlink, None)
    for row in compare_schedules(plan):
        if not row.chosen:
            assignment, name = row.schedule.assignment, f"schedule {row.kind}"
            network, nvlink = assignment.pairs, nvlink_rows(demand, assignment)
            yield _run(plan, name, "stage after stage", row.seconds, network, nvlink, row.schedule)


def nvlink_rows(demand: Demand, assignment: Assignment) -> Float64Array:
    """float64 [R, R]: rows over NVLink for any assignment, a rank's own memory on the diagonal.

    As in the cost model, each row of a flow has the flow's mean number of destinations.
    """
    n, m = demand.num_nodes, demand.ranks_per_node
    copies = demand.copies.reshape(n * m, n, m).astype(np.float64)
    near = np.repeat(np.eye(n), m, axis=0)[:, :, None]
    part = assignment.share / np.maximum(assignment.share.sum(axis=2, keepdims=True), 1)
    rows = (copies * near).reshape(n, m, n, m)
    node = np.arange(n)
    rows[node, :, node] += np.einsum("sqj,sqk->qjk", part, copies * (1 - near))
    return rows.reshape(n * m, n * m) + assignment.handed


def _run(
    plan: Plan,
    name: str,
    words: str,
    seconds: float,
    network: Int64Array,
    nvlink: Float64Array,
    schedule: Schedule | None,
) -> Run:
    """``network``, ``nvlink``: rows, [R, R]; the diagonal of NVLink costs no wire."""
    n = plan.topology.num_nodes
    wire = nvlink * (1 - np.eye(len(nvlink)))
    passed = [wire.sum(axis=1), wire.sum(axis=0)]
    if n > 1:
        passed += [network.sum(axis=1), network.sum(axis=0)]
    links, moved = _cluster(plan).links, _bytes(plan, np.concatenate(passed))
    needed = moved / links.bandwidth
    bounds = [
        Bound(kind, float(needed[np.array(links.kind) == kind].max()))
        for kind in dict.fromkeys(links.kind)
    ]
    latency = 0.0
    if n > 1:
        bounds.append(Bound(ORACLE, plan.oracle))
        num_stages = schedule.num_stages if schedule is not None else int(network.any())
        latency = plan.model.stage_latency * num_stages
    bounds.sort(key=lambda each: -each.seconds)
    limit = "latency" if latency > bounds[0].seconds else bounds[0].resource
    busy = needed / seconds if seconds else needed
    leg = Leg(seconds, 0, tuple(bounds), limit, moved, busy, None, _stage_spans(plan, schedule))
    naive = plan.traffic.without_dedup()
    before, after = _bytes(plan, naive.network + naive.nvlink), _bytes(plan, network + nvlink)
    traffic = Traffic(_by_node(before, n), _by_node(after, n), before, after)
    return Run(name, words, seconds, leg, None, _stages(plan, schedule), traffic, {})


def _bytes(plan: Plan, rows: Int64Array | Float64Array) -> Float64Array:
    return np.asarray(rows * segment_bytes(plan.shuffle.program), np.float64)


def _by_node(matrix: Float64Array, num_nodes: int) -> Float64Array:
    m = len(matrix) // num_nodes
    return np.asarray(matrix.reshape(num_nodes, m, num_nodes, m).sum(axis=(1, 3)))


def _stages(plan: Plan, schedule: Schedule | None) -> tuple[Stage, ...]:
    """Bytes from node to node of every stage, row by row as ranks send them."""
    if schedule is None:
        return ()
    n, topology = plan.topology.num_nodes, plan.topology
    rows = np.zeros((schedule.num_stages, n, n))
    for rank in range(topology.num_ranks):
        sent = schedule.sends(rank)
        target = sent.peer // topology.ranks_per_node
        np.add.at(rows[:, topology.node(rank)], (sent.stage, target), sent.end - sent.begin)
    return tuple(map(Stage, _bytes(plan, rows)))


def _stage_spans(plan: Plan, schedule: Schedule | None) -> Spans:
    """When ranks are on the network, stage after stage, each as long as its busiest rank needs."""
    topology, model = plan.topology, plan.model
    ranks = np.arange(topology.num_ranks)
    if schedule is None or not schedule.num_stages:
        nothing, never = np.zeros(0, np.int64), np.zeros(0)
        return Spans(nothing, (), (), nothing, nothing, nothing, never, never)
    length = schedule.end - schedule.begin
    lasts = np.array([model.nic_seconds(float(each.max())) for each in length])
    start = np.cumsum(lasts + model.stage_latency) - lasts
    stage, node = np.nonzero(length)
    names = tuple(f"to node {peer}" for peer in range(topology.num_nodes))
    m = topology.ranks_per_node
    rank = (node[:, None] * m + np.arange(m)).ravel()
    begin, peer = np.repeat(start[stage], m), np.repeat(schedule.peer[stage, node], m)
    end = begin + np.repeat(length[stage, node], m) * model.nic_seconds(1)
    return Spans(ranks, ("network",), names, rank, np.zeros_like(rank), peer, begin, end)
