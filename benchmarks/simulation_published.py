"""FAST's published numbers beside what the simulator makes of its program, and predictions for
64 H100, of which nobody has measured fuscoc.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from benchmarks.simulation_cases import open_shape
from benchmarks.simulation_fusco import FUSCO, NAIVE, NOMINAL, SHAPE, counts
from benchmarks.simulation_routings import EVEN
from benchmarks.traffic import even, uniform, zipf
from fuscoc.simulate.clusters import Cluster, load_cluster
from fuscoc.simulate.contenders import AUTO, CONTENDERS, contender
from fuscoc.simulate.counts import Counts
from fuscoc.simulate.record import Run
from fuscoc.simulate.runs import simulate
from fuscoc_runtime import Topology
from fuscoc_runtime.plan.flows import Demand
from fuscoc_runtime.plan.links import row_bytes


@dataclass(frozen=True)
class Gain:
    """FAST's over a plain all-to-all, of some seeds: the least, the mean and the most; both alone,
    without the permutes of whoever calls them. Bytes a second of a rank: all that it sends over the
    time, as the paper has them; means."""

    cluster: str
    traffic: str
    per_rank: float
    least: float
    mean: float
    most: float
    plain: float
    fast: float


TRAFFIC: Mapping[str, Callable[[Cluster, int, int], Demand]] = {
    "balanced": lambda c, seed, mean: even(c.nodes, c.ranks_per_node, mean),
    "random": lambda c, seed, mean: uniform(c.nodes, c.ranks_per_node, seed, mean),
    "Zipf 0.8": lambda c, seed, mean: zipf(c.nodes, c.ranks_per_node, 0.8, seed, mean),
}
"""Of FAST's evaluation (arXiv 2505.09764, sections 5 and 5.1)."""
FAST_GAINS = {
    ("h200-4x8-fast", "balanced"): "58 GB/s, both",
    ("h200-4x8-fast", "random"): "1.01–1.1",
    ("h200-4x8-fast", "Zipf 0.8"): "1.2–1.3",
    ("mi300x-4x8", "random"): "1.1–10",
    ("mi300x-4x8", "Zipf 0.8"): "1.3–2.6",
}
"""Over NCCL and RCCL (likewise, sections 5.1.1 and 5.1.2)."""
PER_RANK = (100e6, 1e9)
"""Bytes that a rank sends: the least and the most of its figures 12 and 13."""


def fast_gains(seeds: int = 5) -> Iterator[Gain]:
    """On FAST's two clusters, with its traffic and the ends of its range of sizes."""
    module = open_shape(SHAPE)[1]
    plain = contender("", NAIVE, module)
    fast = contender("", replace(CONTENDERS["fast"], reuses_plan=True), module)
    row = row_bytes(plain.program.buffers["slices"])
    for name in ("h200-4x8-fast", "mi300x-4x8"):
        cluster = load_cluster(name)
        cluster = replace(cluster, costs=replace(cluster.costs, permute=math.inf))
        for traffic, make in TRAFFIC.items():
            for per_rank in PER_RANK:
                mean = round(per_rank / row / (cluster.num_ranks - 1))
                rates = []
                for seed in range(seeds):
                    counts = unshared(make(cluster, seed, mean), cluster)
                    sent = counts.sources.sum() * row / cluster.num_ranks
                    rates.append(
                        [
                            sent / simulate(each, counts, cluster, detailed=False).dispatch.seconds
                            for each in (plain, fast)
                        ]
                    )
                gains = [better / worse for worse, better in rates]
                yield Gain(
                    name, traffic, per_rank, min(gains), sum(gains) / seeds, max(gains),
                    *(sum(each) / seeds for each in zip(*rates, strict=True)),
                )  # fmt: skip


def unshared(demand: Demand, cluster: Cluster) -> Counts:
    """Counts of a demand whose rows all go to one rank each."""
    node = np.arange(cluster.num_ranks) // cluster.ranks_per_node
    return Counts(
        Topology(cluster.nodes, cluster.ranks_per_node),
        points=demand.copies,
        pairs=demand.copies,
        shared=np.zeros_like(demand.copies),
        flows=demand.flows,
        sources=demand.copies.sum(axis=1),
        near=(demand.copies * (node[:, None] == node)).sum(axis=1),
    )


SENSITIVITY: Mapping[str, Mapping[str, float]] = {
    "NICs half as fast": {"nic": 0.5},
    "NICs twice as fast": {"nic": 2.0},
    "NVLink half as fast": {"nvlink": 0.5},
    "HBM half as fast": {"hbm": 0.5},
    "latency times 4": {"latency": 4.0},
    "planning twice as long": {"plan": 2.0, "describe": 2.0},
    "planning for nothing": {"plan": 0.0, "describe": 0.0},
    "permutes as FUSCO's": {"permute": 0.19 / 0.85, "reduce": 0.19 / 0.85},
    "collectives at 62 % of a NIC": {"collective_nic": 0.62, "hop_nic": 0.62},
}
"""Assumptions, and by how much fields of the cluster or of its costs change."""


def on_h100() -> Iterator[tuple[str, str, Run]]:
    """Traffic, contender and run on 64 H100, 16384 tokens; experts are all alike."""
    cluster, module = load_cluster(NOMINAL), open_shape(SHAPE)[1]
    for kind in ("real-world", "single-node"):
        for name in ("fuscoc", "naive", "deduplicated", "fusco", "fast"):
            made = contender("", CONTENDERS[name], module)
            found = counts(kind, 16384, made, widths=EVEN)
            yield kind, name, simulate(made, found, cluster, detailed=False)


def sensitivity(kind: str = "real-world") -> Iterator[tuple[str, float, float, float]]:
    """Assumption, seconds of fuscoc, of naive all-to-all and of FUSCO, 16384 tokens."""
    base, module = load_cluster(NOMINAL), open_shape(SHAPE)[1]
    made = [contender("", each, module) for each in (AUTO, NAIVE, FUSCO)]
    counted = [counts(kind, 16384, each, widths=EVEN) for each in made]
    for name, changes in {"as assumed": {}, **SENSITIVITY}.items():
        costs = {
            k: getattr(base.costs, k) * v for k, v in changes.items() if hasattr(base.costs, k)
        }
        rates = {k: getattr(base, k) * v for k, v in changes.items() if not hasattr(base.costs, k)}
        cluster = replace(base, **rates, costs=replace(base.costs, **costs))
        runs = [
            simulate(*each, cluster, detailed=False) for each in zip(made, counted, strict=True)
        ]
        yield (name, *(each.seconds for each in runs))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in fast_gains():
        print(each, flush=True)
    for row in sensitivity():
        print(*row, flush=True)
