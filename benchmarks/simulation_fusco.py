"""FUSCO's published tables beside what the simulator makes of its program and its traffic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.simulation_cases import open_shape
from benchmarks.simulation_routings import WIDTHS, Widths, routing
from fuscoc.simulate.clusters import load_cluster
from fuscoc.simulate.command import Workload
from fuscoc.simulate.contenders import CONTENDERS, Contender, Rewrite, ablated, contender
from fuscoc.simulate.counts import Counts
from fuscoc.simulate.record import Run
from fuscoc.simulate.runs import simulate
from fuscoc_runtime.reference import RankData

Float64Array = NDArray[np.float64]

SHAPE = "deepseek-v3"
CLUSTER, NOMINAL = "h100-8x8-fusco", "h100-8x8-roce"
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
DRAWS = 4
"""Of every traffic. Predictions of FUSCO's tables are means of them."""
GRAIN = 6e-9
"""Seconds a token (``events.run``): a fifth of the time to compute, for times of collectives 0.4 %
longer. Not for pipelines, whose rounds would be late one by one."""

NAIVE, FUSCO = CONTENDERS["naive"], CONTENDERS["fusco"]
PARTS: Mapping[str, str] = {
    "dComm": "fused copies", "planner": "planner", "balancer": "balancer",
}  # fmt: skip
"""The paper's names of parts -> those of ``ablated``."""


@cache
def workload(kind: str, draw: int, widths: Widths) -> tuple[Workload, list[RankData]]:
    """The inputs of 64 ranks, for the fewest tokens. Counts do not depend on the cluster's
    rates."""
    shuffle, module = open_shape(SHAPE)
    found = Workload(shuffle, module, load_cluster(CLUSTER), kind, TOKENS[0])
    target, topk = shuffle.program.target, shuffle.program.fanout
    assert target.kind == "packed"
    ranks = []
    for rank in range(found.topology.num_ranks):
        idx = routing(
            kind, TOKENS[0], target.num_keys, topk, found.topology, rank, draw, widths
        )  # fmt: skip
        inputs = {"topk_idx": idx, "topk_weights": torch.ones(idx.shape)}
        ranks.append(RankData({}, inputs, {"tokens": len(idx)}))
    return found, ranks


def counts(
    kind: str, tokens: int, made: Contender, draw: int = 0, widths: Widths = WIDTHS
) -> Counts:
    """What a contender's program makes of a traffic. More tokens than the fewest are routed as
    those are, over and over."""
    given, ranks = workload(kind, draw, widths)
    found, times = given.counts(made, ranks), tokens // TOKENS[0]
    names = ("points", "pairs", "shared", "flows", "sources", "near")
    return replace(found, **{name: getattr(found, name) * times for name in names})


@cache
def run(
    kind: str,
    tokens: int,
    rewrite: Rewrite,
    cluster: str = CLUSTER,
    draw: int = 0,
    widths: Widths = WIDTHS,
) -> Run:
    """One contender with one of FUSCO's traffics."""
    made = contender("", rewrite, open_shape(SHAPE)[1])
    found = counts(kind, tokens, made, draw, widths)
    return simulate(made, found, load_cluster(cluster), grain=GRAIN * tokens, detailed=False)


def seconds(kind: str, tokens: int, rewrite: Rewrite, widths: Widths = WIDTHS) -> Float64Array:
    """By draw."""
    runs = [run(kind, tokens, rewrite, draw=draw, widths=widths) for draw in range(DRAWS)]
    return np.array([each.seconds for each in runs])


def bound(kind: str, tokens: int, rewrite: Rewrite) -> float:
    """Seconds that the busiest links of both calls need, at their nominal efficiency: they go with
    the tokens; the mean of all draws."""
    runs = [run(kind, TOKENS[0], rewrite, NOMINAL, draw) for draw in range(DRAWS)]
    legs = [leg for each in runs for leg in (each.dispatch, each.combine) if leg is not None]
    busiest = [max(b.seconds for b in leg.bounds if b.resource != "host") for leg in legs]
    return sum(busiest) / DRAWS * tokens / TOKENS[0]


@dataclass(frozen=True)
class Cell:
    """Seconds: ``predicted``, the mean of all draws; ``hardware``, the bound."""

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
    for kind, columns in README.items():
        for name, rewrite in (("NCCL", NAIVE), ("FUSCO", FUSCO)):
            for tokens, published in zip(TOKENS, columns[name], strict=True):
                predicted = float(seconds(kind, tokens, rewrite).mean())
                least = bound(kind, tokens, rewrite)
                yield Cell(kind, tokens, name, published * 1e-3, predicted, least)


@dataclass(frozen=True)
class Saved:
    """Of what a call takes without a part: the mean of all draws, the least and the most."""

    mean: float
    least: float
    most: float

    @classmethod
    def of(cls, whole: Float64Array, without: Float64Array) -> Saved:
        each = 1 - whole / without
        mean = 1 - whole.mean() / without.mean()
        return cls(float(mean), float(each.min()), float(each.max()))


@dataclass(frozen=True)
class Off:
    """A part that is off: seconds without it, and what it saves of them."""

    kind: str
    part: str
    published: float
    predicted: float
    published_saved: float
    saved: Saved


def ablation() -> Iterator[Off]:
    """FUSCO's Table 3."""
    for kind, times in TABLE_3.items():
        whole = seconds(kind, 16384, FUSCO)
        for part, name in PARTS.items():
            without = seconds(kind, 16384, ablated(FUSCO)[name])
            yield Off(
                kind, part, times[part] * 1e-3, float(without.mean()), 1 - times[""] / times[part],
                Saved.of(whole, without),
            )  # fmt: skip
