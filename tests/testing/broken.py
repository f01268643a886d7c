"""A valid plan to break, and the tools to break it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch

from fuscoc.testing import Routing, Spec, load_spec, plan_of
from fuscoc_runtime.plan import Plan
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.topology import Topology

TEXT = """
shuffle rows {
  const keys = 12, fan = 4
  index t : num_rows
  index k : fan
  index e : keys
  segment row { x : f32[3] }
  layout table[t] of row
  layout by_key[e, s] of row packed(s) align 4 capacity max 80
  place e on rank by block
  route r(t, k) -> e = input keys_of : int64
  weight w(t, k) : f32 = input weights
  dispatch table[t] -> by_key[r(t, k), *]
  combine reverse reduce sum(w)
}
"""
TOPOLOGY = Topology(3, 2)
TERM_COLUMNS = ("term_slot", "term_point", "term_row")
ROWS = (4, 3, 0, 5, 2, 4)


def spec(text: str = TEXT) -> Spec:
    return load_spec(text)


@cache
def routing() -> Routing:
    """Every kind of hop on every rank but the third, which is empty; some keys twice in a row."""
    ranks = []
    for rank, rows in enumerate(ROWS):
        random = torch.Generator().manual_seed(rank)
        keys = torch.randint(-1, 12, (rows, 4), generator=random)
        weights = torch.rand(rows, 4, generator=random)
        inputs = {"keys_of": keys, "weights": weights}
        ranks.append(RankData({}, inputs, {"num_rows": rows}))
    return Routing("rows", TOPOLOGY, tuple(ranks))


@cache
def plan(*, schedule: str | None = None, **rules: Any) -> Plan:
    return plan_of(spec().with_rules(**rules), routing(), schedule=schedule)


def edit(plan: Plan, rank: int, **changes: Any) -> Plan:
    """The plan with some attributes of one rank's plan replaced."""
    ranks = list(plan.ranks)
    ranks[rank] = replace(ranks[rank], **changes)
    return replace(plan, ranks=tuple(ranks))


def column(plan: Plan, rank: int, name: str, column: str, change: Callable[[Any], Any]) -> Plan:
    """The plan with one column of one rank's list changed: ``change`` is given a copy to edit."""
    values = plan.ranks[rank].lists[name][column].copy()
    changed = change(values)
    return lists(plan, rank, name, {column: values if changed is None else changed})


def lists(plan: Plan, rank: int, name: str, columns: dict[str, Any]) -> Plan:
    """The plan with some columns of one rank's list replaced."""
    every = plan.ranks[rank].lists
    return edit(plan, rank, lists={**every, name: {**every[name], **columns}})


def entry(index: int, value: int) -> Callable[[Any], None]:
    """Sets one entry."""

    def change(values: Any) -> None:
        values[index] = value

    return change


def swapped(one: int, other: int) -> Callable[[Any], None]:
    """Exchanges two entries."""

    def change(values: Any) -> None:
        values[[one, other]] = values[[other, one]]

    return change


def without(plan: Plan, rank: int, name: str, index: int) -> Plan:
    """The plan without one descriptor."""
    columns = plan.ranks[rank].lists[name]
    kept = {
        key: np.concatenate([each[:index], each[index + 1 :]])
        for key, each in columns.items()
        if key not in TERM_COLUMNS
    }
    return lists(plan, rank, name, kept)
