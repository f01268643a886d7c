"""Fits the constants of the simulator on the tables that are to be fitted: ``python -m
benchmarks.simulation_fit`` prints them, to be written into ``fuscoc/simulate/costs.py`` and the
clusters of the project's machines.

Every constant has rows of its own, so each is fitted by itself, by the least squares of relative
errors. Totals are sums of other rows and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from benchmarks.simulation_cases import REWRITES, Case, seconds
from benchmarks.simulation_tables import Measured, measured
from fuscoc.simulate.clusters import load_cluster

STEPS = 24
GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class Constant:
    """A field of ``Costs``, the limits of its search, and the rows that decide it."""

    least: float
    most: float
    rows: Callable[[Measured], bool]


def _execution(row: Measured) -> str:
    return REWRITES[row.contender].execution


CONSTANTS: Mapping[str, Constant] = {
    "node_dispatch": Constant(
        0, 1e-4, lambda row: row.contender == "fuscoc" and "nvlink" in row.cluster
        and row.part == "dispatch",
    ),
    "node_combine": Constant(
        0, 1e-4, lambda row: row.contender == "fuscoc" and "nvlink" in row.cluster
        and row.part == "combine",
    ),
    "collective": Constant(
        0, 1e-4, lambda row: _execution(row) == "staged" and "nvlink" in row.cluster
        and row.part != "total",
    ),
    "slab_kernel": Constant(0, 1e-4, lambda row: row.contender == "fixed" and row.part == "total"),
    "plan": Constant(
        0, 2e-3, lambda row: _execution(row) == "fused" and "nics" in row.cluster
        and row.part == "dispatch" and not REWRITES[row.contender].reuses_plan,
    ),
    "reduce": Constant(
        0.02, 1, lambda row: _execution(row) == "staged" and "nics" in row.cluster
        and row.part == "combine",
    ),
}  # fmt: skip


def fit(name: str) -> float:
    """The best value of one constant, the others as they are."""
    constant = CONSTANTS[name]
    rows = [row for row in measured() if row.role == "fitted" and constant.rows(row)]

    def error(value: float) -> float:
        total = 0.0
        for row in rows:
            costs = replace(load_cluster(row.cluster).costs, **{name: value})
            run = Case.of(row).run(row.contender, costs)
            total += (seconds(run, row) / row.seconds - 1) ** 2
        return total

    return _least(error, constant.least, constant.most)


def _least(error: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with one minimum has it, by golden sections."""
    inner = [high - GOLDEN * (high - low), low + GOLDEN * (high - low)]
    values = [error(each) for each in inner]
    for _ in range(STEPS):
        if values[0] < values[1]:
            high, inner[1], values[1] = inner[1], inner[0], values[0]
            inner[0] = high - GOLDEN * (high - low)
            values[0] = error(inner[0])
        else:
            low, inner[0], values[0] = inner[0], inner[1], values[1]
            inner[1] = low + GOLDEN * (high - low)
            values[1] = error(inner[1])
    return (low + high) / 2


if __name__ == "__main__":
    for constant in CONSTANTS:
        print(f"{constant} = {fit(constant):.4g}", flush=True)
