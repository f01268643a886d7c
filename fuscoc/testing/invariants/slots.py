"""The slots of a packed target: keys, alignment, capacity, and the rows that they refer to."""

from __future__ import annotations

import numpy as np

from fuscoc.testing.arrays import Ints, ints
from fuscoc.testing.facts import PlanFacts
from fuscoc.testing.violations import PlanViolation


def check_keys(facts: PlanFacts) -> None:
    """Every rank knows its keys, their rows and their first slots, each at a multiple of align."""
    expected = facts.expected
    for rank, plan in enumerate(facts.ranks):
        keys = np.flatnonzero(expected.key_owner == rank)
        offsets = np.append(expected.key_offset[keys], expected.num_slots[rank])
        if facts.shuffle.declared.target.kind == "dense":
            offsets = np.zeros(1, np.int64)
        _same("check_keys", "keys", rank, ints(plan.keys), keys)
        _same("check_keys", "key_counts", rank, ints(plan.key_counts), expected.key_counts[keys])
        _same("check_keys", "key_offsets", rank, ints(plan.key_offsets), offsets)


def check_row_index(facts: PlanFacts) -> None:
    """Every slot of a compact target refers to the row of its segment, and padding to none."""
    expected = facts.expected
    for rank, plan in enumerate(facts.ranks):
        wanted = np.zeros(0, np.int64)
        if facts.shuffle.program.is_compact:
            wanted = np.full(expected.num_slots[rank], -1)
            mine = expected.rank == rank
            wanted[expected.slot[mine]] = expected.row[mine]
        _same("check_row_index", "row_index", rank, ints(plan.row_index), wanted)


def check_capacity(facts: PlanFacts) -> None:
    """No rank holds more slots than the spec's ``capacity max``."""
    target = facts.shuffle.declared.target
    if target.kind == "packed" and target.capacity is not None:
        for plan in facts.ranks:
            if plan.num_slots > target.capacity:
                problem = f"holds {plan.num_slots} slots; the capacity is {target.capacity}"
                raise PlanViolation("check_capacity", problem, rank=plan.rank)


def _same(invariant: str, name: str, rank: int, got: Ints, wanted: Ints) -> None:
    if got.shape != wanted.shape or (got != wanted).any():
        problem = f"{name} is {got.tolist()}; the relation says {wanted.tolist()}"
        raise PlanViolation(invariant, problem, rank=rank)
