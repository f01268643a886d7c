"""One call, simulated: its tasks built, run, and told as a ``Leg`` of the record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fuscoc.simulate import in_node
from fuscoc.simulate.amounts import ListAmounts
from fuscoc.simulate.clusters import Cluster
from fuscoc.simulate.contenders import Contender
from fuscoc.simulate.counts import Counts
from fuscoc.simulate.events import Progress, Samples, Timeline, busiest, run
from fuscoc.simulate.hop import NetworkPlan, cost_model
from fuscoc.simulate.kept import chosen_ranks
from fuscoc.simulate.pipelined import Host, Pipelined
from fuscoc.simulate.record import Bound, Leg, Links, Load, Spans
from fuscoc.simulate.slabs import Slabs
from fuscoc.simulate.staged import Staged
from fuscoc.simulate.steps import Wires
from fuscoc.simulate.tasks import Builder, Tasks
from fuscoc_runtime.manifest.program import PathSpec

Float64Array = NDArray[np.float64]

MOST_SPANS = 40_000
MOST_LOADED = 1024
"""Links whose load over time is kept: all, or of large clusters the busiest."""
BOUND_SHARE = 0.5
"""A link is what bounds a call if it needs so much of its time."""

RESOURCES: Mapping[str, str] = {
    "hbm": "HBM", "nvlink_out": "NVLink out", "nvlink_in": "NVLink in", "nic_out": "NIC out",
    "nic_in": "NIC in", "rail": "rails", "leaf": "leaves", "spine": "spine",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Simulated:
    """A call's tasks and when they were, and what a record keeps of them."""

    tasks: Tasks
    timeline: Timeline
    leg: Leg


def simulate_leg(
    contender: Contender,
    path: PathSpec,
    counts: Counts,
    plan: NetworkPlan,
    cluster: Cluster,
    *,
    grain: float | None = None,
    detailed: bool = True,
    progress: Progress | None = None,
) -> Simulated:
    """Run one path of a contender's program. ``detailed``: with loads over time."""
    tasks = build(contender, path, counts, plan, cluster)
    links = cluster.links()
    needed = busiest(tasks, links.bandwidth)
    samples = None
    if detailed and needed.any():
        samples = Samples(len(needed), float(needed.max()) / 64)
    timeline = run(tasks, links.bandwidth, grain, samples, progress)
    host = _host(contender, path, plan, cluster)
    known = host.plan + host.describe  # nobody is done before
    spans = _spans(tasks, timeline, cluster.ranks_per_node)
    leg = _leg(timeline, links, needed, known, plan.num_rounds, samples, spans)
    return Simulated(tasks, timeline, leg)


def build(
    contender: Contender, path: PathSpec, counts: Counts, plan: NetworkPlan, cluster: Cluster
) -> Tasks:
    """The tasks of one path: of kernels inside one node, a pipeline, or separate operators."""
    builder = Builder()
    wires = Wires(cluster, contender.program, builder)
    amounts = ListAmounts(counts, plan, contender.program.is_compact)
    is_dispatch = path is contender.program.dispatch
    execution = contender.rewrite.execution
    if execution in ("staged", "hops"):
        host, permutes = _host(contender, path, plan, cluster), execution == "staged"
        Staged(wires, path, plan, counts, amounts, host, permutes).build()
    elif execution in ("fused", "slabs") and cluster.nodes == 1:
        costs = cluster.costs
        late = costs.node_dispatch if is_dispatch else costs.node_combine
        begin = builder.add(np.arange(cluster.num_ranks), latency=late)
        (in_node.build_dispatch if is_dispatch else in_node.build_combine)(wires, counts, begin)
    elif execution == "slabs":
        slabs = Slabs(wires, counts)
        (slabs.dispatch if is_dispatch else slabs.combine)()
    else:
        begin, permute = builder.add(np.arange(cluster.num_ranks)), cluster.costs.permute
        points, sent = counts.points, counts.pairs.sum(axis=1)
        arrived, row = counts.pairs.sum(axis=0), wires.row_bytes("slices")
        if execution == "wrapped" and is_dispatch:
            begin = wires.operator("pack", begin, counts.sources * row, sent * row, permute)
        elif execution == "wrapped":
            begin = wires.operator("pack", begin, points.sum(axis=0) * row, arrived * row, permute)
        pipeline = Pipelined(wires, path, plan, amounts, cost_model(contender, cluster))
        end = pipeline.build(_host(contender, path, plan, cluster), begin)
        if execution == "wrapped" and is_dispatch:
            wires.operator("place", end, arrived * row, points.sum(axis=0) * row, permute)
    return builder.finish()


def _host(contender: Contender, path: PathSpec, plan: NetworkPlan, cluster: Cluster) -> Host:
    costs, execution = cluster.costs, contender.rewrite.execution
    staged = execution == "staged"
    plans = path is contender.program.dispatch and not contender.rewrite.reuses_plan
    if cluster.nodes == 1 or execution == "slabs" or (staged and not plans):
        return Host(0.0, 0.0)
    if not plans:
        return Host(costs.plan_again, 0.0)
    if staged and contender.goes_straight:
        return Host(costs.layout, 0.0)
    later = costs.handover if plan.assignment.hands_over else 0.0
    return Host(costs.plan + later, costs.describe)


def _leg(
    timeline: Timeline,
    links: Links,
    needed: Float64Array,
    host: float,
    num_rounds: int,
    samples: Samples | None,
    spans: Spans,
) -> Leg:
    seconds = timeline.seconds
    kinds = np.array(links.kind)
    bounds = [
        Bound(name, float(needed[kinds == kind].max(initial=0.0)))
        for kind, name in RESOURCES.items()
        if (kinds == kind).any()
    ]
    bounds = sorted([*bounds, Bound("host", host)], key=lambda each: -each.seconds)
    longest = bounds[0]
    limit = longest.resource if longest.seconds >= BOUND_SHARE * seconds else "latency"
    return Leg(
        seconds=seconds,
        num_rounds=num_rounds,
        bounds=tuple(bounds),
        limit=limit,
        bytes=needed * links.bandwidth,
        busy=needed / seconds if seconds else needed,
        load=_load(samples, links, needed, seconds),
        spans=spans,
    )


def _load(
    samples: Samples | None, links: Links, needed: Float64Array, seconds: float
) -> Load | None:
    if samples is None or not seconds:
        return None
    kept = np.sort(np.argsort(-needed, kind="stable")[:MOST_LOADED])
    num = min(len(samples.bytes), int(np.ceil(seconds / samples.length)))
    edges = np.arange(num + 1) * samples.length
    edges[-1] = seconds
    length = np.diff(edges)[:, None]
    busy = samples.bytes[:num, kept] / (length * links.bandwidth[kept])
    return Load(np.asarray(edges, np.float64), kept, np.asarray(busy, np.float64))


def _spans(tasks: Tasks, timeline: Timeline, group: int) -> Spans:
    """Of all ranks, or of those that ``chosen_ranks`` keeps; tasks of one rank, lane and name
    together."""
    shown = np.flatnonzero((tasks.lane >= 0) & (timeline.end > timeline.ready))
    rank, lane, name = tasks.rank[shown], tasks.lane[shown], tasks.name[shown]
    key = (rank * len(tasks.lanes) + lane) * max(1, len(tasks.names)) + name
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    begin = np.full(len(first), np.inf)
    end = np.zeros(len(first))
    # What moves nothing takes its latency.
    moves = timeline.end > timeline.begin
    np.minimum.at(begin, place, np.where(moves, timeline.begin, timeline.ready)[shown])
    np.maximum.at(end, place, timeline.end[shown])
    rank, lane, name = rank[first], lane[first], name[first]
    every = Spans(np.unique(rank), tasks.lanes, tasks.names, rank, lane, name, begin, end)
    ranks = chosen_ranks(every, group, MOST_SPANS)
    kept = np.isin(rank, ranks)
    return replace(
        every, ranks=ranks, rank=rank[kept], lane=lane[kept], name=name[kept],
        begin=begin[kept], end=end[kept],
    )  # fmt: skip
