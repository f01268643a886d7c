"""A record as what the page's script draws: words and numbers in JSON, arrays in one block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuscoc.simulate.explorer import words
from fuscoc.simulate.explorer.kinds import Kind, kinds_of
from fuscoc.simulate.explorer.pack import Block
from fuscoc.simulate.explorer.timeline import Timelines
from fuscoc.simulate.record import ClusterRecord, Float64Array, Leg, Record, Run, Stage, Traffic

MAX_CELLS = 256
"""Rows and columns of a heat map between ranks; larger ones are shown between nodes only."""


def payload(record: Record) -> dict[str, Any]:
    """What the script reads; plain JSON. docs/explorer.md tells what is left out of large runs."""
    block, cluster = Block(), record.cluster
    kinds = kinds_of(cluster.links) if cluster is not None else []
    timelines = Timelines(record, kinds, block)
    runs = [_run(run, kinds, timelines, block) for run in record.runs]
    if record.recorded is not None:
        leg = {"timeline": timelines.of(record.recorded, 0.0)}
        runs.append({"name": "recorded", "rewrite": "a real run", "legs": {"recorded": leg}})
    return {
        "ranks": timelines.num_ranks,
        "cluster": _cluster(cluster, kinds, block) if cluster is not None else None,
        "runs": runs,
        "sweep": [vars(point) for point in record.sweep],
        "ablation": [vars(row) for row in record.ablation],
        "block": block.text(),
    }


def _cluster(cluster: ClusterRecord, kinds: Sequence[Kind], block: Block) -> dict[str, Any]:
    bandwidth = cluster.links.bandwidth
    return {
        "nodes": cluster.num_nodes,
        "ranksPerNode": cluster.ranks_per_node,
        "nodesPerLeaf": cluster.nodes_per_leaf,
        "kinds": [
            {
                "name": kind.name,
                "label": kind.label,
                "owner": kind.owner,
                "bandwidth": block.add(kind.total(bandwidth), "f4"),
            }
            for kind in kinds
        ],
    }


def _run(run: Run, kinds: Sequence[Kind], timelines: Timelines, block: Block) -> dict[str, Any]:
    return {
        "name": run.contender,
        "rewrite": run.rewrite,
        "seconds": run.seconds,
        "bound": words.bound(run),
        "legs": {name: _leg(leg, kinds, timelines, block) for name, leg in words.legs(run)},
        "stages": _stages(run.stages, block),
        "traffic": _traffic(run.traffic, block),
    }


def _leg(leg: Leg, kinds: Sequence[Kind], timelines: Timelines, block: Block) -> dict[str, Any]:
    return {
        "seconds": leg.seconds,
        "limit": words.resource(leg.limit),
        "bounds": [
            {"resource": words.resource(each.resource), "seconds": each.seconds}
            for each in leg.bounds
        ],
        "links": [
            {
                "bytes": block.add(kind.total(leg.bytes), "f4"),
                "busy": block.add(kind.worst(leg.busy), "f4"),
            }
            for kind in kinds
        ],
        "timeline": timelines.of(leg.spans, leg.seconds, leg.load),
    }


def _stages(stages: Sequence[Stage], block: Block) -> dict[str, Any] | None:
    """By stage and node, [S, n]: what it sends and gets, in bytes, and to and from how many others;
    ``peer``: the one that it sends most to."""
    if not stages:
        return None
    sent = [np.where(np.eye(len(stage.bytes)), 0, stage.bytes) for stage in stages]
    return {
        "sent": block.add(np.array([each.sum(axis=1) for each in sent]), "f4"),
        "got": block.add(np.array([each.sum(axis=0) for each in sent]), "f4"),
        "peer": block.add(np.array([each.argmax(axis=1) for each in sent]), "u4"),
        "receivers": block.add(np.array([(each > 0).sum(axis=1) for each in sent]), "u4"),
        "senders": block.add(np.array([(each > 0).sum(axis=0) for each in sent]), "u4"),
    }


def _traffic(traffic: Traffic, block: Block) -> dict[str, Any]:
    def pair(before: Float64Array | None, after: Float64Array | None) -> list[Any] | None:
        if before is None or after is None or len(before) > MAX_CELLS:
            return None
        return [block.add(before, "f4"), block.add(after, "f4")]

    return {
        "node": [block.add(traffic.node_before, "f4"), block.add(traffic.node_after, "f4")],
        "rank": pair(traffic.rank_before, traffic.rank_after),
    }
