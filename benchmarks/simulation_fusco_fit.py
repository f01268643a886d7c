"""Fits the constants of ``h100-8x8-fusco``:
``python -m benchmarks.simulation_fusco_fit``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.simulation_cases import open_shape
from benchmarks.simulation_fusco import (
    CLUSTER,
    DRAWS,
    FUSCO,
    GRAIN,
    NAIVE,
    README,
    SHAPE,
    TOKENS,
    counts,
)
from fuscoc.simulate.clusters import Cluster, load_cluster
from fuscoc.simulate.contenders import Contender, contender
from fuscoc.simulate.runs import simulate

Float64Array = NDArray[np.float64]


def fit_naive() -> float:
    """Seconds of ``layout`` that explain NCCL's cells best, all twelve."""
    base = load_cluster(CLUSTER)
    cluster = replace(base, costs=replace(base.costs, layout=0.0))
    made = contender("", NAIVE, open_shape(SHAPE)[1])
    published = np.concatenate([_published(kind, "NCCL") for kind in README])
    rest = np.concatenate([_line(made, kind, cluster) for kind in README])
    (layout,) = _least_squares(np.ones((len(rest), 1)), published, rest)
    return float(layout)


def _line(made: Contender, kind: str, cluster: Cluster) -> Float64Array:
    """Seconds of ``TOKENS``, which are linear in them."""
    few, many = (_mean_seconds(made, kind, tokens, cluster) for tokens in TOKENS[:2])
    return few + (many - few) * (np.array(TOKENS) / TOKENS[0] - 1)


def fit_hops() -> tuple[float, float]:
    """``hop_nic`` and seconds of ``plan`` that explain FUSCO's cells of real traffic best: linear
    in the inverse of the one and in the other."""
    kind = "real-world"
    base = load_cluster(CLUSTER)
    made = contender("", FUSCO, open_shape(SHAPE)[1])

    def seconds(tokens: int, part: float) -> float:
        costs = replace(base.costs, plan=0.0, hop_nic=part)
        return _mean_seconds(made, kind, tokens, replace(base, costs=costs))

    rows = []
    for tokens in TOKENS:
        fast, slow = seconds(tokens, 1.0), seconds(tokens, 0.5)
        rows.append([slow - fast, 1.0, 2 * fast - slow])
    wire, one, rest = np.array(rows).T
    columns = np.stack([wire, one], axis=1)
    inverse, plan = _least_squares(columns, _published(kind, "FUSCO"), rest)
    return 1 / float(inverse), float(plan)


def _mean_seconds(made: Contender, kind: str, tokens: int, cluster: Cluster) -> float:
    """Of all draws."""
    runs = [
        simulate(
            made,
            counts(kind, tokens, made, draw),
            cluster,
            grain=GRAIN * tokens,
            detailed=False,
        )
        for draw in range(DRAWS)
    ]
    return sum(each.seconds for each in runs) / DRAWS


def _published(kind: str, name: str) -> Float64Array:
    return np.array(README[kind][name]) * 1e-3


def _least_squares(
    columns: Float64Array, published: Float64Array, rest: Float64Array | float = 0.0
) -> Float64Array:
    """Of errors relative to what was published."""
    scaled = columns / published[:, None]
    return np.asarray(np.linalg.lstsq(scaled, (published - rest) / published, rcond=None)[0])


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"layout = {fit_naive():.6f} s")
    print("hop_nic = {:.3f}, plan = {:.6f} s".format(*fit_hops()))
