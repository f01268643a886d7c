"""FUSCO's and FAST's published numbers beside what the simulator makes of their programs.

python -m benchmarks.simulation_published prints the tables that ``docs/simulation.md`` holds, and
with ``--fit`` the two constants of ``h100-8x8-fusco``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.simulation_cases import open_shape
from benchmarks.simulation_routings import routing
from benchmarks.traffic import even, uniform, zipf
from fuscoc.simulate.clusters import Cluster, load_cluster
from fuscoc.simulate.command import Workload
from fuscoc.simulate.contenders import AUTO, CONTENDERS, Rewrite, ablated, contender
from fuscoc.simulate.counts import Counts
from fuscoc.simulate.record import Run
from fuscoc.simulate.runs import simulate
from fuscoc_runtime import Topology
from fuscoc_runtime.plan.flows import Demand
from fuscoc_runtime.plan.links import row_bytes
from fuscoc_runtime.reference import RankData

Float64Array = NDArray[np.float64]

SHAPE = "deepseek-v3"
TOKENS = (4096, 8192, 16384, 32768)
README: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "real-world": {
        "NCCL": (44.4, 80.2, 143.6, 266.4),
        "DeepEP": (30.7, 58.4, 116.1, 219.6),
        "FUSCO": (27.2, 50.1, 86.8, 164.4),
    },
    "single-node": {
        "NCCL": (44.0, 81.4, 150.1, 274.8),
        "DeepEP": (24.7, 43.8, 81.8, 144.2),
        "FUSCO": (12.6, 22.3, 41.0, 71.5),
    },
    "imbalanced": {
        "NCCL": (86.2, 167.5, 339.3, 656.2),
        "DeepEP": (56.0, 108.5, 216.2, 420.9),
        "FUSCO": (43.3, 78.9, 151.3, 305.0),
    },
}
"""Milliseconds, by traffic and contender (github.com/infinigence/FUSCO)."""
TABLE_3: Mapping[str, Mapping[str, float]] = {
    "real-world": {"": 86.84, "dComm": 119.48, "planner": 124.35, "balancer": 95.13},
    "single-node": {"": 40.99, "dComm": 61.47, "planner": 125.42, "balancer": 42.36},
    "imbalanced": {"": 151.30, "dComm": 219.83, "planner": 207.45, "balancer": 181.48},
}
"""Milliseconds with a part off, 16384 tokens (arXiv 2512.22036)."""
KINDS: Mapping[str, str] = {
    "real-world": "real-world",
    "single-node": "single-node",
    "imbalanced nodes": "imbalanced",
    "imbalanced GPUs": "imbalanced",
}
"""Traffic of ``simulation_routings`` -> of the published tables: of one there are two readings."""
DRAWS = 4
"""Of the busy GPUs, in the ablation."""

FUSCO = CONTENDERS["fusco"]
PARTS: Mapping[str, str] = {
    "dComm": "fused copies", "planner": "planner", "balancer": "balancer",
}  # fmt: skip
"""The paper's names of parts -> those of ``ablated``."""


@cache
def workload(kind: str, tokens: int, draw: int = 0) -> tuple[Workload, list[RankData]]:
    """The inputs of 64 ranks. Counts do not depend on the cluster's rates."""
    shuffle, module = open_shape(SHAPE)
    found = Workload(shuffle, module, load_cluster("h100-8x8-fusco"), kind, tokens)
    target = shuffle.program.target
    assert target.kind == "packed"
    ranks = []
    for rank in range(found.topology.num_ranks):
        idx = routing(
            kind, tokens, target.num_keys, shuffle.program.fanout, found.topology, rank, draw
        )
        inputs = {"topk_idx": idx, "topk_weights": torch.ones(idx.shape)}
        ranks.append(RankData({}, inputs, {"tokens": len(idx)}))
    return found, ranks


@cache
def run(
    kind: str, tokens: int, rewrite: Rewrite, cluster: str = "h100-8x8-fusco", draw: int = 0
) -> Run:
    """One contender with one of FUSCO's traffics."""
    given, ranks = workload(kind, tokens, draw)
    made = contender("", rewrite, given.module)
    return simulate(made, given.counts(made, ranks), load_cluster(cluster), detailed=False)


def bound(found: Run) -> float:
    """Seconds that the busiest links of both calls need."""
    return sum(
        max(each.seconds for each in leg.bounds if each.resource != "host")
        for leg in (found.dispatch, found.combine)
        if leg is not None
    )


@dataclass(frozen=True)
class Cell:
    """Seconds: ``hardware``, the bound on links at their nominal efficiency."""

    kind: str
    tokens: int
    contender: str
    published: float
    predicted: float
    hardware: float

    @property
    def error(self) -> float:
        return self.predicted / self.published - 1


def readme() -> Iterator[Cell]:
    """FUSCO's README, but for DeepEP, whose program is not of this IR."""
    for kind, published_kind in KINDS.items():
        for name, rewrite in (("NCCL", CONTENDERS["naive"]), ("FUSCO", FUSCO)):
            for tokens, published in zip(TOKENS, README[published_kind][name], strict=True):
                found = run(kind, tokens, rewrite)
                nominal = run(kind, tokens, rewrite, "h100-8x8-roce")
                yield Cell(kind, tokens, name, published * 1e-3, found.seconds, bound(nominal))


@dataclass(frozen=True)
class Part:
    """A part that is off: seconds without it, and what it saves of them; predicted means of all
    draws, with the least and the most of them."""

    kind: str
    part: str
    published: float
    predicted: float
    published_saved: float
    predicted_saved: float
    least: float
    most: float


def ablation() -> Iterator[Part]:
    """FUSCO's Table 3."""
    for kind, published_kind in KINDS.items():
        times = TABLE_3[published_kind]
        draws = range(DRAWS if kind == "imbalanced GPUs" else 1)
        whole = _seconds(kind, FUSCO, draws)
        for part, name in PARTS.items():
            without = _seconds(kind, ablated(FUSCO)[name], draws)
            saved = 1 - whole / without
            yield Part(
                kind, part, times[part] * 1e-3, without.mean(), 1 - times[""] / times[part],
                1 - whole.mean() / without.mean(), saved.min(), saved.max(),
            )  # fmt: skip


def _seconds(kind: str, rewrite: Rewrite, draws: Iterable[int]) -> Float64Array:
    return np.array([run(kind, 16384, rewrite, draw=draw).seconds for draw in draws])


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
    plain = contender("", CONTENDERS["naive"], module)
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
    "collectives at 62 % of a NIC": {"collective_nic": 0.62},
}
"""Assumptions, and by how much fields of the cluster or of its costs change."""


def on_h100() -> Iterator[tuple[str, str, Run]]:
    """Traffic, contender and run on 64 H100, 16384 tokens."""
    for kind in KINDS:
        for name in ("fuscoc", "naive", "deduplicated", "fusco", "fast"):
            yield kind, name, run(kind, 16384, CONTENDERS[name], "h100-8x8-roce")


def sensitivity(kind: str = "real-world") -> Iterator[tuple[str, float, float, float]]:
    """Assumption, seconds of fuscoc, of naive all-to-all and of FUSCO, 16384 tokens."""
    given, ranks = workload(kind, 16384)
    base = load_cluster("h100-8x8-roce")
    rewrites = (AUTO, CONTENDERS["naive"], FUSCO)
    made = [contender("", each, given.module) for each in rewrites]
    for name, changes in {"as assumed": {}, **SENSITIVITY}.items():
        costs = {
            k: getattr(base.costs, k) * v for k, v in changes.items() if hasattr(base.costs, k)
        }
        rates = {k: getattr(base, k) * v for k, v in changes.items() if not hasattr(base.costs, k)}
        cluster = replace(base, **rates, costs=replace(base.costs, **costs))
        yield (
            name,
            *(simulate(m, given.counts(m, ranks), cluster, detailed=False).seconds for m in made),
        )


def fit_naive() -> tuple[float, float]:
    """The NICs' efficiency and seconds of ``layout`` that explain NCCL's column of real traffic
    best: linear in the inverse of the one and in the other."""
    base = load_cluster("h100-8x8-fusco")
    free = replace(base.costs, layout=0.0)
    module = open_shape(SHAPE)[1]
    made, rows, published = contender("", CONTENDERS["naive"], module), [], []
    for tokens, milliseconds in zip(TOKENS, README["real-world"]["NCCL"], strict=True):
        given, ranks = workload("real-world", tokens)
        times = [
            simulate(
                made, given.counts(made, ranks), replace(base, nic=nic, costs=costs), detailed=False
            ).seconds
            for nic, costs in ((50e9, free), (25e9, free), (50e9, replace(free, layout=1e-3)))
        ]
        wire, fixed = times[1] - times[0], times[2] - times[0]
        rest = times[0] - wire
        published.append((milliseconds * 1e-3 - rest) / (milliseconds * 1e-3))
        rows.append(np.array([wire, fixed]) / (milliseconds * 1e-3))
    inverse, layout = np.linalg.lstsq(np.array(rows), np.array(published), rcond=None)[0]
    return 1 / float(inverse), float(layout) * 1e-3


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "--fit" in sys.argv[1:]:
        print("efficiency = {:.3f}, layout = {:.6f} s".format(*fit_naive()))
    for each in (*readme(), *ablation(), *fast_gains()):
        print(each, flush=True)
    for row in sensitivity():
        print(*row, flush=True)
