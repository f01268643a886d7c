"""What is made of the times of the benchmark of nodes."""

from __future__ import annotations

import math

import torch

from benchmarks.network_report import beside, bound_of
from benchmarks.network_timing import ALONE, COLUMNS, IN_TURN, summarise


def test_medians_of_columns_and_the_spread_of_the_total() -> None:
    times = torch.arange(1.0, 12.0)[:, None] + 100 * torch.arange(float(len(IN_TURN)))
    times[:, 0] = math.inf  # no layout
    found = summarise(times, [1.26, 2, math.inf, math.inf])
    assert found["layout"] is None
    assert [found[name] for name in IN_TURN[1:]] == [106 + 100 * i for i in range(len(IN_TURN) - 1)]
    assert [found[name] for name in ALONE] == [1.3, 2, None, None]
    assert (found["p10"], found["p90"]) == (302, 310)


def test_the_bound_is_the_best_of_the_raw_wires_in_each_column() -> None:
    raw = [dict.fromkeys(COLUMNS, 7.0) for _ in range(3)]
    raw[1] |= {"dispatch": 3.0, "total": 6.0}
    raw[2] |= {"combine": 2.0, "idle": 5.0, "host dispatch": 1.0}
    bound = bound_of(raw)
    assert {name: value for name, value in bound.items() if value is not None} == {
        "dispatch": 3, "combine": 2, "total": 6, "idle": 5,
    }  # fmt: skip
    entry = beside({"contender": "x", "total": 9.0}, bound)
    assert (entry["beyond"], entry["x bound"]) == (3, 1.5)


def test_a_wire_that_nothing_crosses_bounds_nothing() -> None:
    bound = bound_of([dict.fromkeys(COLUMNS, 0.0)])
    assert beside({"total": 9.0}, bound) == {"total": 9, "beyond": 9, "x bound": None}
